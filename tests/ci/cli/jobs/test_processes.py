"""Commands for jobs as processes: standard output that nobody reads, other names of files, commands at the end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.job_commands import rows_of, write_csv
from rbim.cli.exit_codes import JobExit

PATIENCE = 60
posix = pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of a POSIX shell")


@posix
def test_what_the_command_prints_and_how_it_ends_changes_neither_output_nor_exit_code(platform, group):
    write_csv("m.csv", rows_of(group, count=1))
    command = [sys.executable, "-c", "from rbim.cli import main; main()", "invite", "m.csv", "--json", "--quiet"]
    for text, message in (
        ("echo printed; exit 3", "exit code 3"),
        ("kill -9 $$", "signal 9"),
        ("exec no-such-command", "exit code 127"),
    ):
        done = subprocess.run([*command, "--on-end", text], capture_output=True, timeout=PATIENCE, check=False, text=True)
        assert done.returncode == JobExit.DONE
        assert json.loads(done.stdout)["accounts"]["invited"] == 1
        assert f"--on-end: the command failed ({message})" in done.stderr
        assert ("printed" in done.stderr) == ("printed" in text)
    assert platform


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such file names")
def test_a_file_name_that_is_no_utf8(tmp_path):
    """As ``rbim invite $'m\\xff.csv'`` does; nothing listens, so that the job ends early with exit code 4."""
    name = os.fsencode(tmp_path) + b"/m\xff.csv"
    with open(name, "wb") as stream:  # noqa: PTH123  # a name in bytes
        stream.write(b"group,account\ng,a\n")
    start = [sys.executable, "-c", "from rbim.cli import main; main()"]
    environment = os.environ | {
        "RBIM_BASE_URL": "http://127.0.0.1:9",
        "RBIM_APP_ID": "a",
        "RBIM_APP_TOKEN": "t",
        "RBIM_USER_NAME": "u",
    }

    def call(*words):
        return subprocess.run(
            [*start, *words], env=environment, capture_output=True, timeout=PATIENCE, check=False, cwd=tmp_path
        )

    first = call("invite", name, "--patience", "0.1", "--not-done", "rest.csv")
    assert first.returncode == JobExit.GAVE_UP, first.stderr
    for words in (["status", "--json"], ["report"], ["forget", "--yes", "--unfinished"]):
        done = call("job", words[0], name + b".invite.journal", *words[1:])
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
        if "--json" in words:
            assert json.loads(done.stdout)
    assert Path(tmp_path / "rest.csv").exists()
