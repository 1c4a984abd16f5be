"""What the tests of jobs share: a platform for them, a sender that is no client, and readings of the journal."""

import sqlite3
from collections import Counter, deque
from contextlib import asynccontextmanager, closing
from typing import NamedTuple

from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, settings, strategies as st

from rbim import AsyncClient, Dialect, GroupType, InviteJoinGroup, Retry
from rbim.bulk.job import InviteJob
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults import Fault
from rbim.operations.groups import Invited

NO_PAUSES = Retry(attempts=3, random=lambda: 0.0)
WAITING, DONE, REFUSED, FAILED, UNKNOWN, AGAIN = 0, 1, 2, 3, 4, -1


class World:
    """An emulator on emulated time, a client of it, and groups."""

    def __init__(self, *, dialect=None, rules=None, seed=0, start=None, **options):
        self.clock = EmulatedClock(auto=True) if start is None else EmulatedClock(start, auto=True)
        self.emulator = Emulator(clock=self.clock, dialect=dialect, rules=rules, seed=seed)
        self.client = AsyncClient(
            base_url="https://im.example",
            credentials=self.emulator.credentials,
            transport=self.emulator,
            clock=self.clock,
            dialect=dialect or Dialect(),
            **options,
        )

    async def group(self):
        group = (await self.client.groups.create(name="g", type=GroupType.VIP)).group_id
        self.emulator.requests.clear()
        return group

    def members(self, group):
        found = self.emulator.state.groups.get(group)
        return set() if found is None else set(found.members) - {"admin"}

    def sent(self, kind=InviteJoinGroup):
        return [record for record in self.emulator.requests if isinstance(record.operation, kind)]

    def plan(self, *effects, **how):
        self.emulator.faults.add(*[Fault(effect=each, **{"operation": InviteJoinGroup} | how) for each in effects])


@asynccontextmanager
async def world(groups=1, **options):
    made = World(**options)
    async with made.client:
        made.groups = [await made.group() for _ in range(groups)]
        yield made


def read(path, statement, values=()):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement, values).fetchall()


def states(path):
    found = {account[:2]: account.state for account in accounts(path)}
    assert len(found) == len(accounts(path))
    return found


def count(path):
    return Counter(states(path).values())


def reasons(path):
    return dict(read(path, "SELECT account, reason FROM accounts"))


class Account(NamedTuple):
    """An account as the tables have it, put together by Python and not by the views."""

    group: str
    account: str
    state: int
    reason: str | None
    seq: int
    user: str | None
    chunk: tuple[int, int]
    request: int | None


def accounts(path):
    names = dict(read(path, "SELECT id, text FROM reason"))
    return [
        Account(group, account, state, names.get(reason), seq, user or None, (sender_group, chunk), request)
        for group, account, state, reason, seq, user, sender_group, chunk, request in read(
            path,
            """SELECT name, account, iif(account.state IS NULL, chunk.state, account.state),
                iif(account.state IS NULL, chunk.reason, account.reason), seq, user_name, sender_group.id, chunk, request
            FROM account JOIN sender_group ON sender_group.id = account.sender_group
            JOIN target_group ON target_group.id = target_group
            JOIN chunk ON (chunk.sender_group, chunk.id) = (account.sender_group, account.chunk) ORDER BY seq""",
        )
    ]


def accounts_of_requests(path):
    """Return the accounts of each request by its number: those of its chunk, or of the halves that were sent instead."""
    by_chunk = {}
    for each in accounts(path):
        by_chunk.setdefault(each.chunk, []).append(each)
    repeats = {}
    found = {}
    rows = read(path, "SELECT id, sender_group, chunk, members, repeats FROM request ORDER BY id DESC")
    for number, sender_group, chunk, members, repeated in rows:
        inside = by_chunk.get((sender_group, chunk), [])
        if len(inside) < members:  # it was split, or one that repeats it
            inside = sorted({each for other in repeats.get(number, ()) for each in found[other]}, key=lambda each: each.seq)
        found[number] = inside
        repeats.setdefault(repeated, []).append(number)
    return found


def begun(path):
    """Read every sending: group, who acts, accounts, outcome. None for one whose halves were not sent."""
    inside = accounts_of_requests(path)
    sendings = []
    for number, outcome, members in read(
        path, "SELECT id, outcome, members FROM request WHERE begun IS NOT NULL ORDER BY id"
    ):
        named = tuple(each.account for each in inside[number])
        known = len(named) == members
        sendings.append((inside[number][0].group, inside[number][0].user, named, outcome) if known else None)
    return sendings


def whole(report):
    a = report.accounts
    assert a.total == a.done + a.refused + a.failed + a.unknown + a.skipped + a.duplicate
    return a


class Sending:
    """A sender that is no client: does what ``act`` says of each operation, and keeps count."""

    def __init__(self, act=None, *, clock=None, seconds=0.0):
        self.clock = clock or EmulatedClock(auto=True)
        self.seconds = seconds
        self.act = act or (lambda _: None)
        self.operations = []
        self.times = []
        self.in_flight = self.most = 0

    async def send(self, op, /):
        self.operations.append(op)
        self.times.append(self.clock.elapsed)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await (self.clock.sleep(self.seconds) if self.seconds else checkpoint())
            answer = self.act(op)
            if hasattr(answer, "__await__"):
                answer = await answer
        finally:
            self.in_flight -= 1
        if isinstance(answer, BaseException):
            raise answer
        return Invited() if answer is None else answer

    def job(self, journal, kind=InviteJob, **options):
        return kind(self, **{"journal": journal, "clock": self.clock, "adaptive": False, "retry": NO_PAUSES} | options)

    @property
    def groups(self):
        return [op.group_id for op in self.operations]

    @property
    def members(self):
        return [op.members for op in self.operations]


def rows_of(groups, accounts):
    return [(f"g{group}", f"a{account}") for account in range(accounts) for group in range(groups)]


def script(*steps):
    left = deque(steps)
    return lambda _: left.popleft() if left else None


ACCOUNTS = st.integers(0, 11).map(lambda number: f"a{number}")
LONG = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
SHORT = settings(LONG, max_examples=20)
