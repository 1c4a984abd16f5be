"""The command line: commands derived from the catalogue, what they print, and what their exit codes say."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping  # noqa: TC003  # attrs resolves it
from datetime import date, datetime, time, timedelta, timezone
from enum import IntEnum
from typing import ClassVar, Literal, Optional, get_args

import anyio
import pytest
from attrs import field, frozen
from cyclopts import App, CycloptsError

from helpers.serving import served
from rbim.cli import Exit, build_app
from rbim.cli.context import make_client
from rbim.cli.operations import flags_of, help_of
from rbim.operations import catalogue
from rbim.operations.base import Endpoint, Operation, operation
from rbim.operations.call_tasks import CallPolicy, NoCallPolicy, Weekday, default_no_call_policies
from rbim.operations.groups import GROUP, GroupType, Success
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


@pytest.fixture
def group(platform, cli):
    code, out, _ = cli("groups", "create", "--name", "产品公告", "--type", "vip", "--json")
    assert code == Exit.DONE
    made = json.loads(out)["group_id"]
    assert made in platform.state.groups
    return made


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


def test_every_operation_is_a_command_with_a_flag_for_every_field(cli):
    for entry in catalogue.entries():
        code, out, _ = cli(entry.namespace, entry.method.replace("_", "-"), "--help")
        assert code == Exit.DONE
        assert inspect.getdoc(entry.operation).split(".")[0].split()[0] in out
        for attribute in entry.operation.__attrs_attrs__:
            assert re.search(rf"--(\[no-\])?{attribute.name.replace('_', '-')}", out), (entry, attribute)
        assert "token" not in out.lower()


@pytest.mark.parametrize(
    ("fails", "code", "lists"),
    [
        ('[{"member":" app#b ","reason":"r"}]', 0, {"invited": ["a", "c"], "unknown": [], "fails": 1}),
        ('[{"member":"b"},{"reason":"r"}]', Exit.UNKNOWN, {"invited": [], "unknown": ["a", "c"], "fails": 2}),
        ('"some"', Exit.UNKNOWN, {"invited": [], "unknown": ["a", "b", "c"], "fails": 1}),
    ],
)
@pytest.mark.usefixtures("platform")
def test_an_invitation_says_who_was_invited_and_who_may_not_have_been(cli, monkeypatch, fails, code, lists):
    with RawServer(reply(f'{{"statusCode":"000000","fails":{fails}}}'.encode())) as server:
        monkeypatch.setenv("RBIM_BASE_URL", server.url())
        invitation = ("groups", "invite", "g1", "--members", "a", "b", "c")
        done, out, err = cli(*invitation, "--json")
        assert (done, "unknown: " in err) == (code, code != 0)
        answer = json.loads(out)
        assert {"invited": answer["invited"], "unknown": answer["unknown"], "fails": len(answer["fails"])} == lists
        done, out, err = cli(*invitation)
        assert (done, "may have been refused" in err) == (code, code != 0)
        assert re.search(r"^invited\b", out, re.MULTILINE)
        assert re.search(rf"^fails: {lists['fails']}$", out, re.MULTILINE)


def test_choices_are_named_or_as_on_the_wire(platform, cli):
    for written in ("paid_300", "PAID_300", "paid-300", "1"):
        code, out, _ = cli("groups", "create", "--name", "x", f"--type={written}", "--target", "discussion", "--json")
        assert (code, written) == (Exit.DONE, written)
        assert platform.state.groups[json.loads(out)["group_id"]].type is GroupType.PAID_300


@pytest.mark.ci
def test_a_command_reads_its_flags_although_a_module_has_imported_pydantic(cli, group):
    """Where pydantic is imported, cyclopts gives it every value; it would refuse a member of an enum for its name."""
    pytest.importorskip("pydantic")
    assert cli("groups", "modify", group, "--name", "y", "--permission", "verified")[0] == Exit.DONE
    assert cli("groups", "modify", group, "--name", "y", "--permission", "keep")[0] == Exit.DONE


def test_a_call_task_is_made_with_its_policies(platform, cli):
    weekend = NoCallPolicy.weekdays("weekend", [Weekday.SATURDAY])
    for more, policies in [
        ([], None),
        (["--call-policy", "none"], ()),
        (["--call-policy", '{"type": 0, "policy": []}'], (CallPolicy(()),)),
        (
            [flag for day in (5, 6) for flag in ("--call-policy", json.dumps(CallPolicy([weekly(day)]).wire))],
            (CallPolicy([weekly(5)]), CallPolicy([weekly(6)])),
        ),
        (["--call-policy", "default"], default_no_call_policies()),
        (["--call-policy", weekend.entry.decode(), "default"], (weekend, *default_no_call_policies())),
    ]:
        code, out, _ = cli("calls", "create-task", *TASK_FLAGS, "--isrecord", *more, "--json")
        assert code == Exit.DONE
        request = platform.state.tasks[json.loads(out)["task_id"]].request
        assert (request.start_date, request.isrecord, request.caller) == (date(2099, 1, 31), True, "1000")
        assert (more, request.call_policy) == (more, policies)


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


def test_what_cannot_be_read_is_said():
    for flag, written, said in [
        ("--deep", "{a", "a JSON value is required"),
        ("--at", "25:00", "'25:00' is not a time of day such as 09:00:00"),
        ("--part", "half", "'half' is not a number"),
        ("--undecided", "perhaps", "'perhaps' is not one of yes, no"),
        ("--colours", "mauve", "'mauve' is not one of red, deep_blue"),
    ]:
        told = {"--whole": "1", "--undecided": "no", flag: written}
        with pytest.raises(CycloptsError, match=re.escape(said)):
            read(TryEverything, *(token for pair in told.items() for token in pair))


def test_docstrings_speak_of_flags():
    assert help_of(TryEverything) == "--colour is RED unless told; see Role."
    modify = {entry.method: entry.operation for entry in catalogue.entries()}["modify"]
    assert "keep leaves it out" in " ".join(help_of(modify).split())


# ---------------------------------------------------------------- errors


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
        "See: rbim help errors#intermediaryerror",
    ]


SEVERAL = [
    (entry.namespace, entry.method, flag.lstrip("-"))
    for entry in catalogue.entries()
    for parameter in flags_of(entry.operation)
    for kind, (flag,) in [(get_args(parameter.annotation)[0], get_args(parameter.annotation)[1].name)]
    if kind == list[str] and entry.operation.__module__.startswith("rbim.") and flag != "--call-policy"
]


def test_values_that_commas_join_are_refused_with_the_right_form(platform, cli):
    assert SEVERAL == [("groups", "invite", "members"), ("groups", "remove", "members")]
    sent = len(platform.requests)
    for namespace, method, flag in SEVERAL:
        for words, right in [
            (["1001,1002"], ": 1001 1002"),
            (["1001", "1002,1003"], ": 1002 1003"),
            (["1001,"], ": 1001"),
            (["1001, 1002"], ": 1001 1002"),
            (["1001\uff0c1002"], ": 1001 1002"),
            (["1001;1002"], ": 1001 1002"),
            (["1001\u3001 1002\uff1b1003"], ": 1001 1002 1003"),
            ([","], ""),
        ]:
            code, _, err = cli(namespace, method, "g8", f"--{flag}", *words, *(["--yes"] if method == "remove" else []))
            assert (code, words) == (Exit.USAGE, words)
            assert f"separate values with spaces{right} (" in err
            assert "use --file)" in err
    assert len(platform.requests) == sent


def test_an_account_with_a_comma_can_be_given_in_a_file(platform, cli, group, tmp_path):
    fields = tmp_path / "fields.toml"
    fields.write_text(f'group_id = "{group}"\nmembers = ["a,b"]\n')

    assert cli("groups", "invite", "--file", str(fields))[0] == Exit.DONE

    assert platform.requests.records[-1].operation.members == ("a,b",)


def test_a_number_in_a_file_is_the_text_that_stands_there(platform, cli, group, tmp_path):
    fields = tmp_path / "fields.toml"
    for number in ("7", "0.5", "nan", "-inf"):
        fields.write_text(f'group_id = "{group}"\nmembers = ["1"]\ndeclared = {number}\n')
        assert cli("groups", "invite", "--file", str(fields))[0] == Exit.DONE
        assert platform.requests.records[-1].operation.declared == number


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


def test_json_is_the_answers_to_dict(cli, group):
    async def ask():
        async with make_client() as client:
            return await client.groups.detail(group_id=group)

    _, out, _ = cli("groups", "detail", group, "--json")
    assert json.loads(out) == anyio.run(ask).to_dict()


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


def test_version(cli):
    from rbim import __version__

    assert cli("--version") == (Exit.DONE, f"rbim {__version__}\n", "")


# ------------------------------------------------------------------------------ what a command builds and imports


def test_only_the_commands_that_the_words_name_are_built():
    for words, namespaces, methods in [
        (["groups", "leave", "g1"], {"groups"}, {"leave"}),
        (["groups", "set-role", "--help"], {"groups"}, {"set-role"}),
        (["calls", "--help"], {"calls"}, {"create-task"}),
        (["invite", "rows.csv"], set(), set()),
    ]:
        app = build_app(words)
        found = {name for name in catalogue.namespaces() if name in app}
        assert found == namespaces
        assert {name for namespace in found for name in app[namespace] if not name.startswith("-")} == methods
