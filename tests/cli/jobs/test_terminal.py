"""``rbim invite`` as a process at a terminal of its own: Ctrl-C, and the command that is printed for going on."""

import os
import re
import stat
import sys

import pytest

from helpers.job_commands import invitations, members
from helpers.paths import ROOT
from helpers.processes import ran
from helpers_ci.terminal import Terminal
from rbim.cli.exit_codes import JobExit

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")

CTRL_C = b"\x03"


@pytest.fixture
def env(served_platform, tmp_path):
    """The environment of a shell in which ``rbim`` is a command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "rbim"
    command.write_text(f"#!{sys.executable}\nfrom rbim.cli import main\n\nmain()\n", encoding="utf-8")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RBIM_", "COVERAGE_"))}
    return kept | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "RBIM_BASE_URL": served_platform[1],
        "RBIM_APP_ID": "app",
        "RBIM_APP_TOKEN": "the-token",
        "RBIM_USER_NAME": "admin",
    }


def printed_command(text):
    (line,) = [line for line in text.splitlines() if line.startswith("rbim job resume ")]
    return line


def in_a_shell(command, env):
    return ran("sh", "-c", command, env=env, cwd="/")


@pytest.mark.ci
def test_ctrl_c_lets_requests_end_and_the_printed_command_does_the_rest(platform, group, env, tmp_path):
    file = tmp_path / "it's a list.csv"
    file.write_text("group,account\n" + "".join(f"{group},u{number}\n" for number in range(20)), encoding="utf-8")
    platform.requests.clear()
    platform.door.holding = True

    with Terminal("invite", file, "--chunk", "1", "--concurrency", "2", env=env, columns=100) as shown:
        shown.see(r"journal: .*\n")
        shown.see("2 of 2 in flight")  # the bar is there
        shown.type(CTRL_C)
        shown.see(r"stopping: waiting for 2 requests in flight; Ctrl-C again to abandon them\n")
        platform.door.holding = False
        code = shown.end()
    text = shown.text

    assert code == JobExit.INTERRUPTED
    assert re.search(r"invited +2 .*\n +skipped +18 .* 18 not sent", text)
    assert len(members(platform, group)) == len(invitations(platform)) == 2
    ended = in_a_shell(printed_command(text), env)

    assert ended.returncode == JobExit.DONE, ended.stderr
    assert re.search(r"invited +20 +100\.0%", ended.stdout)
    assert members(platform, group) == {f"u{number}" for number in range(20)}
    assert len(invitations(platform)) == 20  # nobody was invited twice
