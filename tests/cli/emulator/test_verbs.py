"""The commands for an emulator that runs: what each sends and prints, and that nothing else ever gets one."""

from __future__ import annotations

import io
import json
import sys

import pytest

from helpers.openapi import judge
from helpers.serving import emulator_served
from helpers.sockets import free_port
from rbim import GroupType
from rbim.cli import Exit, run
from rbim.cli.emulator.verbs import help_of
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults.copies import COPY_KINDS, CopyFault, Duplicate, Overtaken
from rbim.emulator.faults.requests import KINDS, Fault, ResetAfter, Status
from rbim.emulator.platform.rules import RULES
from rbim.emulator.server.commands import ABOUT
from rbim.emulator.server.copy_commands import COMMANDS
from rbim.operations.groups import CreateGroup, InviteJoinGroup, JoinGroup, Permission
from rbim.testing.conformance.server import RawServer, reply


@pytest.fixture
def emulator():
    return Emulator(clock=EmulatedClock())


@pytest.fixture
def server(emulator, bare_environment, tmp_path):
    bare_environment.chdir(tmp_path)
    with emulator_served(emulator) as server:
        bare_environment.setenv("RBIM_EMULATOR_URL", server.control_url)  # as the control interface gives it
        yield server


@pytest.fixture
def group(emulator):
    """A group with an invitation and a request to join that wait."""
    world = emulator.world
    created = CreateGroup(name="News", type=GroupType.VIP, permission=Permission.VERIFIED)
    group_id = RULES[CreateGroup](world, created).group_id
    for account in ("1001", "1002"):
        RULES[InviteJoinGroup](world, InviteJoinGroup(group_id=group_id, members=[account], needs_confirmation=True))
    for account in ("1003", "1004"):
        RULES[JoinGroup](world, JoinGroup(group_id=group_id, user_name=account))
    return group_id


@pytest.fixture
def anywhere(capsys):
    """Run a command, and return its output, or that of its error."""

    def call(*tokens, code=Exit.DONE):
        got = run(["emulator", *map(str, tokens)])
        out, err = capsys.readouterr()
        assert (got, "Traceback" in err) == (code, False), err
        return err if code else out

    def document(*tokens, code=Exit.DONE):
        return json.loads(call(*tokens, "--json", code=code))

    call.json = document
    return call


@pytest.fixture
def cli(server, anywhere):
    """The same, for the emulator of this test."""
    assert server.listening
    return anywhere


def test_every_command_has_a_verb_and_the_help_of_each_says_what_it_does():
    for command in COMMANDS:
        how = f"{command.method} {command.path}: give it a command of rbim emulator: @command(..., verb='WORD ARGUMENT')"
        assert command.verb, how
        assert help_of(command).endswith("."), how
        assert "emulator-only" not in help_of(command), how
    assert len({command.verb for command in COMMANDS}) == len(COMMANDS)


def test_those_that_wait_are_answered(emulator, group, cli):
    for verb, account in (("confirm", "1001"), ("decline", "1002"), ("approve", "1003"), ("reject", "1004")):
        assert cli.json(verb, group, account) == {"group_id": group, "account": account}
    state = emulator.state.groups[group]
    assert (list(state.members), list(state.invited), list(state.applied)) == (["admin", "1001", "1003"], [], [])
    assert "no invitation of 1001 waits" in cli("confirm", group, "1001", code=Exit.REFUSED)
    emulator.never_logged_in("1009")
    cli("login", "1009")
    assert "1009 has logged in before" in cli("login", "1009", code=Exit.REFUSED)


def test_groups_and_accounts_are_tables_and_a_request_is_a_curl_command_in_lines(emulator, group, cli):
    lines = cli("groups", "find", "news").splitlines()
    assert lines[:2] == ["total  1", "groups:"]
    for text in ("a/b", "/", "..", "."):  # they reach the emulator as they are
        assert cli("groups", "find", text).splitlines()[0].split() == ["total", "0"]
    assert lines[2].split()[:2] == ["group_id", "name"]
    assert lines[4].split()[:2] == [group, "News"]
    shown = cli("groups", "show", group).splitlines()
    assert ["admin", str(int(emulator.state.groups[group].members["admin"]))] in [line.split() for line in shown]
    assert "there is no group g1" in cli("groups", "show", "g1", code=Exit.REFUSED)
    assert cli("accounts").splitlines()[1] == "accounts:"
    emulator.platform.serve("GET", "/x", {}, {}, b"")
    assert cli("requests", "show", "1").splitlines()[0].split() == ["number", "1"]


