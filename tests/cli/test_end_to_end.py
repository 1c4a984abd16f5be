"""Wrong input to every command, files of fields, what is asked first, and what cannot be helped.

All run in this process; the platform is an emulator that is served over HTTP.
"""

from __future__ import annotations

import gc
import io
import json
import re
import sys
from pathlib import Path

import pytest

from helpers.commands import commands, leaves
from helpers.serving import emulator_served
from rbim.cli import run
from rbim.cli.exit_codes import Exit, JobExit
from rbim.cli.global_flags import GlobalFlags, split_global_flags
from rbim.emulator import Emulator
from rbim.operations.base import fields_of
from rbim.operations.catalogue import entries, namespaces

TASK = """\
bot_id = 7
task_name = "外呼"
start_date = 2099-01-31
end_date = 2099-02-01
max_concurrent = 3
min-concurrent = 1
caller = 1000
call_policy = ["default"]
"""
COPY = ["你好", "--to", "1002", "--sender", "1001"]


@pytest.fixture(scope="module")
def environment():
    """The variables that ``rbim emulator`` prints for a shell."""
    emulator = Emulator()
    with emulator_served(emulator) as server:
        credentials = emulator.credentials
        yield {
            "RBIM_BASE_URL": server.url,
            "RBIM_APP_ID": credentials.app_id,
            "RBIM_APP_TOKEN": credentials.app_token.reveal(),
        }


@pytest.fixture(autouse=True)
def reader(environment, tmp_path, bare_environment):
    """Somebody in a directory of their own, whose platform is the emulator."""
    for name, value in environment.items():
        bare_environment.setenv(name, value)
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bare_environment.chdir(tmp_path)


@pytest.fixture
def document(cli):
    """Run a command that must succeed with ``--json``; return what it prints."""

    def call(*tokens, code=Exit.DONE):
        found, out, _ = cli(*tokens, "--json")
        assert found == code
        return json.loads(out.splitlines()[-1])

    return call


@pytest.fixture
def group(document):
    return document("groups", "create", "--name", "产品公告", "--type", "vip")["group_id"]


@pytest.fixture
def members(group):
    """A file of rows."""
    rows = "".join(f"{group},{1000 + number}\n" for number in range(120))
    Path("members.csv").write_text(f"group,account\n{rows}", encoding="utf-8")
    return Path("members.csv")


# ------------------------------------------------------------------------- commands that no other file tests


def test_a_completion_has_every_command(cli):
    code, out, _ = cli("completion", "--shell", "fish", "--output", "rbim.fish")
    assert (code, "rbim.fish" in out) == (Exit.DONE, True)
    script = Path("rbim.fish").read_text(encoding="utf-8")
    assert all(name in script for name in ("set-role", "create-task", "replay", "emulator"))


# ------------------------------------------------------------------------- wrong input

WRONG = {
    "groups create": ["--name", "x", "--type", "huge"],
    "groups modify": ["g1", "--name", "x" * 51, "--permission", "keep"],
    "groups delete": ["", "--yes"],
    "groups search": ["there-is-no-such.toml"],
    "groups detail": [""],
    "groups join": ["g1", "--declared", "x" * 51],
    "groups invite": ["g1", "--members", *map(str, range(51))],
    "groups remove": ["g1", "--members", "", "--yes"],
    "groups leave": ["g1", "g2"],
    "groups set-role": ["g1", "--member", "1001", "--role", "king"],
    "calls create-task": ["there-is-no-such.toml"],
    "operations": ["groups"],
    "invite": ["there-is-no-such.csv"],
    "remove": ["there-is-no-such.csv", "--yes"],
    "job list": ["there-is-no-such-folder"],
    "job status": ["there-is-no-such.journal"],
    "job resume": ["there-is-no-such.journal"],
    "job retry": ["there-is-no-such.journal"],
    "job report": ["there-is-no-such.journal"],
    "job forget": ["there-is-no-such.journal"],
    "page": ["there-is-no-such.journal"],
    "callback serve": ["--inbox", "there/is/no/such.db", "--port", "0"],
    "callback work": ["no_such_module:router", "--inbox", "events.db"],
    "callback send": [*COPY, "--url", "ftp://nobody/"],
    "callback explain": ["there-is-no-such.http"],
    "callback replay": ["--inbox", "there-is-no-such.db"],
    "callback status": ["there-is-no-such.db"],
    "callback letters list": ["there-is-no-such.db"],
    **{f"callback letters {act}": ["there-is-no-such.db", "1"] for act in ("show", "requeue", "discard")},
    "dialect": ["there-is-no-such-field"],
    "config show": ["--profile", "nobody"],
    "config path": ["--config"],
    "help": ["there-is-no-such-page"],
    "doctor": ["--timeout", "there-is-no-time"],
    "emulator": ["--faults", "there-is-no-such.json"],
    "demo": ["--profile", "nobody"],
    "completion": ["--shell", "tcsh"],
}
WITHOUT_ARGUMENTS = {"job list"}
NEEDING = [c for c in leaves() if c.split()[0] in {"job", "invite", "remove"} and c not in WITHOUT_ARGUMENTS] + [
    *(f"callback {each}" for each in ("serve", "work", "explain", "replay", "status")),
    *(command for command in leaves() if command.startswith("callback letters ")),
    *(f"{e.namespace} {e.method}".replace("_", "-") for e in entries() if e.method != "search"),
]


