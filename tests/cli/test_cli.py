"""The command line: commands derived from the catalogue, what they print, and what their exit codes say."""

from __future__ import annotations

import gc
import inspect
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping  # noqa: TC003  # attrs resolves it
from datetime import date, datetime, time, timedelta, timezone
from enum import IntEnum
from importlib import import_module
from typing import ClassVar, Literal, Optional, get_args

import pytest
from attrs import field, frozen
from cyclopts import App, CycloptsError

from helpers.serving import served
from rbim.cli import Exit, build_app, run
from rbim.cli.app import build, run_app
from rbim.cli.operations.commands import _folded
from rbim.cli.operations.flags import flags_of, help_of
from rbim.cli.output import document_of, show
from rbim.credentials import Credentials
from rbim.emulator import Emulator
from rbim.operations import catalogue
from rbim.operations.base import Endpoint, Operation, operation
from rbim.operations.call_tasks import CallPolicy, NoCallPolicy, Weekday, default_no_call_policies
from rbim.operations.groups import GROUP, GroupFound, GroupsFound, GroupType, ModifyGroup, Permission, Role, Success
from rbim.testing.conformance.server import RawServer, reply

TASK = {
    "--bot-id": "7",
    "--task-name": "外呼",
    "--start-date": "2099-01-31",
    "--end-date": "2099-02-01",
    "--max-concurrent": "3",
    "--min-concurrent": "1",
    "--caller": "1000",
}
TASK_FLAGS = [token for pair in TASK.items() for token in pair]
PATIENCE = 60


@pytest.fixture(scope="module")
def served_platform():
    emulator = Emulator(credentials=Credentials(app_id="app", app_token="the-token"))
    emulator.never_logged_in("stranger")
    with served(emulator.asgi) as url:
        yield emulator, url


@pytest.fixture
def platform(served_platform, monkeypatch):
    emulator, url = served_platform
    configure(monkeypatch, RBIM_BASE_URL=url, RBIM_APP_ID="app", RBIM_APP_TOKEN="the-token")
    return emulator


@pytest.fixture
def cli(capsys):
    def call(*tokens):
        code = run(tokens)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture
def group(platform, cli):
    code, out, _ = cli("groups", "create", "--name", "产品公告", "--type", "vip", "--json")
    assert code == Exit.DONE
    made = json.loads(out)["group_id"]
    assert made in platform.state.groups
    return made


def configure(monkeypatch, **variables):
    for name in ("RBIM_BASE_URL", "RBIM_APP_ID", "RBIM_APP_TOKEN", "RBIM_APP_TOKEN_FILE", "RBIM_USER_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def in_fresh_interpreter(code, *, env=None):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        encoding="utf-8",
        env=env,
    )


def weekly(day):
    return NoCallPolicy.weekdays(f"weekly {day}", [Weekday(day)])


def read(kind, *tokens):
    """Make an operation from the flags of its command alone."""
    made = []

    def command(*args, **kwargs):
        made.append(kind(**signature.bind(*args, **kwargs).arguments))

    signature = command.__signature__ = inspect.Signature(flags_of(kind))
    command.__annotations__ = {}
    app = App(default_command=command)
    app(list(tokens), exit_on_error=False, print_error=False, result_action="return_value")
    return made[0]


# ---------------------------------------------------------------- commands from the catalogue


@pytest.mark.parametrize("entry", list(catalogue.entries()), ids=lambda entry: f"{entry.namespace}.{entry.method}")
def test_every_operation_is_a_command_with_a_flag_for_every_field(cli, entry):
    code, out, _ = cli(entry.namespace, entry.method.replace("_", "-"), "--help")

    assert code == Exit.DONE
    assert inspect.getdoc(entry.operation).split(".")[0].split()[0] in out
    for attribute in entry.operation.__attrs_attrs__:
        assert re.search(rf"--(\[no-\])?{attribute.name.replace('_', '-')}", out)
    assert "token" not in out.lower()


