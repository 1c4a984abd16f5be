"""What README.md and the pages under docs show is what runs, and what is derived from the code is what the code says."""

import json
import re
from functools import cache

import pytest

from helpers.pages import blocks_of, docs_module, run_newcomer, run_program, run_programs
from helpers.paths import ROOT, TESTS
from helpers.serving import platform_of_a_reader
from rbim import CODES, CreateGroup, Dialect, GroupType, InvalidRequest, InviteJoinGroup, errors
from rbim.cli.exit_codes import Exit
from rbim.client.retry import Retry, RetryBudget

EXPECTED = {
    "README.md": {
        "A client": [r"产品公告 3 20\d\d-.*\n"],
        "A job": [r"1900 0 0\n"],
        "A receiver": [r"1001 TEXT 你好\n"],
        "Errors": [r""],
    },
    "docs/client.md": {
        "Many clients in one process": [r""],
        "Credentials that change": [r""],
        "Fan-out": [r""],
        "Synchronous code": [r"\['g8\d+'.*\]\n"],
        "Custom operations": [r"900501 .*QueryGroupMembers.*\n"],
        "Without the platform": [r""],
    },
    "docs/index.md": {"rbim": [r"3\n"]},
    "docs/quickstart.md": {
        "Quickstart": [r"g8\d+ \[\]\n客户交流 3\n"],
        "One client per process": [r"1001\n"],
        "Handling errors": [r"the platform said no: 900404 there is no group g1\n"],
    },
    "docs/errors.md": {
        "Handling errors": [re.escape(blocks_of("docs/errors.md", "text")[0].text)],
        "Attempts, causes and pickling": [
            r"SearchPublicGroups: .* \(3 attempts, outcome not sent\)\n([123] NotSent not sent\n){3}"
        ],
    },
    "docs/retries.md": {
        "Retries and unknown outcomes": [r"idempotent\nnever\n"],
        "Retry settings": [r"公告\n"],
        "Confirmed by a retry": [r"1 Unanswered None unknown\n2 NotMember 560072 refused\nconfirmed by repeating: True\n"],
        "When the outcome is unknown": [r"g8\d+\n1 group\n"],
    },
    "docs/SECURITY.md": {
        "No secrets in errors and logs": [r"Credentials\(app_id='\w+', app_token=Secret\(\*\*\*\)\) False\n"],
        "Signatures": [r"AuthenticationError\n"],
    },
    "docs/alerts.md": {"What to alert on": [r"1\n"]},
    "docs/dialect.md": {"How to change it": [r"Throttled 5\n"]},
    "docs/CONTRIBUTING.md": {
        "Adding an operation": [r"\[\('admin', <Role.CREATOR: '0'>\), \('1001', <Role.MEMBER: '2'>\)\]\n"],
        "Adding a quirk": [r"1:05:00 '1h5m'\n0:45:00 '45m'\nNone 'until tomorrow'\nNone ''\n"],
        "Adding a transport": [r"\{\}\n"],
        "Adding a sink": [r"你好\n"],
    },
}
"""What each program of a page prints, by the heading it stands under."""

ELSEWHERE = {
    "README.md": ("docs/test_readme.py", {"sh"}),
    "docs/bulk.md": ("docs/test_bulk.py", {"python", "sql"}),
    "docs/callbacks.md": ("docs/test_callbacks.py", {"python"}),
    "docs/cli.md": ("docs/test_cli.py", {"sh", "toml", "json"}),
    "docs/configuration.md": ("docs/test_configuration.py", {"python", "sh", "toml"}),
    "docs/cookbook.md": ("docs/test_cookbook.py", {"python", "sh"}),
    "docs/emulator.md": ("cli/test_emulator.py", {"python", "sh", "json"}),
    "docs/machines.md": ("docs/test_machines.py", {"python"}),
    "docs/migration.md": ("docs/test_migration.py", {"python"}),
    "docs/observability.md": ("docs/test_observability.py", {"python"}),
    "docs/operations.md": ("docs/test_docs.py", {"python", "json"}),
    "docs/quickstart.md": ("docs/test_docs.py", {"sh"}),
    "docs/reloads.md": ("docs/test_reloads.py", {"python", "nginx"}),
    "docs/sync.md": ("docs/test_sync.py", {"python"}),
    "docs/testing.md": ("testing/test_pytest_plugin.py", {"python"}),
    "docs/transports.md": ("docs/test_transports.py", {"python"}),
}
"""Which test module runs the blocks of a page in these languages: their subject is tested there, or they are below."""

