"""What README.md and the pages under docs show is what runs, and what is derived from the code is what the code says."""

import json
import os
import pkgutil
import re

import pytest

from helpers.commands import leaves
from helpers.pages import blocks_of, docs_module, run_program
from helpers.paths import ROOT, TESTS
from helpers.serving import platform_of_a_reader
from helpers.tables import each_row
from rbim import (
    CODES,
    AsyncClient,
    Code,
    CreateGroup,
    Dialect,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    NotSent,
    QueryGroupDetail,
    Throttled,
    Unanswered,
    errors,
)
from rbim.bulk import InviteJob
from rbim.callbacks import SqliteInbox
from rbim.cli.exit_codes import Exit, JobExit
from rbim.cli.global_flags import FLAGS, SWITCHES
from rbim.client.retry import Retry, RetryBudget
from rbim.emulator import Emulator
from rbim.errors import ApiError

EXPECTED = {
    "README.md": {
        "A first call": [r"3\n"],
        "A job": [r"1900 0 0\n"],
        "A receiver": [r""],
    },
    "docs/client.md": {
        "The client": [r"(g8\d+ 客户交流\n)*"],
        "Fan-out": [r"(客户交流 \d+\n)*"],
        "Many accounts": [r"900 invited, 0 unknown\n0 to be invited again\n"],
        "Synchronous code": [r"200\n201\n"],
        "Many clients in one process": [r""],
        "Credentials that change": [r""],
        "Answers as JSON": [r'{"invited": \["1001"\], "unknown": \[\], "fails": \[\], "extra": {"note": null}}\n'],
        "Custom operations": [r"900501 .*QueryGroupMembers.*\n"],
    },
    "docs/index.md": {"rbim": [r"3\n"]},
    "docs/quickstart.md": {
        "Quickstart": [r"g8\d+ \[\]\n客户交流 3\n"],
        "Handling errors": [r"the platform said no: 900404 there is no group g1\n"],
    },
    "docs/errors.md": {
        "Handling errors": [r"not sent: .*50 characters.*\n"],
        "When the outcome is unknown": [r"g8\d+\n1 group\n"],
    },
    "docs/SECURITY.md": {
        "No secrets in errors and logs": [r"Credentials\(app_id='\w+', app_token=Secret\(\*\*\*\)\) False\n"],
        "Signatures": [r"AuthenticationError\n"],
    },
    "docs/dialect.md": {"Dialect: choices that the interface leaves open": [r"Throttled 5\n"]},
}
"""What each program of a page prints, by the heading it stands under."""

ELSEWHERE = {
    "README.md": ("ci/docs/test_readme.py", {"sh"}),
    "docs/bulk.md": ("ci/docs/test_bulk.py", {"python", "sql"}),
    "docs/callbacks.md": ("ci/docs/test_callbacks.py", {"python"}),
    "docs/cli.md": ("ci/docs/test_cli.py", {"sh", "toml", "json"}),
    "docs/configuration.md": ("docs/test_configuration.py", {"python", "sh", "toml"}),
    "docs/cookbook.md": ("ci/docs/test_cookbook.py", {"python", "sh"}),
    "docs/emulator.md": ("cli/test_emulator.py", {"python", "sh", "json"}),
    "docs/machines.md": ("ci/docs/test_reloads.py", {"python", "sh", "nginx"}),
    "docs/migration.md": ("ci/docs/test_migration.py", {"python"}),
    "docs/observability.md": ("ci/docs/test_observability.py", {"python"}),
    "docs/operations.md": ("docs/test_docs.py", {"python", "json"}),
    "docs/quickstart.md": ("ci/docs/test_readme.py", {"sh"}),
    "docs/testing.md": ("ci/testing/test_suites.py", {"python"}),
    "docs/transports.md": ("ci/docs/test_transports.py", {"python"}),
}
"""Which test module runs the blocks of a page in these languages: their subject is tested there, or they are below."""

SHOWN = {"text", "{toctree}", "{include}", "{literalinclude}"}
"""What nobody could run: drawings, what programs print, the site's own."""

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "internals").glob("*.md"))
    if not path.name.endswith(".zh.md")
)
PROGRAMS = [block for page in EXPECTED for block in blocks_of(page, "python") if block.not_run is None]


@each_row("page", [*EXPECTED])
def test_a_program_runs_and_prints_what_it_should(page, tmp_path, bare_environment, capsys):
    """Each program runs in a namespace of its own, in this process: its start would cost more than most programs."""
    programs = [block for block in PROGRAMS if block.page == page]
    assert [block.title for block in programs] == [title for title, printed in EXPECTED[page].items() for _ in printed]
    bare_environment.chdir(tmp_path)
    with platform_of_a_reader() as variables:
        for name, value in variables.items():
            bare_environment.setenv(name, value)
        for block, expected in zip(programs, (text for printed in EXPECTED[page].values() for text in printed), strict=True):
            if "(Namespace)" in block.text:  # operations of its own would be there for the tests that follow
                out = run_program(block.text, tmp_path, variables)
            else:
                exec(block.text, {"__name__": "__main__"})
                out = capsys.readouterr().out
            assert re.fullmatch(expected, out), str(block)