def test_groups_live_and_end_by_command(platform, cli, group):
    assert cli("groups", "modify", group, "--name", "内部测试", "--permission", "private") == (0, "done\n", "")
    assert platform.state.groups[group].permission is Permission.PRIVATE
    code, out, _ = cli("groups", "invite", group, "--members", "a", "b", "stranger", "--members", "c", "--json")
    assert code == Exit.DONE
    assert [fail["member"] for fail in json.loads(out)["fails"]] == ["stranger"]
    assert cli("groups", "set-role", group, "--member", "a", "--role", "administrator")[0] == Exit.DONE
    assert platform.state.groups[group].members["a"] is Role.ADMINISTRATOR
    assert cli("groups", "leave", group, "--user-name", "b")[0] == Exit.DONE
    assert cli("groups", "remove", "--group-id", group, "--members", "c", "--yes")[0] == Exit.DONE
    assert list(platform.state.groups[group].members) == ["admin", "a"]
    assert cli("groups", "delete", group, "--yes")[0] == Exit.DONE
    assert group not in platform.state.groups


@pytest.mark.parametrize(
    ("fails", "code", "lists"),
    [
        ('[{"member":" app#b ","reason":"r"}]', 0, {"invited": ["a", "c"], "unknown": [], "fails": 1}),
        ('[{"member":"b"},{"reason":"r"}]', Exit.UNKNOWN, {"invited": [], "unknown": ["a", "c"], "fails": 2}),
        ('"some"', Exit.UNKNOWN, {"invited": [], "unknown": ["a", "b", "c"], "fails": 1}),
    ],
)
def test_an_invitation_says_who_was_invited_and_who_may_not_have_been(cli, monkeypatch, fails, code, lists):
    with RawServer(reply(f'{{"statusCode":"000000","fails":{fails}}}'.encode())) as server:
        configure(monkeypatch, RBIM_BASE_URL=server.url(), RBIM_APP_ID="app", RBIM_APP_TOKEN="the-token")
        invitation = ("groups", "invite", "g1", "--members", "a", "b", "c")
        done, out, err = cli(*invitation, "--json")
        assert (done, "unknown: " in err) == (code, code != 0)
        answer = json.loads(out)
        assert {"invited": answer["invited"], "unknown": answer["unknown"], "fails": len(answer["fails"])} == lists
        done, out, err = cli(*invitation)
        assert (done, "may have been refused" in err) == (code, code != 0)
        assert re.search(r"^invited\b", out, re.MULTILINE)
        assert re.search(rf"^fails: {lists['fails']}$", out, re.MULTILINE)


def test_search_and_detail_answer_in_json(cli, group):
    _, found, _ = cli("groups", "search", "--group-id", group, "--json")
    _, by_position, _ = cli("groups", "detail", group, "--json")
    _, by_flag, _ = cli("groups", "detail", "--group-id", group, "--json")

    row = {"group_id": group, "name": "产品公告", "type": "4", "count": 1, "count_text": "1", "permission": "0"}
    assert json.loads(found) == {"groups": [row]}
    detail = json.loads(by_flag)
    assert by_position == by_flag
    assert (detail["owner"], detail["type"], detail["group_domain"]) == ("admin", "4", None)
    assert datetime.fromisoformat(detail["date_created"]).utcoffset() == timedelta(hours=8)


@pytest.mark.parametrize("written", ["paid_300", "PAID_300", "paid-300", "1"])
def test_choices_are_named_or_as_on_the_wire(platform, cli, written):
    code, out, _ = cli("groups", "create", "--name", "x", f"--type={written}", "--target", "discussion", "--json")

    assert code == Exit.DONE
    assert platform.state.groups[json.loads(out)["group_id"]].type is GroupType.PAID_300