def test_messages_are_sent_with_every_field(emulator, group, cli):
    got = []

    async def receive(_headers, body):
        got.append(json.loads(body))
        return 200

    emulator.copy_to(receive)
    cli("say", "1001", "1002", "hello", "--at-user", "1003", "1004", "--nick", "n", "--antispam", "--msg-type", "LINK")
    cli("say", "admin", group, "--no-antispam", "--client-type", "Android PAD")
    cli("push", "news", "--to", "1001", "1002", "--no-save", "--apns")
    cli("push", "--to", group, "--sender", "1001")
    cli("notify", group, "TEAM_UPDATE", "changed", "--members", "1001", "--actor", "1002")
    cli("advance", "1")
    own = emulator.credentials.app_id
    sent = {message["convType"]: message for message in got}
    assert list(sent) == ["PERSON", "TEAM", "CUSTOM_PERSON", "CUSTOM_TEAM", "NOTIFY_TEAM"]
    assert [sent["PERSON"][key] for key in ("body", "fromNick", "antispam", "msgType")] == ["hello", "n", "true", "LINK"]
    assert sent["PERSON"]["atUser"] == [f"{own}#1003", f"{own}#1004"]
    assert [sent["TEAM"].get(key) for key in ("body", "antispam", "fromClientType")] == [None, "false", "Android PAD"]
    assert [sent["CUSTOM_PERSON"][key] for key in ("customSaveFlag", "customApnsFlag")] == ["0", "1"]
    assert (sent["CUSTOM_TEAM"]["to"], sent["CUSTOM_TEAM"]["fromAccount"]) == (group, f"{own}#1001")
    assert (sent["NOTIFY_TEAM"]["body"], sent["NOTIFY_TEAM"]["tMembers"]) == ("changed", [f"{own}#1001"])


def test_faults_are_shown_set_added_and_cleared(emulator, cli, tmp_path):
    assert cli("faults") == "no faults\n"
    file = tmp_path / "plan.json"
    file.write_text('[{"effect": {"kind": "status", "status": 503}, "nth": [2]}]', encoding="utf-8")
    cli("faults", "set", file)
    assert list(emulator.faults) == [Fault(effect=Status(503), nth=(2,))]
    selected = ["--operation", "InviteJoinGroup", "--nth", "1", "3", "--times", "2", "--probability", "0.5", "--every", "1"]
    matched = ["--match", "group_id=8001", "needs_confirmation=true", 'members=["1001"]']
    cli("faults", "add", "reset_after", *selected, *matched)
    match = {"group_id": "8001", "needs_confirmation": True, "members": ("1001",)}
    added = Fault(effect=ResetAfter(), operation="InviteJoinGroup", nth=(1, 3), times=2, probability=0.5, match=match)
    assert list(emulator.faults)[1:] == [added]
    assert "reset_after" in cli("faults")
    judge("GET", "/_emulator/faults", 200, cli.json("faults"))
    cli("faults", "clear")
    assert list(emulator.faults) == []


def test_a_fault_that_is_added_does_not_restart_the_others(emulator, cli):
    emulator.faults.add(Fault(effect=Status(503), nth=(2,)))
    emulator.platform.serve("POST", "/", {}, {}, b"")
    cli("faults", "add", "latency", "--seconds", "0.1")
    emulator.platform.serve("POST", "/", {}, {}, b"")
    assert [record.trouble for record in emulator.requests] == [(), ("delay", "status")]


@pytest.mark.parametrize(("kinds", "command"), [(KINDS, "faults"), (COPY_KINDS, "copy-faults")])
def test_every_kind_can_be_added(cli, kinds, command):
    values = {"seconds": 1, "status": 500, "code": "1", "per_second": 3}
    for kind, effect in kinds.items():
        needed = [name for name in effect.__annotations__ if name in values]
        flags = [word for name in needed for word in (f"--{name.replace('_', '-')}", values[name])]
        assert cli.json(command, "add", kind, *flags)[-1]["effect"]["kind"] == kind
    assert len(cli.json(command)) == len(kinds)


def test_faults_of_copies_are_set_from_standard_input(emulator, cli, monkeypatch):
    plan = [{"effect": {"kind": "duplicate", "extra": 2}}]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(plan).encode())))
    assert cli.json("copy-faults", "set", "-") == plan
    cli("copy-faults", "add", "overtaken", "--by", "2", "--match", "convType=TEAM", "--attempts", "1", "2")
    later = CopyFault(effect=Overtaken(by=2), match={"convType": "TEAM"}, attempts=(1, 2))
    assert list(emulator.copy_faults) == [CopyFault(effect=Duplicate(2)), later]
    cli("copy-faults", "clear")


def test_copies_are_switched_on_and_off(emulator, cli):
    assert cli("copy") == "messages are not copied\n"
    cli("copy", "on", "http://127.0.0.1:9/", "--mode", "high-guarantee")
    assert cli.json("copy") == {"url": "http://127.0.0.1:9/", "mode": "high-guarantee"}
    assert "--remote-copies" in cli("copy", "on", "http://receiver.test/", code=Exit.REFUSED)
    cli("copy", "off")
    assert emulator.copier.dispatch.destination is None


def test_state_is_shown_saved_loaded_and_reset(emulator, group, cli, tmp_path):
    shown = cli("state")
    assert all(text in shown for text in ("1 group, 0 tasks", group, "News", "1001, 1002", "1003, 1004"))
    before = emulator.snapshot()
    assert cli("state", "save", "state.json") == "state.json\n"
    assert json.loads((tmp_path / "state.json").read_bytes()) == cli.json("state")
    emulator.load({"version": 1})
    assert cli.json("state", "load", "state.json") == {"groups": 1, "tasks": 0}
    assert emulator.snapshot() == before
    emulator.load({"version": 1})
    assert cli.json("reset") == {"groups": 1, "tasks": 0}  # that of the start
    assert emulator.snapshot() == before
    assert cli("state", "--field", ".groups[].group_id") == f"{group}\n"


