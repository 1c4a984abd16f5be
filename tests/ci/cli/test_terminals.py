"""Output at a real terminal: lines that fit it and break at blanks, no colours where none are wanted, no codes in a pipe."""

import fcntl
import os
import re
import struct
import subprocess
import sys

import pytest
from rich.cells import cell_len

from helpers.serving import served
from helpers.sockets import free_port
from rbim.emulator import Emulator

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals")
termios = pytest.importorskip("termios")

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
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
        own = {name: value for name, value in os.environ.items() if not name.startswith(("RBIM_", "NO_COLOR", "COLUMNS"))}
        credentials = {"RBIM_APP_ID": emulator.credentials.app_id, "RBIM_APP_TOKEN": emulator.credentials.app_token.reveal()}
        yield own | credentials | {"RBIM_BASE_URL": url, "HOME": str(folder), "no_proxy": "*", "TERM": "xterm-256color"}


def at_terminal(words, columns, variables):
    """Return what a command writes to a terminal of a width."""
    pid, fd = pty.fork()
    if pid == 0:  # pragma: no cover  # another program
        os.chdir(variables["HOME"])
        os.read(0, 1)  # until the width is set
        os.execve(sys.executable, [sys.executable, "-m", "rbim", *words], variables)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    os.write(fd, b"\n")
    shown = b""
    try:
        while part := os.read(fd, 4096):
            shown += part
    except OSError:  # Linux: the other end is closed
        pass
    os.close(fd)
    os.waitpid(pid, 0)
    return shown.decode().removeprefix("\r\n")


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
        lines = [line.rstrip("\r") for line in CODES.sub("", at_terminal(words, 80, variables)).split("\n")]
        assert len(lines) > 2, name
        long = [line for line in lines if cell_len(line) > 80]
        wide[name] = [line for line in long if not line.startswith(("rbim ", "journal: "))]  # they are to be copied
    assert {name: lines for name, lines in wide.items() if lines} == {}


def test_colours_are_for_terminals_that_want_them(variables):
    assert COLOURS.search(at_terminal(["doctor"], 80, variables))
    assert not COLOURS.search(at_terminal(["doctor"], 80, variables | {"NO_COLOR": "1"}))
    assert not CODES.search(at_terminal(["doctor"], 80, variables | {"TERM": "dumb"}))
    command = [sys.executable, "-m", "rbim", "doctor"]
    piped = subprocess.run(command, env=variables, capture_output=True, timeout=60, check=False, cwd=variables["HOME"])
    assert b"\x1b" not in piped.stdout + piped.stderr
    assert piped.stderr == b""