@pytest.mark.parametrize(
    ("more", "policies"),
    [
        ([], None),
        (["--call-policy", "none"], ()),
        (["--call-policy", '{"type": 0, "policy": []}'], (CallPolicy(()),)),
        (
            [flag for day in (5, 6) for flag in ("--call-policy", json.dumps(CallPolicy([weekly(day)]).wire))],
            (CallPolicy([weekly(5)]), CallPolicy([weekly(6)])),
        ),
        (["--call-policy", "default"], default_no_call_policies()),
        (
            ["--call-policy", NoCallPolicy.weekdays("weekend", [Weekday.SATURDAY]).entry.decode(), "default"],
            (NoCallPolicy.weekdays("weekend", [Weekday.SATURDAY]), *default_no_call_policies()),
        ),
    ],
)
def test_a_call_task_is_made_with_its_policies(platform, cli, more, policies):
    code, out, _ = cli("calls", "create-task", *TASK_FLAGS, "--isrecord", *more, "--json")

    assert code == Exit.DONE
    request = platform.state.tasks[json.loads(out)["task_id"]].request
    assert (request.start_date, request.isrecord, request.caller) == (date(2099, 1, 31), True, "1000")
    assert request.call_policy == policies


def test_no_policies_in_a_file_are_none_and_not_the_default(platform, cli, tmp_path):
    for name, text in {"none": "call_policy = []", "unsaid": ""}.items():
        path = tmp_path / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        code, out, _ = cli("calls", "create-task", *TASK_FLAGS, "--file", str(path), "--json")
        assert code == Exit.DONE
        request = platform.state.tasks[json.loads(out)["task_id"]].request
        assert request.call_policy == {"none": (), "unsaid": None}[name]


def test_an_empty_announcement_clears_it_and_an_unsaid_one_keeps_it(platform, cli, group):
    modify = ("groups", "modify", group, "--name", "x", "--permission", "keep")
    for more, left in [(("--declared", "欢迎"), "欢迎"), ((), "欢迎"), (("--declared", ""), "")]:
        assert cli(*modify, *more)[0] == Exit.DONE
        assert platform.state.groups[group].declared == left


def test_permission_may_be_kept(platform, cli, group):
    code, _, _ = cli("groups", "modify", group, "--name", "x", "--permission", "keep")

    assert code == Exit.DONE
    assert platform.requests.of(ModifyGroup)[-1] == ModifyGroup(group_id=group, name="x", permission=None)


SOMEBODY_ELSES = """
from __future__ import annotations
from attrs import field, frozen
from rbim.operations.groups import GroupOperation, Success
from rbim.operations import Method, Namespace, operation, text

@operation("ArchiveGroup")
@frozen(kw_only=True)
class ArchiveGroup(GroupOperation[Success]):
    "Put a group away until somebody asks for it."
    group_id: str = field(validator=text())
    for_good: bool = False
    as_json: bool = False  # the name of a parameter that every command has once had

class Archive(Namespace):
    "Groups that rest."
    put_away = Method(ArchiveGroup)
"""