def test_requests_and_deliveries_are_shown_and_cleared(emulator, cli):
    async def receive(_headers, _body):
        return 500

    assert (cli("requests"), cli("deliveries"), cli("tasks")) == ("no requests\n", "no deliveries\n", "no tasks\n")
    emulator.platform.serve("POST", "/a", {}, {}, b"")
    emulator.copy_to(receive)
    cli("say", "1001", "1002")
    cli("advance", "0")
    assert "Authorization is not" in cli("requests")
    assert "status 500" in cli("deliveries")
    assert cli("requests", "--field", ".[].code") == f"{emulator.requests.records[0].code}\n"
    cli("requests", "clear")
    cli("deliveries", "clear")
    assert (len(emulator.requests), len(emulator.deliveries)) == (0, 0)


def test_time_is_shown_and_advanced(cli):
    cli("advance", "30")
    assert cli.json("advance", "--hours", "2")["monotonic"] == 7230.0
    assert cli.json("clock")["emulated"] is True
    assert ">= 0" in cli("advance", "--hours=-1", code=Exit.USAGE)


def test_an_outage_is_begun_and_ended_through_the_control_port(server, cli):
    assert cli.json("outage", "begin", "60")["control"] == server.control_url
    assert "During an outage" in cli("clock", "--url", server.url, code=Exit.NOT_SENT)
    cli("outage", "end")
    cli("clock", "--url", server.url)


@pytest.mark.parametrize("given", ["--url", "--base-url", "RBIM_EMULATOR_URL", "RBIM_BASE_URL"])
def test_the_address_is_the_first_that_is_given(given, emulator, anywhere, bare_environment, tmp_path):
    bare_environment.chdir(tmp_path)
    ways = ["--url", "--base-url", "RBIM_EMULATOR_URL", "RBIM_BASE_URL"]
    with emulator_served(emulator) as server:
        flags = []
        for way in ways[ways.index(given) :]:  # those behind it name a port where nothing listens
            url = server.url if way == given else f"http://127.0.0.1:{free_port()}"
            if way.startswith("--"):
                flags += [way, url]
            else:
                bare_environment.setenv(way, url)
        assert anywhere.json("clock", *flags)["emulated"] is True


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("200 OK", b'{"statusCode":"000000"}'),
        ("404 Not Found", b"<html>"),
        ("200 OK", b'{"about": "another server"}'),
        ("403 Forbidden", json.dumps({"about": ABOUT, "error": "Host"}).encode()),
        ("200 OK", json.dumps([ABOUT]).encode()),
    ],
)
def test_what_is_no_emulator_gets_one_get_and_no_command(status, body, anywhere, bare_environment, tmp_path):
    bare_environment.chdir(tmp_path)
    with RawServer(reply(body, status)) as platform:
        told = anywhere("reset", "--url", platform.url(), code=Exit.USAGE)
        assert "is no emulator" in told
        assert "--url" in told
        (asked,) = platform.requests
        assert asked.raw.startswith(b"GET /_emulator/ HTTP/1.1\r\n")


def test_a_field_that_the_answer_does_not_have_is_said_before_anything_is_sent(emulator, cli):
    told = cli("say", "1001", "1002", "--field", ".msg_id", code=Exit.USAGE)
    assert "the fields are .message_id" in told
    assert emulator.copier.dispatch.queues.next_due() is None
    assert emulator.world.state.made == 0


@pytest.mark.usefixtures("server")
def test_the_json_of_an_error_has_its_message(capsys):
    assert run(["emulator", "confirm", "g1", "1001", "--json"]) == Exit.REFUSED
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["message"] == "there is no group g1"


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (["faults", "add", "status", "--keep", "0.5"], "--keep: is not for status: it takes --status, --retry-after"),
        (["faults", "add", "refuse", "--seconds", "1"], "--seconds: is not for refuse: it has no fields"),
        (["faults", "add", "status"], "--status: is required for status"),
        (["faults", "add", "refuse", "--match", "group_id"], "--match: 'group_id' is not NAME=VALUE"),
        (["faults", "add", "status", "--status", "42"], "status: must be 200 to 599, not 42"),
        (["faults", "set", "nothing.json"], "nothing.json: No such file or directory"),
        (["notify", "g1", "TEAM_UPDAT"], 'Did you mean "TEAM_UPDATE"?'),
        (["syay"], "unknown command 'syay': did you mean rbim emulator say?"),
        (["say", "1001"], "TO is required"),
        (["clock", "--url", "localhost"], "--url: an address such as https://host:8883 is needed"),
    ],
)
def test_a_wrong_input_is_said(cli, tokens, told):
    assert told in cli(*tokens, code=Exit.USAGE)
