"""The pytest plugin: its fixtures here, in suites of other people's, and in the page about it."""

import json
import re
from hashlib import md5
from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest

from helpers.pages import blocks_of
from helpers.paths import DOCS
from rbim import (
    AsyncClient,
    ClientClosed,
    CreateGroup,
    Credentials,
    Dialect,
    GroupType,
    InviteJoinGroup,
    JoinGroup,
    NotSent,
    Throttled,
)
from rbim.emulator.faults.requests import Fault, Refuse, Throttle
from rbim.testing import pytest_plugin as testing

pytest_plugins = ["pytester"]

PAGE = (DOCS / "testing.md").read_text(encoding="utf-8")
BLOCKS = [block.text for block in blocks_of("docs/testing.md", "python")]
OTHERS = sorted({entry.name for entry in entry_points(group="pytest11")} - {"rbim"})
HAS_ASYNCIO_PLUGIN = find_spec("pytest_asyncio") is not None

QUIET = ("-W", "error", "--strict-markers", "--strict-config", "-p", "no:cacheprovider")
WITHOUT_ASYNCIO = ("-p", "no:asyncio")
WITH_ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")  # pytest-asyncio warns where nobody says it


def run_suite(pytester, *options, plugin=WITHOUT_ASYNCIO):
    """Run pytest on a suite of its own, in a process of its own; a warning is an error there as well."""
    return pytester.runpytest_subprocess(*QUIET, *plugin, *options)


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
    rbim_inbox.clear()
    await rbim_emulator.deliver()
    assert list(rbim_inbox) == []


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


