"""Commands as processes: the emulator and a receiver that other commands use, a real terminal, streams that are closed."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import CLEAN, PATIENCE, ran, running
from rbim.cli import run
from rbim.cli.exit_codes import Exit

COMMAND = [sys.executable, "-c", "from rbim.cli import main; main()"]


@pytest.fixture(scope="module")
def environment():
    """The variables that an emulator as a process of its own prints for a shell."""
    command = [*COMMAND, "emulator", "--port", "0"]
    with running(*command, env=CLEAN | {"PYTHONUTF8": "1"}, patience=20 * PATIENCE) as popen:  # as long as all tests here
        url = popen.stdout.readline().strip()
        lines = [popen.stdout.readline() for _ in range(5)]
        told = dict(re.findall(r"^export (\w+)=(\S+)$", "".join(lines), re.MULTILINE))
        assert told["RBIM_BASE_URL"] == url
        yield told
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(PATIENCE) == Exit.DONE


@pytest.fixture(autouse=True)
def reader(environment, tmp_path, bare_environment):
    for name, value in environment.items():
        bare_environment.setenv(name, value)
    bare_environment.chdir(tmp_path)


@pytest.fixture
def document(capsys):
    def call(*tokens):
        assert run([*map(str, tokens), "--json"]) == Exit.DONE
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return call


@pytest.fixture
def group(document):
    return document("groups", "create", "--name", "产品公告", "--type", "vip")["group_id"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_the_question_is_asked_at_a_real_terminal(environment, group, document):
    from helpers_ci.terminal import Terminal

    with Terminal("groups", "delete", group, env=CLEAN | environment | {"PYTHONUTF8": "1"}, columns=100) as shown:
        shown.see(r"\[y/N\] ")
        shown.type(b"y\n")
        assert shown.end() == Exit.DONE
    assert f"permanently delete group {group}" in shown.text
    assert document("groups", "search", "--group-id", group) == {"groups": []}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("tokens", [["--help"], ["operations", "--json"]])
def test_an_output_that_cannot_be_written_is_a_line(tokens):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = ran(*COMMAND, *tokens, capture_output=False, stdout=full, stderr=subprocess.PIPE, env=CLEAN)
    assert (done.returncode, len(done.stderr.splitlines())) == (Exit.READER_LEFT, 1)
    assert "cannot write the output: No space left on device" in done.stderr


@pytest.mark.parametrize("tokens", [["--help"], ["groups", "--help"], ["operations"]])
def test_who_closes_the_pipe_gets_a_code_of_its_own(tokens):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = ran(*COMMAND, *tokens, capture_output=False, stdout=writing, stderr=subprocess.PIPE, env=CLEAN)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.READER_LEFT, "")


def test_json_is_valid_on_any_output(group, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    command = [*COMMAND, "groups", "detail", group, "--json"]
    done = ran(*command)
    assert done.returncode == Exit.DONE
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["name"] == "产品公告"