def test_an_operation_of_your_own_has_a_method_and_a_rule(tmp_path):
    program = (ROOT / "docs" / "examples" / "own_operation.py").read_text(encoding="utf-8")
    assert run_program(program, tmp_path, {}) == "[('admin', <Role.CREATOR: '0'>), ('1001', <Role.MEMBER: '2'>)]\n"


def test_every_block_runs_in_a_test_or_says_why_not():
    left = []
    for page in PAGES:
        run = {"python"} if page in EXPECTED else set()
        if page in ELSEWHERE:
            module, languages = ELSEWHERE[page]
            assert page in (TESTS / module).read_text(encoding="utf-8")
            run |= languages
        left += [str(block) for block in blocks_of(page) if block.language not in run | SHOWN and block.not_run is None]
    assert left == []


# --------------------------------------------------------------------------------- derived pages


def test_the_derived_pages_are_what_the_code_says():
    assert docs_module("derive").outdated() == []


@each_row("block", blocks_of("docs/operations.md", "python"))
def test_an_operations_example_sends_and_gets_what_the_page_shows(block):
    """The bytes that the page shows are compared as documents, and the example runs as it stands there."""
    shown = [json.loads(each.text) for each in blocks_of("docs/operations.md", "json") if each.title == block.title]
    request, response, printed = docs_module("_derive.operations").run_example(block.text)
    answer = json.loads(response.body)
    done = {"statusCode": "000000"}
    assert shown == [json.loads(request.body), *([] if answer == done and block.title != "groups.invite" else [answer])]
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


# ------------------------------------------------------------------------------- tables of facts


def rows_of(page, head):
    """Return the first column of the table with this head."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index(head) :].split("\n\n")[0]
    return [row for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)[1:] if set(row) != {"-"}]


def test_the_api_reference_names_only_what_there_is():
    wrong = []
    for page in sorted((ROOT / "docs" / "api").glob("*.rst")):
        module = ""
        for kind, name in re.findall(r"^\.\. (auto\w+|currentmodule):: ([\w.]+)", page.read_text(), re.MULTILINE):
            full = name if name.startswith("rbim.") or name == "rbim" else f"{module}.{name}"
            module = name if kind == "currentmodule" else module
            try:
                pkgutil.resolve_name(full)
            except (ImportError, AttributeError):
                wrong.append((page.name, full))
    assert wrong == []


def test_the_readme_has_every_outcome():
    assert rows_of("README.md", "| `error.outcome` |") == [f"`Outcome.{outcome.name}`" for outcome in errors.Outcome]


def test_the_table_of_errors_has_every_error():
    named = {name for row in rows_of("docs/errors.md", "| error |") for name in re.findall(r"`(\w+)`", row)}
    assert named == set(errors.__all__) - {"Attempt", "Outcome", "RbimError", "TransportError"}
    outcomes = {name for row in rows_of("docs/errors.md", "| outcome |") for name in re.findall(r"`(\w+)`", row)}
    assert outcomes == {outcome.name for outcome in errors.Outcome}


def test_the_exit_codes_are_those_of_the_command_line():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for head, codes in (("| exit code |", Exit), ("| exit code of a job |", sorted(JobExit))):
        lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
        told = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert told == [[str(int(code)), code.meaning] for code in codes]
    assert re.search(r"in this order: ([\d, ]+)\.", text)[1] == ", ".join(str(int(code)) for code in JobExit)


def test_the_page_on_the_command_line_has_every_command_and_flag():
    told = set()
    for cell in rows_of("docs/cli.md", "| command |"):
        first, *others = re.findall(r"`(?:rbim )?([a-z -]+)`", cell)
        above = first.rpartition(" ")[0]
        told |= {first, *(f"{above} {other}".strip() for other in others)}
    assert told == set(leaves())
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in (*FLAGS, *SWITCHES) if f"`--{name}`" not in text] == []


def test_the_numbers_of_the_page_on_retries_are_the_defaults():
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    retry, budget = Retry(), RetryBudget()
    assert f"| `Retry(attempts={retry.attempts})` | {retry.attempts} |" in text
    assert f"`Retry(base={retry.base}, cap={retry.cap})`" in text
    assert (budget.share, budget.reserve) == (1 / 5, 50)
    assert "a fifth of a retry, and each retry costs one; 50 are saved up" in text


def test_the_table_of_retries_is_what_the_policy_decides():
    """The table's cells, tried on the policy: an operation of each kind after each error."""
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


async def test_the_modes_of_files_are_what_the_page_on_security_says(tmp_path):
    emulator, before = Emulator(), os.umask(0o022)
    try:
        async with (
            AsyncClient(base_url="http://emulator", credentials=emulator.credentials, transport=emulator) as client,
            SqliteInbox(tmp_path / "events.db"),
        ):
            await InviteJob(client, journal=tmp_path / "a.journal").run([])
            assert {oct((tmp_path / name).stat().st_mode & 0o777) for name in ("a.journal", "events.db")} == {"0o600"}
    finally:
        os.umask(before)
    text = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    assert re.search(r"^\| a job's journal.*\| 0600 \|$", text, re.MULTILINE)
    assert re.search(r"^\| an inbox.*\| 0600 \|$", text, re.MULTILINE)
