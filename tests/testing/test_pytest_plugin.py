"""The pytest plugin: its fixtures. Suites of other people's are in tests/ci/testing."""

import json
import re
from hashlib import md5
from importlib.metadata import entry_points

import pytest

from helpers.paths import DOCS
from helpers.tables import each_row
from rbim import ClientClosed, CreateGroup, Credentials, Dialect, GroupType, InviteJoinGroup, JoinGroup, NotSent, Throttled
from rbim.emulator.faults import Fault, Refuse, Throttle
from rbim.testing import pytest_plugin as testing

PAGE = (DOCS / "testing.md").read_text(encoding="utf-8")


def invite(**fields):
    return InviteJoinGroup(**{"group_id": "g1", "members": ["1001", "1002"], **fields})


# The fixtures.


async def test_client_emulator_and_clock_belong_together(rbim_client, rbim_emulator, rbim_clock):
    assert rbim_emulator.clock is rbim_clock
    assert rbim_clock.auto
    with pytest.raises(ClientClosed):
        await rbim_client.groups.search()
    async with rbim_client as client:
        made = await client.groups.create(name="a", type=GroupType.TEMPORARY)
    assert list(rbim_emulator.state.groups) == [made.group_id]


@pytest.mark.parametrize("time", [1, 2])
async def test_each_test_has_its_own(time, rbim_client, rbim_emulator, rbim_clock):
    assert (len(rbim_emulator.requests), rbim_emulator.state.made, rbim_clock.elapsed) == (0, 0, 0)
    async with rbim_client as client:
        await client.groups.create(name=f"{time}", type=GroupType.TEMPORARY)
        await rbim_clock.sleep(3600)


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.rbim(faults=[Fault(effect=Throttle(per_second=1), operation=CreateGroup)])
async def test_a_fault_that_counts_counts_for_one_test(time, rbim_client):
    async with rbim_client as client:
        await client.groups.create(name=f"{time}", type=GroupType.TEMPORARY)
        with pytest.raises(Throttled):
            await client.groups.create(name=f"{time}", type=GroupType.TEMPORARY)


KEPT: list[float] = []  # by the run that comes first


@pytest.mark.parametrize("_time", [1, 2])
@pytest.mark.rbim(faults=[Fault(effect=Refuse(), times=2)])
async def test_retries_come_at_the_same_moments_each_time(_time, rbim_client, rbim_emulator):
    async with rbim_client as client:
        await client.groups.search()
    moments = [request.at for request in rbim_emulator.requests]
    assert 0 == moments[0] < moments[1] < moments[2]
    KEPT[:] = KEPT or moments
    assert moments == KEPT


@pytest.mark.rbim(seed=5, accounts=["1001"], administrator="root", faults=[Fault(effect=Refuse())])
class TestOfSeveralMarkers:
    async def test_those_of_the_class_hold(self, rbim_client, rbim_emulator):
        assert rbim_emulator.state.known == {"1001"}
        async with rbim_client as client:
            with pytest.raises(NotSent):
                await client.groups.search()

    @pytest.mark.rbim(accounts=None, faults=())
    async def test_the_closest_decides_on_each_option(self, rbim_client, rbim_emulator):
        assert rbim_emulator.state.known is None
        assert rbim_emulator.world.administrator == "root"
        async with rbim_client as client:
            assert len(await client.groups.search()) == 0


async def test_the_inbox_keeps_what_is_copied(rbim_client, rbim_emulator, rbim_inbox):
    async with rbim_client as client:
        group = await client.groups.create(name="a", type=GroupType.TEMPORARY)
        await client.groups.invite(group_id=group.group_id, members=["1001"])
        rbim_emulator.say("1001", group.group_id, "大家好")
        assert list(rbim_inbox) == []
        await rbim_emulator.deliver()
    (joined,), (said,) = rbim_inbox.of("TEAM_JOIN"), rbim_inbox.of("TEXT")
    assert rbim_inbox.messages == [joined, said]
    assert (len(rbim_inbox), rbim_inbox.rejected) == (2, [])
    assert (joined["to"], said["body"]) == (group.group_id, "大家好")
    assert joined["tMembers"] == [f"{rbim_emulator.credentials.app_id}#1001"]
    await rbim_emulator.deliver()
    assert list(rbim_inbox) == [joined, said]


@pytest.mark.rbim(dialect=Dialect(message_time_unit="seconds"))
async def test_the_inbox_reads_times_by_the_emulators_dialect(rbim_emulator, rbim_clock, rbim_inbox):
    rbim_emulator.say("1001", "1002", "x")
    await rbim_emulator.deliver()
    assert rbim_inbox.messages[0]["msgTimestamp"] == "1767323045"
    assert [event.sent_at for event in rbim_inbox.events] == [rbim_clock.now()]


