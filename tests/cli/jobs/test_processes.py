"""Commands for jobs as processes: standard output that nobody reads, other names of files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rbim.cli.exit_codes import JobExit

PATIENCE = 60


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such file names")
def test_a_file_name_that_is_no_utf8(tmp_path):
    """As ``rbim invite $'m\\xff.csv'`` does; nothing listens, so that the job ends early with exit code 4."""
    name = os.fsencode(tmp_path) + b"/m\xff.csv"
    with open(name, "wb") as stream:  # noqa: PTH123  # a name in bytes
        stream.write(b"group,account\ng,a\n")
    start = [sys.executable, "-c", "from rbim.cli import main; main()"]
    environment = os.environ | {"RBIM_BASE_URL": "http://127.0.0.1:9", "RBIM_APP_ID": "a", "RBIM_APP_TOKEN": "t"}
    options = {"env": environment | {"RBIM_USER_NAME": "u"}, "capture_output": True, "timeout": PATIENCE, "cwd": tmp_path}

    def call(*words):
        return subprocess.run([*start, *words], **options, check=False)

    first = call("invite", name, "--patience", "0.1", "--not-done", "rest.csv")
    assert first.returncode == JobExit.GAVE_UP, first.stderr
    for words in (["status", "--json"], ["report"], ["forget", "--yes", "--unfinished"]):
        done = call("job", words[0], name + b".invite.journal", *words[1:])
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
        if "--json" in words:
            assert json.loads(done.stdout)
    assert Path(tmp_path / "rest.csv").exists()