def complained(answer):
    """Check that a command complained as it should, and return the complaint."""
    code, out, err = answer
    assert (code, out) == (Exit.USAGE, "")
    lines = err.splitlines()
    assert 1 <= len(lines) <= 2
    assert lines[0].startswith("rbim: ")
    return err


def test_a_flag_that_no_command_has_is_named(cli):
    for command in leaves():
        what, hint = complained(cli(*command.split(), "--no-such-flag")).splitlines()
        assert "--no-such-flag" in what or command in NEEDING
        assert hint == f"See: rbim {command} --help"


def test_what_is_missing_is_named(cli):
    for command in NEEDING:
        assert re.search(r"--[a-z-]+|FILE|JOURNAL|INBOX", complained(cli(*command.split()))), command


def test_what_is_wrong_is_named_and_with_json_it_is_a_document_too(cli):
    for command in leaves():
        words = [*command.split(), *WRONG[command]]
        named = [
            token for token in WRONG[command] if token.startswith("there") or token in {"huge", "king", "tcsh", "nobody"}
        ]
        plain = complained(cli(*words))
        assert all(token.split("/")[0] in plain for token in named), command
        code, out, err = cli(*words, "--json")
        (line,) = out.splitlines()
        error = json.loads(line)["error"]
        assert (code, error["exit_code"], error["class"]) == (Exit.USAGE, Exit.USAGE, "InvalidRequest")
        assert (error["outcome"], error["code"], error["status"]) == ("not sent", None, None)
        assert error["docs"] == "errors#invalidrequest"
        assert err.splitlines() == [f"rbim: {error['message']}", *(error["hint"] or "").splitlines()]
        assert err == plain or command in {"callback serve", "callback work", "completion", "emulator", "help", "page"}


def test_a_group_of_commands_alone_shows_its_help_and_names_what_is_not_there(cli):
    for command in set(commands()) - set(leaves()):
        code, out, err = cli(*command.split())
        assert (code, err, command) == (Exit.DONE, "", command)
        assert out.startswith(f"Usage: rbim {command} COMMAND")
        assert "sned" in complained(cli(*command.split(), "sned"))


# --------------------------------------------------------------------------- files of fields


def test_a_file_that_cannot_be_used_is_named_with_its_key(cli):
    for text, named in [
        ("bot_id = 'seven'", ["task.toml, key bot_id", "'seven' is not a whole number"]),
        ("start_date = 'soon'", ["task.toml, key start_date", "a date such as 2026-01-31"]),
        ("isrecord = 'perhaps'", ["task.toml, key isrecord", "perhaps"]),
        ("callr = 1", ["task.toml: unknown key callr; did you mean caller?"]),
        ("xyz = 1", ["task.toml: unknown key xyz; known are", "bot_id"]),
        ("bot_id = 1\nbot-id = 2", ["task.toml: bot_id and bot-id are the same field"]),
        ("bot_id", ["task.toml: not TOML"]),
        ("caller = ", ["task.toml: not TOML", "line 8"]),
    ]:
        key = text.split(" ", maxsplit=1)[0]
        others = "".join(f"{line}\n" for line in TASK.splitlines() if line.split(" ")[0] != key)
        Path("task.toml").write_text(f"{others}{text}\n", encoding="utf-8")
        err = complained(cli("calls", "create-task", "task.toml"))
        assert all(words in err for words in named), (text, err)


def test_a_file_that_cannot_be_read_is_named(cli):
    Path("latin.toml").write_bytes(b"name = '\xe9'")
    assert "latin.toml: not UTF-8" in complained(cli("groups", "create", "latin.toml"))
    assert "Is a directory" in complained(cli("groups", "create", "."))


def test_flags_go_before_the_file(document, group):
    Path("group.toml").write_text(f"group_id = '{group}'\nname = '文件'\npermission = 'private'\ndeclared = '说明'", "utf-8")
    assert document("groups", "modify", "--file", "group.toml", "--name", "标志") == {}
    assert (document("groups", "detail", group)["name"], document("groups", "detail", group)["declared"]) == ("标志", "说明")
    Path("group.toml").write_text(f"group_id = '{group}'\nmembers = '1001'\n", "utf-8")
    assert document("groups", "invite", "--file", "group.toml")["invited"] == ["1001"]


