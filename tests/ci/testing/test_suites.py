"""The pytest plugin in suites of other people's, each run by a pytest of its own, and in the page about it."""

import re
from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest

from helpers.pages import blocks_of

pytest_plugins = ["pytester"]

BLOCKS = [block.text for block in blocks_of("docs/testing.md", "python")]
OTHERS = sorted({entry.name for entry in entry_points(group="pytest11")} - {"rbim"})
HAS_ASYNCIO_PLUGIN = find_spec("pytest_asyncio") is not None

QUIET = ("-W", "error", "--strict-markers", "--strict-config", "-p", "no:cacheprovider")
WITHOUT_ASYNCIO = ("-p", "no:asyncio")
WITH_ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")  # pytest-asyncio warns where nobody says it


def run_suite(pytester, *options, plugin=WITHOUT_ASYNCIO):
    return pytester.runpytest_subprocess(*QUIET, *plugin, *options)


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
    wanted = "accounts, administrator, check_roles, credentials, dialect, faults, rules, seed, strict_dialect"
    run.stdout.fnmatch_lines(
        [f"@pytest.mark.rbim does not accept {given}: use {wanted}, each by keyword" for given in ("sed", 1, "clock")]
    )


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
    run.stdout.fnmatch_lines(["*DependsOnDialect: *it depends on Rules.invited_member_fails"])


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
        pytest.param("", WITH_ASYNCIO, ["-p", "no:anyio", "-o", "asyncio_mode=auto"], 3, marks=needs_plugin),
    ],
    ids=["anyio", "asyncio auto"],
)
def test_the_fixtures_work_with_each_asyncio_plugin(pytester, pytestmark, plugin, options, passed):
    pytester.makepyfile((SUITE + ENTERED).format(pytestmark=pytestmark))
    run_suite(pytester, *options, plugin=plugin).assert_outcomes(passed=passed)


def test_the_pages_blocks_are_test_modules_that_pass(pytester):
    names = ["test_" + re.sub(r"\W", "_", block.title).lower() for block in blocks_of("docs/testing.md", "python")]
    assert len(set(names)) == len(names) == 8
    for name, block in zip(names, BLOCKS, strict=True):
        pytester.path.joinpath(f"{name}.py").write_text(block, encoding="utf-8")
    tests = [len(re.findall(r"^async def test_", block, flags=re.MULTILINE)) for block in BLOCKS]
    assert all(tests)
    run = run_suite(pytester)
    run.assert_outcomes(passed=2 * sum(tests))  # on asyncio and trio