async def test_the_inbox_hears_of_what_no_operation_can_do(rbim_client, rbim_emulator, rbim_inbox):
    async with rbim_client as client:
        group = await client.groups.create(name="a", type=GroupType.TEMPORARY)
        await client.groups.invite(group_id=group.group_id, members=["1001", "1002"], needs_confirmation=True)
    rbim_emulator.confirm(group.group_id, "1001")
    rbim_emulator.decline(group.group_id, "1002")
    await rbim_emulator.deliver()
    assert [each["msgType"] for each in rbim_inbox] == ["TEAM_INVITE", "TEAM_INVITE_ACCEPT", "TEAM_INVITE_REJECT"]


KEY = Credentials(app_id="a" * 32, app_token="b" * 32)


def delivery(body, *, token="b" * 32, names=("CurTime", "MD5", "CheckSum"), change=str):
    digest = md5(body).hexdigest().upper()
    total = md5(f"{'a' * 32}{token}{digest}1700000000000".encode()).hexdigest().upper()
    return dict(zip(names, ("1700000000000", change(digest), change(total)), strict=True)), body


@each_row(
    "headers, body, status",
    [
        (*delivery(b'{"msgType": "TEXT"}'), 200),
        (*delivery(b'{"msgType": "TEXT"}', names=("curtime", "md5", "checksum")), 200),
        (*delivery(b"[]"), 400),
        (*delivery(b"{"), 400),
        (*delivery(b"\xff"), 400),
        (*delivery(b"{}", token="c" * 32), 401),
        (*delivery(b"{}", change=lambda text: text[::-1]), 401),
        (delivery(b"{}")[0], b"{ }", 401),
        ({}, b"{}", 401),
        ({"CurTime": "\N{GRINNING FACE}", "MD5": "", "CheckSum": "ü"}, b"", 401),
    ],
)
async def test_the_inbox_takes_what_is_authentic(headers, body, status):
    inbox = testing.Inbox(KEY)
    assert await inbox.receive(headers, body) == status
    assert (list(inbox), len(inbox.rejected)) == (([json.loads(body)], 0) if status == 200 else ([], 1))
    assert "b" * 32 not in "".join(inbox.rejected)


# What failing assertions show.


@each_row(
    "left, right, lines",
    [
        (
            [invite(), invite(members=["1001"])],
            [invite(), invite(declared="x")],
            [
                "2 operations == 2 operations",
                "at index 1, InviteJoinGroup:",
                "  members: ('1001',) != ('1001', '1002')",
                "  declared: None != 'x'",
            ],
        ),
        (
            [invite()],
            [invite(), JoinGroup(group_id="g1"), JoinGroup(group_id="g2")],
            [
                "1 operation == 3 operations",
                f"only on the right, from index 1 on: {JoinGroup(group_id='g1')!r}, {JoinGroup(group_id='g2')!r}",
            ],
        ),
        (
            [JoinGroup(group_id="g1")],
            [],
            ["1 operation == 0 operations", f"only on the left, from index 0 on: {JoinGroup(group_id='g1')!r}"],
        ),
        (
            [JoinGroup(group_id="g1")],
            [invite()],
            ["1 operation == 1 operation", f"at index 0: {JoinGroup(group_id='g1')!r} != {invite()!r}"],
        ),
    ],
)
def test_lists_of_operations_show_where_they_differ(left, right, lines):
    assert testing.pytest_assertrepr_compare("==", left, right) == lines


@each_row(
    "op, left, right",
    [
        ("==", [1], [2]),
        ("==", [], []),
        ("==", [invite()], [1]),
        ("==", [invite()], (invite(),)),
        ("==", invite(), invite()),
        ("!=", [invite()], [invite()]),
        ("in", invite(), [invite()]),
    ],
)
def test_other_comparisons_are_pytests_own(op, left, right):
    assert testing.pytest_assertrepr_compare(op, left, right) is None


def test_a_list_that_adds_in_its_own_way_is_compared_too():
    class Vector(list):
        def __add__(self, other):
            raise ValueError

    assert testing.pytest_assertrepr_compare("==", Vector([1]), [2]) is None


def test_the_plugin_is_an_entry_point():
    (entry,) = (entry for entry in entry_points(group="pytest11") if entry.name == "rbim")
    assert entry.value == "rbim.testing.pytest_plugin"


def test_the_page_names_every_fixture_and_nothing_else():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(rows) == sorted(name for name in testing.__all__ if name.startswith("rbim_"))