def test_every_field_of_every_operation_may_be_in_the_file(cli):
    for entry in entries():
        command = f"{entry.namespace} {entry.method}".replace("_", "-").split()
        fields = [field.name for field in fields_of(entry.operation)]
        Path("x.toml").write_text("".join(f"{name} = ''\n" for name in fields), encoding="utf-8")
        assert "unknown key" not in cli(*command, "--file", "x.toml")[2]
        Path("x.toml").write_text("json = true", encoding="utf-8")
        assert "x.toml: unknown key json" in complained(cli(*command, "--file", "x.toml"))


OWN = """
from __future__ import annotations
from attrs import field, frozen
from rbim.operations.groups import GroupOperation, Success
from rbim.operations import Method, Namespace, operation, text

@operation("DropList", destroys=lambda op: f"drop list {op.name}")
@frozen(kw_only=True)
class DropList(GroupOperation[Success]):
    "Drop a list."
    name: str = field(validator=text())
    file: str = ""
    json: bool = False
    yes: int = 0
    profile: str = ""

class Lists(Namespace):
    "Lists."
    drop = Method(DropList)
"""


def test_an_operation_of_ones_own_asks_too_and_its_fields_go_before_our_flags(cli, monkeypatch):
    Path("own_lists.py").write_text(OWN, encoding="utf-8")
    Path("x.toml").write_text("name = 'blue'\nyes = 3\nfile = 'f'", encoding="utf-8")
    monkeypatch.setenv("RBIM_IMPORT", "own_lists")
    try:
        shown = cli("lists", "drop", "--help")[1]
        assert all(flag in shown for flag in ("--file STR", "--rbim-file", "--no-json", "--rbim-json", "--yes INT"))
        err = complained(cli("lists", "drop", "--name", "blue", "--yes", "3"))
        assert "this would permanently drop list blue" in err
        assert err.endswith("To skip the confirmation: rbim lists drop --name blue --yes 3 --rbim-yes\n")
        code, _, err = cli("lists", "drop", "--rbim-file", "x.toml", "--rbim-yes")
        assert (code, "DropList: code " in err) == (Exit.REFUSED, True)
        words = ["lists", "drop", "--name", "blue", "--rbim-yes", "--profile", "flat"]
        assert split_global_flags(words) == (GlobalFlags(words=tuple(words)), words)
        code, _, err = cli(*words)
        assert (code, "DropList: code " in err) == (Exit.REFUSED, True)
        assert "nobody" in complained(cli("--profile", "nobody", *words))  # before the command it is ours
    finally:
        vars(sys.modules.pop("own_lists")).clear()  # lest a function that lives on keeps the namespace
        gc.collect()
    assert "lists" not in namespaces()


# ------------------------------------------------------------------------- asking first


class Terminal(io.StringIO):
    """Standard input or standard error of somebody who sits at a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def typing(monkeypatch):
    """Somebody who types; what is shown to them is returned."""

    def sit_down(keys):
        shown = Terminal()
        monkeypatch.setattr(sys, "stdin", Terminal(keys))
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    return sit_down


def test_somebody_at_a_terminal_is_asked(typing, group, document):
    for keys in ("n\n", "\n", "", "YES\n"):
        shown, goes_on = typing(keys), keys == "YES\n"
        assert run(["groups", "delete", group]) == (Exit.DONE if goes_on else Exit.USAGE)
        assert shown.getvalue().startswith(f"This will permanently delete group {group}. Continue? [y/N] ")
        assert ("not confirmed: nothing was sent" in shown.getvalue()) is not goes_on
        assert bool(document("groups", "search", "--group-id", group)["groups"]) is not goes_on


def test_what_would_be_done_is_said_where_nobody_can_be_asked(cli, group, members, document):
    for tokens, what in [
        (["groups", "delete", group], f"delete group {group}"),
        (["groups", "remove", group, "--members", "1", "2"], f"remove 1, 2 from group {group}"),
        (["groups", "remove", group, "--members", *"12345"], f"remove 5 accounts from group {group}"),
        (["remove", members], "remove every account in members.csv"),
    ]:
        what_is_said, hint = complained(cli(*tokens)).splitlines()
        assert (
            what_is_said == f"rbim: nothing was sent: this would permanently {what}, and there is no terminal to confirm it"
        )
        assert hint == f"To skip the confirmation: {' '.join(map(str, ('rbim', *tokens, '--yes')))}"
    assert document("groups", "detail", group)["count"] == 1
    assert not Path("members.csv.remove.journal").exists()


def test_a_job_that_removes_says_how_many(typing, members, group):
    shown = typing("n\n")
    assert run(["remove", str(members)]) == JobExit.USAGE
    assert shown.getvalue().startswith("This will permanently remove 120 accounts from 1 group. Continue? [y/N] ")
    assert not Path("members.csv.remove.journal").exists()
    assert group


# ------------------------------------------------------------------------- what cannot be helped


def test_a_namespace_of_somebody_elses_that_breaks_is_two_lines(cli, monkeypatch):
    monkeypatch.setattr("rbim.cli.front_page.front_page", lambda: 1 / 0)
    code, _, err = cli("--help")
    assert (code, len(err.splitlines())) == (Exit.FAULT, 2)
