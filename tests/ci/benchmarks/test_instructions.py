"""The instructions: two trees are compared, what is slower is refused, what is meant is accepted."""

import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest

from benchmarks import instructions
from benchmarks.__main__ import main
from benchmarks.instructions import Counts

BEFORE = Counts({"core": 100_000.0, "asyncio": 200_000.0, "gone": 1.0}, {"asyncio-h11": "ImportError: no httptools"})


@pytest.fixture
def after(monkeypatch):
    """Return a function that lets both trees have these figures and the commits between them this message."""

    def planted(figures, message=""):
        def counts(tree, *, quick=False):
            del quick
            return BEFORE if tree else Counts(figures, {})

        def git(command, *arguments):
            asked.append((command, *arguments))
            return message.encode()

        asked = []
        monkeypatch.setattr(instructions, "counts", counts)
        monkeypatch.setattr(instructions, "_git", git)
        monkeypatch.setattr(instructions, "missing", str)
        monkeypatch.setattr(instructions, "tree_of", nullcontext)
        return asked

    return planted


def test_a_slow_down_is_refused_and_named(after, capsys):
    asked = after({"core": 105_001.0, "asyncio": 209_000.0, "new": 5.0})
    assert main(["instructions", "--against", "HEAD~1"]) == 1
    out, error = capsys.readouterr()
    assert asked == [("log", "--format=%B", "HEAD~1..HEAD")]
    assert ["core", "100.0", "105.0", "+5.0%"] in [line.split() for line in out.splitlines()]
    assert ["asyncio", "200.0", "209.0", "+4.5%"] in [line.split() for line in out.splitlines()]
    assert "new" not in out
    assert "Left out: asyncio-h11 (ImportError: no httptools)." in out
    refused = error.splitlines()[-1]
    assert refused.startswith("python -m benchmarks: too many instructions: core: make it faster")


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="it needs valgrind")
def test_the_instructions_of_a_process_are_read(tmp_path):
    log = tmp_path / "log"
    subprocess.run([*instructions.VALGRIND, f"--log-file={log}", sys.executable, "-S", "-c", "pass"], check=True)
    assert instructions._references(log) > 1_000_000