SHOWN = {"text", "{toctree}", "{include}", "{literalinclude}"}
"""What nobody could run: drawings, what programs print, the site's own."""

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    if not path.name.endswith(".zh.md")
)
PROGRAMS = [block for page in EXPECTED for block in blocks_of(page, "python") if block.not_run is None]


@pytest.mark.parametrize("page", EXPECTED)
def test_every_program_has_its_expectation(page):
    titles = [block.title for block in PROGRAMS if block.page == page]
    assert titles == [title for title, printed in EXPECTED[page].items() for _ in printed]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the programs of a page print, run for a reader whose platform is the emulator, served over HTTP."""

    @cache
    def printed(page):
        with platform_of_a_reader() as environment:
            programs = [block.text for block in PROGRAMS if block.page == page]
            return run_programs(programs, tmp_path_factory.mktemp("reader"), environment)

    return printed


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs_and_prints_what_it_should(block, printed):
    of_page = [each for each in PROGRAMS if each.page == block.page]
    same_title = [each for each in of_page if each.title == block.title]
    expected = EXPECTED[block.page][block.title][same_title.index(block)]
    assert re.fullmatch(expected, printed(block.page)[of_page.index(block)])


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_in_a_test_or_says_why_not(page):
    run = {"python"} if page in EXPECTED else set()
    if page in ELSEWHERE:
        module, languages = ELSEWHERE[page]
        assert page in (TESTS / module).read_text(encoding="utf-8")
        run |= languages
    left = [block for block in blocks_of(page) if block.language not in run | SHOWN and block.not_run is None]
    assert left == []


def test_the_quickstarts_five_commands_make_a_group(tmp_path):
    (block, _) = blocks_of("docs/quickstart.md", "sh")
    commands = block.text.splitlines()
    assert len(commands) == 5
    out = run_newcomer(commands[2:], tmp_path)
    assert re.search(r"g8\d{13}", out)


# --------------------------------------------------------------------------------- derived pages


def test_the_derived_pages_are_what_the_code_says():
    assert docs_module("derive").outdated() == []


@pytest.mark.parametrize("block", blocks_of("docs/operations.md", "python"), ids=str)
def test_an_operations_example_sends_and_gets_what_the_page_shows(block):
    """The bytes that the page shows are compared as documents, and the example runs as it stands there."""
    every = blocks_of("docs/operations.md")
    at = every.index(block)
    request, response, printed = docs_module("_derive.operations").run_example(block.text)
    assert [json.loads(each.text) for each in every[at + 1 : at + 3]] == [
        json.loads(request.body),
        json.loads(response.body),
    ]
    assert len(printed) == (1 if "print" in block.text and "fails" not in block.text else 0)


def test_the_limits_of_the_page_on_operations_are_those_that_hold():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    create = text[text.index("## groups.create") : text.index("## groups.modify")]
    name, declared = (
        re.search(rf"^\| `{field}` .*at most (\d+) char", create, re.MULTILINE)[1] for field in ("name", "declared")
    )
    CreateGroup(name="a" * int(name), type=GroupType.VIP, declared="a" * int(declared))
    for longer in ({"name": "a" * (int(name) + 1)}, {"name": "a", "declared": "a" * (int(declared) + 1)}):
        with pytest.raises(InvalidRequest):
            CreateGroup(type=GroupType.VIP, **longer)
    invite = text[text.index("## groups.invite") : text.index("## groups.remove")]
    assert f"at most {Dialect().invite_limit} (`Dialect.invite_limit`)" in invite
    assert re.findall(r"^## (\w+\.\w+)$", text, re.MULTILINE) == [
        f"groups.{name}"
        for name in ("create", "modify", "delete", "search", "detail", "join", "invite", "remove", "leave", "set_role")
    ] + ["calls.create_task"]


def test_each_field_of_the_dialect_has_another_value_as_one_writes_it():
    from zoneinfo import ZoneInfo

    from rbim import MembersShape

    known = {"Dialect": Dialect, "MembersShape": MembersShape, "ZoneInfo": ZoneInfo, "CODES": CODES, "busy": CODES["160016"]}
    otherwise = docs_module("_derive.dialect").OTHERWISE
    assert list(otherwise) == [gap.name for gap in Dialect.gaps()]
    for name, written in otherwise.items():
        changed = eval(f"Dialect({written})", known)
        assert {gap.name for gap in Dialect.gaps() if getattr(changed, gap.name) != getattr(Dialect(), gap.name)} == {name}


# ------------------------------------------------------------------------------- tables of facts


def rows_of(page, head):
    """Return the first column of the table with this head."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index(head) :].split("\n\n")[0]
    return [row for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)[1:] if set(row) != {"-"}]


