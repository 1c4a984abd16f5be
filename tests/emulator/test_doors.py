"""The contract of the emulator's doors: whatever is asked through any of them is answered, refused and remembered alike."""

from contextlib import AsyncExitStack

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from helpers.credentials import CREDENTIALS
from helpers.serving import served
from helpers.strategies import operations, texts
from rbim import AsyncClient, CreateGroup, Dialect, GroupType, InviteJoinGroup, Permission, RbimError, Role, SetMemberRole
from rbim.emulator import EmulatedClock, Emulator
from rbim.operations import catalogue
from rbim.transports.httpx import HttpxTransport

KINDS = [entry.operation for entry in catalogue.entries()]

# What is there before each example: an open group, a verifying one with members, a private one.
BEFORE = [
    CreateGroup(name="公告 🎉", type=GroupType.TEMPORARY),
    CreateGroup(name="abc", type=GroupType.VIP, permission=Permission.VERIFIED, user_name="1001", declared="欢迎"),
    CreateGroup(name="私人", type=GroupType.PAID_300, permission=Permission.PRIVATE),
    InviteJoinGroup(group_id="g80000049837292", members=["1002", "1003", "张三"]),
    SetMemberRole(group_id="g80000049837292", member="1002", role=Role.ADMINISTRATOR),
]
GROUPS = st.sampled_from([f"g8000004983729{n}" for n in range(1, 7)]) | st.just("nowhere") | texts()
ACCOUNTS = st.sampled_from(["admin", "1001", "1002", "1003", "1004", "张三", "👩‍💻"])
FIELDS = {
    "group_id": GROUPS,
    "user_name": st.none() | ACCOUNTS,
    "member": ACCOUNTS | texts(),
    # more than the 50 that the platform takes, too: the clients of these tests let them through
    "members": st.lists(ACCOUNTS, min_size=1, max_size=7) | st.lists(texts(), min_size=45, max_size=55),
}
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def any_of(kind):
    fields = dict(FIELDS)
    if kind.spec.name == "SearchPublicGroups":
        fields |= {"group_id": st.none() | GROUPS, "name": st.none() | texts() | st.sampled_from(["abc", "bc", "公告", " "])}
    return operations(kind, **fields)


ANY = st.one_of(*map(any_of, KINDS))


def box():
    emulator = Emulator(credentials=CREDENTIALS, clock=EmulatedClock())
    emulator.never_logged_in("1004")
    return emulator


class House:
    """A server whose emulator can be replaced, so that each example has one of its own and all share the server."""

    def __init__(self):
        self.emulator = box()
        self.base = ""

    async def __call__(self, scope, receive, send):
        await self.emulator.asgi(scope, receive, send)


@pytest.fixture(scope="module")
def house():
    house = House()
    with served(house) as house.base:
        yield house


async def told(client, op):
    """Return all that the client learns from one operation: answer and response, or error."""
    try:
        exchange = await client.exchange(op)
    except RbimError as error:
        facts = ("operation", "code", "message", "outcome", "status", "body", "field", "limit", "length")
        return type(error), {name: getattr(error, name, None) for name in facts}, len(error.attempts)
    response = exchange.response
    return exchange.answer, response.status, response.body, response.headers["content-type"], len(exchange.attempts)


async def through_every_door(house, ops):
    """Carry out the operations through each door, in a platform of its own; return what was learned, and the platforms."""
    emulators = box(), box(), box()
    house.emulator = emulators[2]
    carriers = (
        ("http://emulator", emulators[0]),
        ("http://emulator", HttpxTransport(carrier=httpx.ASGITransport(emulators[1].asgi))),
        (house.base, HttpxTransport(trust_env=False)),
    )
    learned = []
    async with AsyncExitStack() as stack:
        for (base, carrier), emulator in zip(carriers, emulators, strict=True):
            client = AsyncClient(
                base_url=base,
                transport=carrier,
                credentials=CREDENTIALS,
                clock=emulator.clock,
                dialect=Dialect(invite_limit=1000),
            )
            await stack.enter_async_context(client)
            learned.append([await told(client, op) for op in [*BEFORE, *ops]])
    return learned, emulators


def same_everywhere(house, ops):
    learned, emulators = anyio.run(through_every_door, house, ops)
    assert learned[0] == learned[1] == learned[2]
    assert emulators[0].state == emulators[1].state == emulators[2].state
    journals = [[(record.operation, record.code, record.effect) for record in each.requests] for each in emulators]
    assert journals[0] == journals[1] == journals[2]
    return learned[0][len(BEFORE) :], emulators[0]


@settings(QUICK, max_examples=25)
@given(ops=st.lists(ANY, min_size=3, max_size=12))
def test_any_sequence_of_operations_has_equal_results_through_all_doors(house, ops):
    same_everywhere(house, ops)


def test_what_the_client_refuses_is_refused_alike_and_reaches_no_door(house):
    op = InviteJoinGroup(group_id="g80000049837291", members=[f"m{n}" for n in range(1001)])
    ((kind, facts, attempts),), emulator = same_everywhere(house, [op])
    assert (kind.__name__, facts["field"], facts["length"], attempts) == ("InvalidRequest", "members", 1001, 0)
    assert len(emulator.requests) == len(BEFORE)