@pytest.mark.usefixtures("platform")
def test_an_operation_declared_anywhere_is_a_command(cli, tmp_path, monkeypatch):
    (tmp_path / "somebody_elses.py").write_text(SOMEBODY_ELSES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("somebody_elses")
    try:
        assert "put-away" in build_app()["archive"]
        assert "Groups that rest: put-away." in cli("--help")[1]
        assert "archive.put_away" in cli("operations")[1]
        code, _, err = cli("archive", "put-away", "g1", "--for-good")
        assert code == Exit.REFUSED
        assert "ArchiveGroup: code " in err
    finally:
        vars(sys.modules.pop("somebody_elses")).clear()  # lest a function that lives on keeps the namespace
        gc.collect()
    assert "archive" not in catalogue.namespaces()


@pytest.mark.parametrize("where", ["path", "working directory"])
def test_the_environment_names_modules_with_operations_of_ones_own(where, cli, tmp_path, monkeypatch):
    (tmp_path / "somebody_elses.py").write_text(SOMEBODY_ELSES, encoding="utf-8")
    if where == "path":
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RBIM_IMPORT", "json, somebody_elses")
    before = list(sys.path)
    try:
        assert "Groups that rest: put-away." in cli("--help")[1]
        assert sys.path == before
    finally:
        sys.modules.pop("somebody_elses", None)
        gc.collect()


def test_a_module_that_cannot_be_imported_is_named(cli, monkeypatch):
    monkeypatch.setenv("RBIM_IMPORT", "nobody_has_this")
    code, out, err = cli("operations")
    assert (code, out) == (Exit.USAGE, "")
    assert err == "rbim: cannot import nobody_has_this, which RBIM_IMPORT names: No module named 'nobody_has_this'\n"


class Colour(IntEnum):
    RED = 1
    DEEP_BLUE = 2


@operation("TryEverything")
@frozen(kw_only=True)
class TryEverything(Operation[Success]):
    """``colour`` is RED unless told; see :class:`~rbim.operations.groups.Role`."""

    endpoint: ClassVar[Endpoint] = GROUP
    whole: int
    part: float = 0.5
    at: time = time(9)
    when: datetime | None = None
    maybe: bool | None = None
    sure: bool = True
    undecided: bool | None
    colour: Colour | None = Colour.RED
    colours: frozenset[Colour] = frozenset()
    either: Colour | str = "none"
    word: Literal["up", "down"] = "up"
    old: Optional[date] = None  # noqa: UP045  # some write it so
    deep: Mapping[str, object] = field(factory=dict)
    texts: list[str] = field(factory=list)
    inner: int = field(default=3, init=False)


def test_types_have_flags_that_read_them():
    told = read(
        TryEverything,
        *("--whole", "-5", "--part", "1.5", "--at", "21:30", "--when", "2026-01-31T09:00:00+08:00", "--no-maybe"),
        *("--no-sure", "--undecided", "keep", "--colour", "keep", "--colours", "red", "2", "--either", "deep-blue"),
        *("--word", "down", "--old", "2026-01-31", "--deep", '{"a": [1]}', "--texts", "x", "y"),
    )

    assert told == TryEverything(
        whole=-5,
        part=1.5,
        at=time(21, 30),
        when=datetime(2026, 1, 31, 9, tzinfo=timezone(timedelta(hours=8))),
        maybe=False,
        sure=False,
        undecided=None,
        colour=None,
        colours=frozenset(Colour),
        either=Colour.DEEP_BLUE,
        word="down",
        old=date(2026, 1, 31),
        deep={"a": [1]},
        texts=["x", "y"],
    )
    assert read(TryEverything, "--whole", "1", "--undecided", "yes", "--either", "mauve").either == "mauve"


@pytest.mark.parametrize(
    ("flag", "written", "said"),
    [
        ("--deep", "{a", "a JSON value is required"),
        ("--at", "25:00", "'25:00' is not a time of day such as 09:00:00"),
        ("--part", "half", "'half' is not a number"),
        ("--undecided", "perhaps", "'perhaps' is not one of yes, no"),
        ("--colours", "mauve", "'mauve' is not one of red, deep_blue"),
    ],
)
def test_what_cannot_be_read_is_said(flag, written, said):
    told = {"--whole": "1", "--undecided": "no", flag: written}

    with pytest.raises(CycloptsError, match=re.escape(said)):
        read(TryEverything, *(token for pair in told.items() for token in pair))


def test_what_is_not_told_keeps_the_operations_own_default():
    assert read(TryEverything, "--whole", "1", "--undecided", "no") == TryEverything(whole=1, undecided=False)


def test_docstrings_speak_of_flags():
    assert help_of(TryEverything) == "--colour is RED unless told; see Role."
    modify = {entry.method: entry.operation for entry in catalogue.entries()}["modify"]
    assert "keep leaves it out" in " ".join(help_of(modify).split())


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (["groups", "detail"], "--group-id"),
        (["groups", "detail", ""], "--group-id"),
        (["groups", "detail", "g1", "g2"], "g2"),
        (["groups", "create", "--name", "x", "--type", "huge"], "temporary"),
        (["groups", "create", "--name", "x" * 51, "--type", "vip"], "50"),
        (["groups", "create", "--name", "x", "--type", "vip", "--title", "y"], "--title"),
        (["groups", "invite", "g1", "--members"], "members"),
        (["groups", "invite", "g1", "--members", *map(str, range(51))], "50"),
        (["groups", "rename"], "rename"),
        (["grups"], "groups"),
        (["calls", "create-task", *TASK_FLAGS, "--start-date", "31.1.2099"], "--start-date"),
        (["calls", "create-task", *TASK_FLAGS[2:], "--bot-id", "seven"], "whole number"),
        (["calls", "create-task", *TASK_FLAGS[:4], "--start-date", "2000-01-01", *TASK_FLAGS[6:]], "--start-date"),
        (["calls", "create-task", *TASK_FLAGS, "--call-policy", "nights"], "policy"),
    ],
)
@pytest.mark.usefixtures("platform")
def test_wrong_input_is_named_in_two_lines(cli, tokens, named):
    code, out, err = cli(*tokens)

    assert (code, out) == (Exit.USAGE, "")
    what, hint = err.splitlines()
    assert what.startswith("rbim: ")
    assert named in what
    assert re.fullmatch(r"See: rbim( \S+)* --help", hint)