@pytest.mark.parametrize(
    ("headers", "body", "status"),
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
    inbox.clear()
    assert (inbox.messages, inbox.rejected) == ([], [])


async def test_a_checksum_in_lower_case_is_as_good():
    headers, body = delivery(b"{}")
    assert await testing.Inbox(KEY).receive(headers | {"CheckSum": headers["CheckSum"].lower()}, body) == 200


# What failing assertions show.


@pytest.mark.parametrize(
    ("left", "right", "lines"),
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
            [
                "1 operation == 0 operations",
                f"only on the left, from index 0 on: {JoinGroup(group_id='g1')!r}",
            ],
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


@pytest.mark.parametrize(
    ("op", "left", "right"),
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


def test_without_operations_there_is_nothing_to_compare(monkeypatch):
    monkeypatch.delitem(testing.sys.modules, "rbim.operations.base")
    assert testing.pytest_assertrepr_compare("==", [1], [2]) is None


# Other people's suites.


def test_the_plugin_is_an_entry_point():
    (entry,) = (entry for entry in entry_points(group="pytest11") if entry.name == "rbim")
    assert entry.value == "rbim.testing.pytest_plugin"


UNTOUCHED = """
    import sys

    HEAVY = ("rbim.emulator", "rbim.client.client", "rbim.operations.base", "anyio", "httpx", "attr", "attrs", "cattrs")

    def test_nothing_is_imported_before_a_fixture_is_used():
        assert "rbim.testing.pytest_plugin" in sys.modules
        assert {name for name in sys.modules if name.startswith(HEAVY)} == set()

    def test_own_failures_are_shown_as_ever():
        assert [1, 2] == [1, 3]

    def test_a_fixture_brings_what_it_needs(rbim_emulator):
        assert "rbim.emulator" in sys.modules
        assert len(rbim_emulator.requests) == 0
"""


def test_a_suite_that_uses_no_fixture_is_left_alone(pytester):
    pytester.makepyfile(UNTOUCHED)
    others = [option for name in OTHERS for option in ("-p", f"no:{name}")]
    run = run_suite(pytester, *others)
    run.assert_outcomes(passed=2, failed=1)
    run.stdout.fnmatch_lines(["*assert [[]1, 2[]] == [[]1, 3[]]", "*At index 1 diff: 2 != 3*"])


def test_the_plugin_can_be_switched_off(pytester):
    pytester.makepyfile("def test_a(rbim_emulator): pass")
    run = run_suite(pytester, "-p", "no:rbim")
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(["*fixture 'rbim_emulator' not found*"])


def test_the_marker_is_registered_and_explained(pytester):
    run = run_suite(pytester, "--markers")
    run.stdout.fnmatch_lines(["@pytest.mark.rbim(faults=(), seed=0, *"])


def test_a_marker_that_means_nothing_is_an_error(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.rbim(sed=1)
        def test_a(rbim_emulator):
            pass

        @pytest.mark.rbim(1)
        def test_b(rbim_emulator):
            pass

        @pytest.mark.rbim(clock=None)
        def test_c(rbim_emulator):
            pass
    """)
    run = run_suite(pytester)
    run.assert_outcomes(errors=3)
    wanted = "accounts, administrator, check_roles, credentials, dialect, faults, seed, strict_dialect"
    run.stdout.fnmatch_lines(
        [f"@pytest.mark.rbim does not accept {given}: use {wanted}, each by keyword" for given in ("sed", 1, "clock")]
    )


def test_the_clock_can_be_replaced(pytester):
    pytester.makeconftest("""
        from datetime import UTC, datetime

        import pytest
        from rbim.emulator import EmulatedClock

        @pytest.fixture
        def rbim_clock():
            return EmulatedClock(datetime(2030, 1, 1, tzinfo=UTC))
    """)
    pytester.makepyfile("""
        def test_a(rbim_emulator, rbim_client):
            assert rbim_emulator.clock.now().year == 2030
            assert not rbim_emulator.clock.auto
    """)
    run_suite(pytester).assert_outcomes(passed=1)


def test_a_strict_dialect_fails_the_test(pytester):
    pytester.makepyfile("""
        import pytest
        from rbim import GroupType

        @pytest.mark.anyio
        @pytest.mark.rbim(strict_dialect=True)
        async def test_a(rbim_client):
            async with rbim_client as client:
                group = await client.groups.create(name="a", type=GroupType.TEMPORARY)
                for _ in range(2):
                    await client.groups.invite(group_id=group.group_id, members=["1001"])
    """)
    run = run_suite(pytester)
    run.assert_outcomes(failed=2)
    run.stdout.fnmatch_lines(["*DependsOnDialect: *it depends on Dialect.invited_member_fails"])


SUITE = """
    import pytest
    from rbim import AsyncClient, GroupType, InviteJoinGroup
    from rbim.emulator import EmulatedClock, Emulator

    {pytestmark}

    @pytest.fixture
    async def entered(rbim_client):
        async with rbim_client as client:
            yield client

    async def test_a_client_is_entered_by_the_test(rbim_emulator, rbim_client, rbim_clock, rbim_inbox):
        async with rbim_client as client:
            made = await client.groups.create(name="a", type=GroupType.TEMPORARY)
            await client.groups.invite(group_id=made.group_id, members=["1001"])
        assert rbim_emulator.requests.of(InviteJoinGroup) == [InviteJoinGroup(group_id=made.group_id, members=["1001"])]
        await rbim_clock.sleep(3600)
        await rbim_emulator.deliver()
        assert [each["msgType"] for each in rbim_inbox] == ["TEAM_JOIN"]

    def test_a_test_may_be_synchronous(rbim_emulator, rbim_client, rbim_clock, rbim_inbox):
        assert (type(rbim_emulator), type(rbim_client), type(rbim_clock)) == (Emulator, AsyncClient, EmulatedClock)
"""
ENTERED = """
    async def test_a_fixture_of_ones_own_may_enter_it(entered):
        assert len(await entered.groups.search()) == 0
"""
needs_plugin = pytest.mark.skipif(not HAS_ASYNCIO_PLUGIN, reason="pytest-asyncio is not installed")


@pytest.mark.parametrize(
    ("pytestmark", "plugin", "options", "passed"),
    [
        ("pytestmark = pytest.mark.anyio", WITHOUT_ASYNCIO, [], 5),  # on asyncio and trio, but for the synchronous one
        ("", WITHOUT_ASYNCIO, ["-o", "anyio_mode=auto"], 5),
        pytest.param("pytestmark = pytest.mark.anyio", WITH_ASYNCIO, [], 5, marks=needs_plugin),
        pytest.param("", WITH_ASYNCIO, ["-p", "no:anyio", "-o", "asyncio_mode=auto"], 3, marks=needs_plugin),
        pytest.param("", WITH_ASYNCIO, ["-o", "asyncio_mode=auto"], 3, marks=needs_plugin),
    ],
    ids=["anyio", "anyio auto", "anyio beside asyncio", "asyncio auto", "asyncio auto beside anyio"],
)
def test_the_fixtures_work_with_each_asyncio_plugin(pytester, pytestmark, plugin, options, passed):
    pytester.makepyfile((SUITE + ENTERED).format(pytestmark=pytestmark))
    run_suite(pytester, *options, plugin=plugin).assert_outcomes(passed=passed)


@needs_plugin
@pytest.mark.parametrize("options", [[], ["-p", "no:anyio"]], ids=["beside anyio", "alone"])
def test_the_fixtures_work_with_pytest_asyncio_in_strict_mode(pytester, options):
    suite = SUITE.replace("@pytest.fixture", "@pytest_asyncio.fixture").replace(
        "import pytest", "import pytest, pytest_asyncio"
    )
    strict = suite.replace("async def test_", "@pytest.mark.asyncio\n    async def test_")
    pytester.makepyfile((strict + ENTERED.replace("async def", "@pytest.mark.asyncio\n    async def")).format(pytestmark=""))
    run_suite(pytester, *options, "-o", "asyncio_mode=strict", plugin=WITH_ASYNCIO).assert_outcomes(passed=3)


# The page.


def test_the_pages_blocks_are_test_modules_that_pass(pytester):
    names = ["test_" + re.sub(r"\W", "_", block.title).lower() for block in blocks_of("docs/testing.md", "python")]
    assert len(set(names)) == len(names) == 8
    for name, block in zip(names, BLOCKS, strict=True):
        pytester.path.joinpath(f"{name}.py").write_text(block, encoding="utf-8")
    tests = [len(re.findall(r"^async def test_", block, flags=re.MULTILINE)) for block in BLOCKS]
    assert all(tests)
    run = run_suite(pytester)
    run.assert_outcomes(passed=2 * sum(tests))  # on asyncio and trio


def test_the_difference_that_the_page_shows_is_the_one_that_pytest_prints(pytester):
    block = (
        BLOCKS[0]
        .replace('InviteJoinGroup(group_id=group_id, members=["1001", "1002"])', "")
        .replace("== [\n", '== [InviteJoinGroup(group_id=group_id, members=["1001", "1003"])\n')
    )
    pytester.path.joinpath("test_a.py").write_text(block.replace("\n        ,", ""), encoding="utf-8")
    run = run_suite(pytester, "-k", "asyncio")
    run.assert_outcomes(failed=1, deselected=1)
    (shown,) = (block.text for block in blocks_of("docs/testing.md", "text"))
    errors = [line.removeprefix("E").strip() for line in run.outlines if line.startswith("E ")]
    assert errors[: len(shown.splitlines())] == [line.strip() for line in shown.splitlines()]


def test_the_page_names_every_fixture_and_nothing_else():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(rows) == sorted(name for name in testing.__all__ if name.startswith("rbim_"))


def test_the_fixtures_are_what_the_page_says(rbim_client):
    assert isinstance(rbim_client, AsyncClient)
    assert set(re.findall(r"`-p (\S+)`", PAGE)) == {"no:rbim"}