def test_the_table_of_errors_has_every_error():
    named = {name for row in rows_of("docs/errors.md", "| error |") for name in re.findall(r"`(\w+)`", row)}
    assert named == set(errors.__all__) - {"Attempt", "Outcome", "RbimError", "TransportError"}
    outcomes = {name for row in rows_of("docs/errors.md", "| outcome |") for name in re.findall(r"`(\w+)`", row)}
    assert outcomes == {outcome.name for outcome in errors.Outcome}


def test_the_exit_codes_are_those_of_the_command_line():
    assert [int(row) for row in rows_of("docs/errors.md", "| exit code |")] == [int(code) for code in Exit]


def test_the_numbers_of_the_page_on_retries_are_the_defaults():
    text = (ROOT / "docs" / "retries.md").read_text(encoding="utf-8")
    retry, budget = Retry(), RetryBudget()
    assert f"| `Retry(attempts={retry.attempts})` | {retry.attempts} |" in text
    assert f"`Retry(base={retry.base}, cap={retry.cap})`" in text
    assert (budget.share, budget.reserve) == (1 / 5, 50)
    assert "a fifth of a retry, and each retry costs one; 50 are saved up" in text


def test_the_table_of_retries_is_what_the_policy_decides():
    """The table's cells, tried on the policy: an operation of each kind after each error."""
    from rbim import Code, NotSent, QueryGroupDetail, Throttled, Unanswered
    from rbim.errors import ApiError

    retry = Retry(random=lambda: 0.5)
    kinds = [
        QueryGroupDetail(group_id="g1"),
        InviteJoinGroup(group_id="g1", members=["1"]),
        InviteJoinGroup(group_id="g1", members=["1"], needs_confirmation=True),
    ]

    def again(error, codes=CODES):
        return [retry.pause(op, error, 1, codes) is not None for op in kinds]

    assert again(NotSent()) == [True, True, True]
    assert again(Unanswered()) == [True, True, False]
    assert again(Throttled(code="160016")) == [True, True, False]
    assert again(Throttled(status=429)) == [True, True, True]
    early = {"160016": Code(error=Throttled, grade="S", note="", before_effect=True)}
    assert again(Throttled(code="160016"), early) == [True, True, True]
    assert again(ApiError(code="900409")) == [False, False, False]


def test_the_modes_of_files_are_what_the_page_on_security_says(tmp_path):
    program = """
import os, anyio
from rbim import AsyncClient
from rbim.bulk import InviteJob
from rbim.callbacks import SqliteInbox

async def main():
    os.umask(0o022)
    async with AsyncClient.from_env() as client, SqliteInbox("events.db"):
        await InviteJob(client, journal="a.journal").run([])
        print(oct(os.stat("a.journal").st_mode & 0o777), oct(os.stat("events.db").st_mode & 0o777))

anyio.run(main)
"""
    with platform_of_a_reader() as environment:
        journal, inbox = run_program(program, tmp_path, environment).split()
    text = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    assert journal == inbox == "0o600"
    assert re.search(r"^\| a job's journal.*\| 0600 \|$", text, re.MULTILINE)
    assert re.search(r"^\| an inbox.*\| 0600 \|$", text, re.MULTILINE)