@pytest.mark.parametrize("missing", ["RBIM_BASE_URL", "RBIM_APP_ID", "RBIM_APP_TOKEN"])
def test_missing_configuration_is_named(monkeypatch, cli, missing):
    told = {"RBIM_BASE_URL": "http://127.0.0.1:9", "RBIM_APP_ID": "app", "RBIM_APP_TOKEN": "t"}
    configure(monkeypatch, **{name: value for name, value in told.items() if name != missing})

    code, _, err = cli("groups", "detail", "g1")

    assert code == Exit.USAGE
    assert missing in err.splitlines()[0]
    assert "RBIM_APP_TOKEN_FILE" in err.splitlines()[1]


def test_the_token_may_come_from_a_file(monkeypatch, served_platform, cli, tmp_path):
    file = tmp_path / "token"
    file.write_text("the-token\n", encoding="utf-8")
    file.chmod(0o600)
    configure(monkeypatch, RBIM_BASE_URL=served_platform[1], RBIM_APP_ID="app", RBIM_APP_TOKEN_FILE=str(file))

    assert cli("groups", "search", "--name", "nothing-like-it") == (Exit.DONE, "groups: 0\n", "")


@pytest.mark.usefixtures("platform")
def test_a_refusal_shows_the_code(cli):
    code, out, err = cli("groups", "detail", "g0")

    assert (code, out) == (Exit.REFUSED, "")
    assert "900404" in err
    assert "outcome refused" in err


@pytest.mark.usefixtures("platform")
def test_a_wrong_token_is_hinted_at_and_never_shown(monkeypatch, cli):
    monkeypatch.setenv("RBIM_APP_TOKEN", "another-token")

    code, _, err = cli("groups", "detail", "g0")

    assert code == Exit.REFUSED
    assert "RBIM_APP_TOKEN" in err.splitlines()[1]
    assert "another-token" not in err


@pytest.mark.usefixtures("platform")
def test_what_was_not_sent_may_be_repeated(monkeypatch, cli):
    monkeypatch.setenv("RBIM_BASE_URL", "http://127.0.0.1:1")

    code, _, err = cli("groups", "create", "--name", "x", "--type", "vip")

    assert code == Exit.NOT_SENT
    assert "may be repeated" in err


async def broken(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 502, "headers": [(b"content-type", b"text/html")]})
    await send({"type": "http.response.body", "body": b"<h1>\x1b[31mBad Gateway</h1>"})


