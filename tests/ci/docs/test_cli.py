"""What docs/cli.md shows is what runs."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from helpers.pages import blocks_of
from helpers.processes import ran
from helpers.serving import served, variables_of
from rbim.cli import Exit, run
from rbim.emulator import Emulator

PAGE = "docs/cli.md"
SHELL = [block for block in blocks_of(PAGE, "sh") if block.not_run is None]
(TOML,) = blocks_of(PAGE, "toml")


@pytest.fixture
def emulator(tmp_path, bare_environment):
    """Somebody with the page's file, whose platform is the emulator."""
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bare_environment.chdir(tmp_path)
    Path("task.toml").write_text(TOML.text, encoding="utf-8")
    emulator = Emulator()
    with served(emulator.asgi) as url:
        for name, value in variables_of(emulator, url).items():
            bare_environment.setenv(name, value)
        yield emulator


def in_bash(line):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = ran("bash", "-uo", "pipefail", "-c", line, env=os.environ | {"PATH": path, "PYTHONUTF8": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_commands_of_the_page_work_one_after_the_other(emulator, capsys):
    lines = [line for block in SHELL for line in block.text.splitlines()]
    printed = {}
    for line in lines:
        (group,) = emulator.state.groups or ["g80000049837291"]
        command = line.replace("g80000049837291", group)
        if "|" in line or "$" in line:
            printed[line] = in_bash(command)
        else:
            assert run(shlex.split(command)[1:]) == Exit.DONE, line
            out, err = capsys.readouterr()
            assert err == ""
            printed[line] = out
    assert '"产品公告"' in printed["rbim groups search --name 产品公告 --json"]
    assert len(json.loads(printed["rbim operations --json | python -m json.tool"])) == 11
    tasks = [task.request for task in emulator.state.tasks.values()]
    assert [task.task_name for task in tasks] == ["续费提醒", "续费提醒二"]
    assert not emulator.state.groups


def test_the_document_of_an_error_is_as_the_page_shows_it(emulator, capsys):
    (block,) = blocks_of(PAGE, "json")
    told = json.loads(block.text)["error"]
    assert run(["groups", "detail", "g-none", "--json"]) == Exit.REFUSED
    found = json.loads(capsys.readouterr().out)["error"]
    assert list(found) == list(told)
    assert {**found, "message": ""} == {**told, "message": ""}
    assert found["message"].startswith(told["message"].removesuffix("..."))
    assert len(emulator.requests) == 1
