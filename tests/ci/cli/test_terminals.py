"""Output at a real terminal: lines that fit it and break at blanks, no colours where none are wanted, no codes in a pipe."""

import re
import sys

import pytest
from rich.cells import cell_len

from helpers.processes import CLEAN, ran
from helpers.serving import served, variables_of
from helpers.sockets import free_port
from helpers_ci.terminal import ANSI, Terminal
from rbim.emulator import Emulator

COLOURS = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;[0-9]+)*m")


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    emulator = Emulator()
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "members.csv").write_text(
        "group,account\n" + "".join(f"a-group-that-is-not-there-{n},{n}\n" for n in range(3)), encoding="utf-8"
    )
    (folder / "gbk.csv").write_bytes(
        "群组,账号,姓名,部门,备注\ng1,1001,张三,华东大区销售部,二零二六年新客户\n".encode("gbk")
    )
    with served(emulator.asgi) as url:
        own = {name: value for name, value in CLEAN.items() if not name.startswith(("NO_COLOR", "COLUMNS"))}
        yield own | variables_of(emulator, url) | {"HOME": str(folder), "no_proxy": "*", "TERM": "xterm-256color"}


def at_terminal(words, columns, variables):
    with Terminal(*words, env=variables, columns=columns, cwd=variables["HOME"]) as shown:
        shown.end()
    return shown.raw


COMMANDS = {
    "doctor": ["doctor"],
    "an error": ["--base-url", "http://127.0.0.1:CLOSED", "groups", "detail", "g1"],
    "an error with Chinese text": ["invite", "gbk.csv"],
    "an estimate": ["invite", "members.csv", "--dry-run"],
    "a job": ["invite", "members.csv", "--quiet"],
    "operations": ["operations"],
}


def test_lines_fit_the_terminal_and_break_at_blanks(variables):
    wide = {}
    for name, command in COMMANDS.items():
        words = [word.replace("CLOSED", str(free_port())) for word in command]
        lines = [line.rstrip("\r") for line in ANSI.sub("", at_terminal(words, 80, variables)).split("\n")]
        assert len(lines) > 2, name
        long = [line for line in lines if cell_len(line) > 80]
        wide[name] = [line for line in long if not line.startswith(("rbim ", "journal: "))]  # they are to be copied
    assert {name: lines for name, lines in wide.items() if lines} == {}


def test_colours_are_for_terminals_that_want_them(variables):
    assert COLOURS.search(at_terminal(["doctor"], 80, variables))
    assert not COLOURS.search(at_terminal(["doctor"], 80, variables | {"NO_COLOR": "1"}))
    assert not ANSI.search(at_terminal(["doctor"], 80, variables | {"TERM": "dumb"}))
    piped = ran(sys.executable, "-m", "rbim", "doctor", env=variables, cwd=variables["HOME"])
    assert "\x1b" not in piped.stdout
    assert piped.stderr == ""