@pytest.mark.usefixtures("platform")
def test_an_unknown_outcome_has_its_own_code(monkeypatch, cli):
    with served(broken) as url:
        monkeypatch.setenv("RBIM_BASE_URL", url)
        code, _, err = cli("groups", "create", "--name", "x", "--type", "vip")

        reading, _, hint = cli("groups", "detail", "g8")

    assert (code, reading) == (Exit.UNKNOWN, Exit.UNKNOWN)
    assert "check its state before repeating" in err
    assert "\x1b" not in err
    assert hint.splitlines()[1:] == [
        "The command only reads: it may be repeated.",
        "Documentation: docs/errors.md#protocolerror",
    ]


@pytest.mark.usefixtures("platform")
def test_the_section_about_an_error_is_named(cli, capsys):
    refused = "Documentation: docs/errors.md#notfound"
    assert cli("groups", "detail", "g404")[2].splitlines()[-1] == refused
    assert "Documentation: " not in cli("groups", "detail", "")[2]
    assert run(["groups", "detail", "", "--debug"]) == Exit.USAGE
    assert capsys.readouterr().err.splitlines()[-1] == "Documentation: docs/errors.md#invalidrequest"


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["groups", "create", "--name", "", "--type", "vip"], "--name: must not be empty"),
        (["groups", "detail", ""], "--group-id: must not be empty"),
        (["groups", "invite", "g8", "--members", ""], "--members: each account is a text that is not empty, not ''"),
    ],
)
def test_what_is_wrong_with_a_field_is_said_of_its_flag(cli, tokens, expected):
    code, out, err = cli(*tokens)

    assert (code, out) == (Exit.USAGE, "")
    assert err.splitlines()[0] == f"rbim: {expected}"


SEVERAL = [
    (entry.namespace, entry.method, flag.lstrip("-"))
    for entry in catalogue.entries()
    for parameter in flags_of(entry.operation)
    for kind, (flag,) in [(get_args(parameter.annotation)[0], get_args(parameter.annotation)[1].name)]
    if kind == list[str] and entry.operation.__module__.startswith("rbim.") and flag != "--call-policy"
]


def test_the_flags_that_take_several_accounts():
    assert SEVERAL == [("groups", "invite", "members"), ("groups", "remove", "members")]


@pytest.mark.parametrize(("namespace", "method", "flag"), SEVERAL)
@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["1001,1002"], ": 1001 1002"),
        (["1001", "1002,1003"], ": 1002 1003"),
        (["1001,"], ": 1001"),
        (["1001, 1002"], ": 1001 1002"),
        (["1001\uff0c1002"], ": 1001 1002"),
        (["1001;1002"], ": 1001 1002"),
        (["1001\u3001 1002\uff1b1003"], ": 1001 1002 1003"),
        ([","], ""),
    ],
)
def test_values_that_commas_join_are_refused_with_the_right_form(platform, cli, namespace, method, flag, words, right):
    given = [namespace, method, "g8", f"--{flag}", *words, *(["--yes"] if method == "remove" else [])]
    sent = len(platform.requests)

    code, _, err = cli(*given)

    assert code == Exit.USAGE
    assert f"separate values with spaces{right} (" in err
    assert "use --file)" in err
    assert len(platform.requests) == sent


def test_an_account_with_a_comma_can_be_given_in_a_file(platform, cli, group, tmp_path):
    fields = tmp_path / "fields.toml"
    fields.write_text(f'group_id = "{group}"\nmembers = ["a,b"]\n')

    assert cli("groups", "invite", "--file", str(fields))[0] == Exit.DONE

    assert platform.requests.records[-1].operation.members == ("a,b",)


def test_an_interrupt_has_its_own_code(capsys):
    def wait():
        raise KeyboardInterrupt

    app = build_app()
    app.command(wait)

    assert run_app(app, ["wait"]) == Exit.INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_a_reader_who_leaves_is_no_error():
    code = "from rbim.cli import main; main(['operations'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
        process.wait(PATIENCE)

    assert err == b""


# ---------------------------------------------------------------- answers


