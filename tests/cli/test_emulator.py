"""``rbim emulator`` as a process: what it prints, how it stops, what it refuses, and its page in the docs."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import get_args

import pytest

from helpers.pages import blocks_of, run_program
from helpers.paths import DOCS
from helpers.processes import CLEAN, PATIENCE, running
from rbim.cli import Exit, run
from rbim.emulator import Emulator
from rbim.emulator.documents import kind_of
from rbim.emulator.faults import Effect, faults_from
from rbim.emulator.server.control import ABOUT

PAGE = (DOCS / "emulator.md").read_text(encoding="utf-8")
COMMAND = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()", "emulator"]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def blocks(language):
    return [block.text for block in blocks_of("docs/emulator.md", language)]


class Process:
    """A server in a process of its own. ``lines`` are the first it writes, ``url`` and ``exports`` what they say."""

    def __init__(self, popen, lines):
        self.popen = popen
        self.lines = lines
        self.url = lines[0]
        self.exports = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))

    def control(self, method, path, document=None):
        return self.ask(f"{self.url}/_emulator/{path}", method, document)

    def ask(self, url, method, document=None):
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method=method)
        with OPENER.open(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def status(self):
        """Ask the platform for anything at all and return the HTTP status."""
        try:
            with OPENER.open(self.url, timeout=PATIENCE) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def shell(self, script):
        """Run a script as whoever pasted the exports would, and return what it prints."""
        environment = {"PATH": os.environ["PATH"], "no_proxy": "*", **self.exports}
        script = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(
            script, env=environment, capture_output=True, check=True, encoding="utf-8", timeout=PATIENCE
        ).stdout

    def stop(self, *signals):
        for number in signals or (signal.SIGTERM,):
            self.popen.send_signal(number)
        out, err = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, out, err


@contextmanager
def serving(*flags, lines=7, quiet=True, **environment):
    with running(*COMMAND, "--port", "0", *["--quiet"] * quiet, *flags, env=CLEAN | environment) as popen:
        yield Process(popen, [popen.stdout.readline().rstrip("\n") for _ in range(lines)])


@pytest.fixture
def refused(capsys, monkeypatch):
    """Run the command, which is expected to end by itself, and return its exit code and what it complains of."""
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)

    def refused(*flags):
        code = run(["emulator", *([] if "--port" in flags else ["--port", "0"]), *flags])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return refused


@pytest.mark.ci
def test_a_shell_uses_what_it_prints_and_a_signal_ends_it(tmp_path):
    state = tmp_path / "state.json"
    with serving("--state", str(state)) as emulator:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", emulator.lines[0])
        assert emulator.lines[1] == f"# {ABOUT}"
        assert re.fullmatch(
            rf"# Page and control interface: {emulator.url}/_emulator/, also during an outage: http://127\.0\.0\.1:\d+/_emulator/",
            emulator.lines[2],
        )
        assert list(emulator.exports) == ["RBIM_BASE_URL", "RBIM_APP_ID", "RBIM_APP_TOKEN", "RBIM_EMULATOR_URL"]
        assert emulator.exports["RBIM_BASE_URL"] == emulator.url
        signed_by_hand = blocks("sh")[0]
        made = json.loads(emulator.shell(signed_by_hand))
        assert made["statusCode"] == "000000"
        wrong = json.loads(emulator.shell(signed_by_hand.replace("tr a-z A-Z", "rev")))
        assert wrong["statusCode"] != "000000"
        assert emulator.stop() == (0, "", "")
    (group,) = json.loads(state.read_text(encoding="utf-8"))["groups"]
    assert (group["group_id"], group["name"]) == (made["groupId"], "产品公告")
    assert "产品公告" in state.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [state]

    with serving("--state", str(state)) as emulator:  # which goes on where the first one stopped
        assert emulator.control("GET", "state")["groups"] == [group]
        emulator.control("PUT", "state", {"version": 1})
        assert emulator.stop(getattr(signal, "SIGHUP", signal.SIGINT)) == (0, "", "")
    assert json.loads(state.read_text(encoding="utf-8"))["groups"] == []


class Terminal(io.StringIO):
    """Standard output of somebody who presses Ctrl-C as soon as there is something to read."""

    def flush(self):
        signal.raise_signal(signal.SIGINT)
        self.flush = super().flush


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_it_runs_in_this_process_as_well(tmp_path, monkeypatch, capsys, host):
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    state = tmp_path / "state.json"
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run(["emulator", "--port", "0", "--host", host, "--state", str(state), "--emulated-clock"]) == Exit.DONE
    lines = sys.stdout.getvalue().splitlines()
    assert len(lines) == 7
    assert json.loads(state.read_text(encoding="utf-8"))["groups"] == []
    assert ("warning" in capsys.readouterr().err) == (host == "0.0.0.0")


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({"RBIM_APP_ID": "an-app"}, "RBIM_APP_TOKEN"),
        ({"RBIM_APP_TOKEN": "a-token"}, "RBIM_APP_ID"),
        ({"RBIM_APP_ID": "an-app", "RBIM_APP_TOKEN_FILE": "/nowhere"}, "RBIM_APP_TOKEN_FILE"),
    ],
)
def test_half_of_the_credentials_is_none(refused, monkeypatch, environment, missing):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, err = refused()
    assert (code, err.count("\n")) == (Exit.USAGE, 1)
    assert missing in err
    assert "a-token" not in err


@pytest.mark.ci
def test_a_fault_plan_is_carried_out(tmp_path):
    plan = tmp_path / "faults.json"
    plan.write_text(json.dumps([{"effect": {"kind": "status", "status": 503}, "probability": 0.5}]))
    seen = []
    for _ in range(2):
        with serving("--faults", str(plan), "--seed", "7") as emulator:
            seen.append([emulator.status() for _ in range(20)])
            assert [record["trouble"] for record in emulator.control("GET", "requests")] == [
                ["status"] if status == 503 else [] for status in seen[-1]
            ]
    assert seen[0] == seen[1]
    assert set(seen[0]) == {200, 503}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        ("[", "not JSON at character 1"),
        ("{}", "must be a list, not dict"),
        ('[{"effect": {"kind": "explode"}}]', "'explode' is not one of latency, "),
    ],
)
def test_a_wrong_fault_plan_is_one_line_and_exit_code_2(refused, tmp_path, content, why):
    plan = tmp_path / "faults.json"
    if content is not None:
        plan.write_text(content)
    code, err = refused("--faults", str(plan))
    assert (code, err.count("\n")) == (Exit.USAGE, 1)
    assert err.startswith(f"rbim: {plan}: ")
    assert why in err


def test_a_wrong_state_is_one_line_and_exit_code_2(refused, tmp_path):
    state = tmp_path / "state.json"
    state.write_text('{"version": 99}')
    code, err = refused("--state", str(state))
    assert (code, err.count("\n")) == (Exit.USAGE, 1)
    assert f"{state}: version" in err
    assert state.read_text() == '{"version": 99}'
    code, err = refused("--state", str(tmp_path / "nowhere" / "state.json"))
    assert (code, err) == (Exit.USAGE, f"rbim: {tmp_path}/nowhere/state.json: its directory does not exist\n")


def test_a_taken_port_and_an_impossible_one(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = refused("--port", str(port))
    assert code == Exit.USAGE
    why = f"cannot listen on 127.0.0.1 port {port} (Address already in use)"
    assert err == f"rbim: {why}: choose another --port, --control-port or --host\n"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = refused("--control-port", str(port))
    assert code == Exit.USAGE
    assert f"cannot listen on 127.0.0.1 port {port} " in err
    assert refused("--port", "70000")[0] == refused("--control-port", "70000")[0] == Exit.USAGE
    code, err = refused("--host", "no such host")
    assert (code, err.count("\n")) == (Exit.USAGE, 1)


PLANTED = {"RBIM_APP_ID": "an-app", "RBIM_APP_TOKEN": "planted-token"}


def test_the_emulators_of_tests_and_of_the_demonstration_never_use_a_configured_token(bare_environment, request):
    made = []

    class Recorded(Emulator):
        def __init__(self, **options):
            super().__init__(**options)
            made.append(self)

    for name, text in PLANTED.items():
        bare_environment.setenv(name, text)
    bare_environment.setattr("rbim.cli.demo.Emulator", Recorded)
    assert run(["demo", "--json"]) == Exit.DONE
    made.append(request.getfixturevalue("rbim_emulator"))
    assert len(made) == 2
    for emulator in made:
        assert emulator.credentials.app_id != "an-app"
        assert emulator.credentials.app_token.reveal() != "planted-token"


def test_without_uvicorn_it_names_the_pip_command(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, err = refused()
    assert (code, err.count("\n")) == (Exit.USAGE, 1)
    assert 'python -m pip install "rbim[server]"' in err


def test_the_help_says_what_it_is_not(capsys):
    assert run(["emulator", "--help"]) == Exit.DONE
    text = " ".join(capsys.readouterr().out.split())
    assert "an emulator of the platform's written interface description" in text
    assert "not the service" in text


@pytest.mark.ci
def test_what_the_page_shows_is_what_happens():
    with serving("--emulated-clock") as emulator:
        shown = [line for line in blocks("console")[0].splitlines() if not line.startswith("$")]
        assert [re.sub(r":\d+|=[0-9a-f]{32}", "", line) for line in shown] == [
            re.sub(r":\d+|=[0-9a-f]{32}", "", line) for line in emulator.lines
        ]
        by_hand, look, settle, outage = blocks("sh")
        group_id = json.loads(emulator.shell(by_hand))["groupId"]
        told = emulator.shell(look)
        state, end = json.JSONDecoder().raw_decode(told)
        assert [group["group_id"] for group in state["groups"]] == [group_id]
        requests, end = json.JSONDecoder().raw_decode(told, end)
        assert [record["operation"] for record in requests] == ["CreateGroup"]
        assert re.fullmatch(r'\{"message_id":"m8\d+"\}', told[end:])
        state["groups"][0]["invited"] = ["1001"]
        state["never_logged_in"] = ["1009"]
        emulator.control("PUT", "state", state)
        assert emulator.shell(settle) == '{"account":"1009"}' + json.dumps(
            {"group_id": group_id, "account": "1001"}, separators=(",", ":")
        )
        assert emulator.control("POST", "clock/advance", {"hours": 1})["monotonic"] == 3600.0
        clock, end = json.JSONDecoder().raw_decode(told := emulator.shell(outage))
        assert (clock["monotonic"], told[end:]) == (3600.0, "null")  # answered during the outage, which it ended
        assert emulator.control("GET", "clock")["monotonic"] == 3600.0
        assert emulator.stop() == (0, "", "")


def test_the_pages_fault_plan_is_one_and_its_table_has_every_kind():
    (plan,) = blocks("json")
    assert len(faults_from(json.loads(plan))) == 4
    kinds = re.findall(
        r"^\| `(\w+)` \| (.*?) ?\|", PAGE[PAGE.index("| kind |") :].partition("<!-- end -->")[0], flags=re.MULTILINE
    )
    for (kind, told), effect in zip(kinds, get_args(Effect), strict=True):
        assert (kind, re.findall(r"`(\w+)`", told)) == (kind_of(effect), [*effect.__annotations__])


@pytest.mark.ci
def test_the_pages_program_runs(tmp_path):
    (program,) = blocks("python")
    assert re.fullmatch(r"1 http://127\.0\.0\.1:\d+\n", run_program(program, tmp_path))