def test_answers_are_aligned_for_people(cli, group):
    _, detail, _ = cli("groups", "detail", group)
    _, found, _ = cli("groups", "search", "--group-id", group)

    lines = [line.rstrip() for line in detail.splitlines()]
    assert "name          产品公告" in lines
    assert "type          vip (4)" in lines
    assert "declared      -" in lines
    assert not any(line.startswith("count_text") for line in lines)
    assert [line.split() for line in found.splitlines()][1::2] == [
        ["group_id", "name", "type", "count", "permission"],
        [group, "产品公告", "vip", "(4)", "1", "open", "(0)"],
    ]


def test_answers_cannot_act_on_a_terminal(capsys):
    show(GroupsFound(groups=(GroupFound(name="[red]a\x1b[2Jb\ud800", extra={"more": {"k": [1]}}),)))

    out = capsys.readouterr().out
    assert "[red]a\ufffd[2Jb\ufffd" in out
    assert '{"k": [1]}' in out


def test_answers_of_any_kind_are_shown(capsys):
    show(("a", 1))
    show(None)

    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["answer", '["a",', "1]"], ["answer", "-"]]
    assert document_of({Colour.RED: {time(9)}, "x": 1j}) == {"1": ["09:00:00"], "x": "1j"}


def test_json_is_valid_on_any_output(group, monkeypatch):
    code = f"from rbim.cli import main; main(['groups', 'detail', {group!r}, '--json'])"
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")

    done = in_fresh_interpreter(code)

    assert done.returncode == Exit.DONE
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["name"] == "产品公告"


# ---------------------------------------------------------------- the rest


def test_operations_lists_the_catalogue(cli):
    code, out, _ = cli("operations", "--json")
    rows = json.loads(out)
    _, shown, _ = cli("operations")

    assert code == Exit.DONE
    assert [row["operation"] for row in rows] == [f"{entry.namespace}.{entry.method}" for entry in catalogue.entries()]
    assert {row["repeat"] for row in rows} == {"safe", "idempotent", "never", "depends"}
    for row in rows:
        assert re.search(rf"{row['operation']} +{row['wire']} +{row['repeat']} +{re.escape(row['path'])}", shown)


def test_paths_are_folded_between_segments():
    assert _folded("/{api_version}/Application/{app_id}/IM", 27).split("\n") == [
        "/{api_version}/Application",
        "/{app_id}/IM",
    ]
    assert _folded("/{api_version}/Application", 5).split("\n") == ["/{api_version}", "/Application"]


def test_version(cli):
    from rbim import __version__

    assert cli("--version") == (Exit.DONE, f"rbim {__version__}\n", "")


def test_without_a_command_help_is_shown(cli):
    code, out, _ = cli()

    assert code == Exit.DONE
    assert "demo" in out


@pytest.mark.parametrize("module", ["cyclopts", "rich"])
def test_a_missing_extra_is_one_line_that_names_the_pip_command(module):
    code = f"import sys; sys.modules[{module!r}] = None; from rbim.cli import main; main(['operations'])"

    done = in_fresh_interpreter(code)

    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert done.stderr == (f'rbim: this command needs {module}; install it with: python -m pip install "rbim[cli]"\n')


def test_the_demo_names_its_second_extra(monkeypatch, cli):
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    code, out, err = cli("demo")

    assert (code, out) == (Exit.USAGE, "")
    assert err == 'rbim: this command needs uvicorn; install it with: python -m pip install "rbim[cli,server]"\n'


def test_a_package_that_is_broken_is_not_called_missing(tmp_path):
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("import nothing_of_the_kind\n", encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from rbim.cli import main; main(['operations'])"

    done = in_fresh_interpreter(code)

    assert "nothing_of_the_kind" in done.stderr
    assert "pip install" not in done.stderr


def test_help_imports_nothing_that_sends():
    code = (
        "import sys\n"
        "import rbim.cli\n"
        "assert not {'cyclopts', 'rich'} & set(sys.modules)\n"
        "code = rbim.cli.run(['--help'])\n"
        "late = {'httpx', 'uvicorn', 'anyio', 'cattrs', 'asyncio', 'sqlite3'} & set(sys.modules)\n"
        "sys.exit(f'imported: {late}' if late else code)\n"
    )

    done = in_fresh_interpreter(code)

    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------ what a command builds and imports


@pytest.mark.parametrize(
    ("words", "namespaces", "methods"),
    [
        (["groups", "leave", "g1"], {"groups"}, {"leave"}),
        (["groups", "set-role", "--help"], {"groups"}, {"set-role"}),
        (["calls", "--help"], {"calls"}, {"create-task"}),
        (["invite", "rows.csv"], set(), set()),
    ],
)
def test_only_the_commands_that_the_words_name_are_built(words, namespaces, methods):
    app = build(words)

    found = {name for name in catalogue.namespaces() if name in app}
    assert found == namespaces
    assert {name for namespace in found for name in app[namespace] if not name.startswith("-")} == methods


@pytest.mark.parametrize(
    "words", [["groups"], ["groups", "--help"], ["groups", "leeve", "g1"], ["group", "leave"], ["--", "calls"]]
)
def test_all_commands_are_built_that_a_message_may_list(words):
    app = build(words)

    assert len([name for name in app["groups"] if not name.startswith("-")]) == len(list(catalogue.entries("groups")))
    assert ("calls" in app) == (words[0] != "groups")


@pytest.fixture
def imported_by(tmp_path):
    """Run a command of a new process, in an empty folder; return its exit code and the modules that it imported."""

    def call(*tokens, **variables):
        code = f"import sys; from rbim.cli import run; code = run({list(tokens)!r}); print(*sys.modules); sys.exit(code)"
        done = in_fresh_interpreter(
            f"import os; os.chdir({str(tmp_path)!r}); {code}",
            env=os.environ | {"RBIM_TRANSPORT": "asyncio", "XDG_CONFIG_HOME": str(tmp_path / "config"), **variables},
        )
        assert done.stdout, done.stderr
        return done.returncode, set(done.stdout.splitlines()[-1].split())

    return call


HTTP = {"aiohttp", "httpcore", "httpx", "httpx2", "trio", "uvicorn"}
DRAWING = {"cyclopts.help", "rich.console", "rich.progress_bar", "rich.table", "rich.text"}
OF_FILES = {"platformdirs", "tomllib"} if sys.platform == "linux" else {"tomllib"}
NOT_FOR_AN_OPERATION = {"anyio", "sniffio", "sqlite3", "zoneinfo", "rbim.bulk", "rbim.cli.jobs", "rbim.client.observers"}
NOT_FOR_A_JOB = {"matplotlib", "zoneinfo", "rbim.cli.operations.commands", "rbim.operations.call_tasks"}


def test_an_operation_imports_only_what_it_needs(imported_by, group):
    code, modules = imported_by("groups", "modify", group, "--name", "x", "--permission", "keep")

    assert code == Exit.DONE
    assert "rbim.transports.asyncio.transport" in modules
    assert modules & (HTTP | DRAWING | OF_FILES | NOT_FOR_AN_OPERATION) == set()


@pytest.mark.usefixtures("platform")
def test_an_operation_that_cannot_connect_imports_no_more(imported_by):
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        url = "http://{}:{}".format(*refusing.getsockname())
        code, modules = imported_by("groups", "leave", "g1", RBIM_BASE_URL=url)

    assert code == Exit.NOT_SENT
    assert modules & (HTTP | DRAWING | OF_FILES | NOT_FOR_AN_OPERATION) == set()


def test_a_job_draws_nothing_without_a_terminal(imported_by, group, tmp_path):
    (tmp_path / "rows.csv").write_text(f"group,account\n{group},1001\n", encoding="utf-8")

    code, modules = imported_by("invite", "rows.csv")

    assert code == Exit.DONE
    assert "rbim.bulk.job" in modules
    assert modules & (HTTP | DRAWING | OF_FILES | NOT_FOR_A_JOB) == set()
