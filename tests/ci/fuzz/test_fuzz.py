"""Every day each kept input goes through its target; CI runs the engine, also to find faults that are put into rbim."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers_ci.proof import read_proof

from .corpora import HERE, kept
from .planted_faults import PLANTED
from .runner import TARGETS, has_engine

ROOT = Path(__file__).parents[3]

needs_engine = pytest.mark.skipif(not has_engine(), reason='atheris is not installed: python -m pip install "rbim[ci]"')


def fuzz(*arguments):
    """The exit code and the output of the command, in a process of its own: atheris instruments what it imports."""
    command = [sys.executable, "-m", "tests.ci.fuzz", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_each_kept_input_keeps_the_promises():
    assert fuzz("replay", "all") == (0, "")


def test_each_target_has_a_corpus_and_a_fault():
    assert [name for name in TARGETS if not kept(name)] == []
    assert sorted(PLANTED) == sorted(TARGETS)
    modules = {path.stem for path in HERE.glob("targets/*.py")} - {"__init__"}
    assert modules == set(TARGETS)


def test_the_record_has_every_target_and_no_open_finding():
    recorded = read_proof("fuzz")
    assert list(recorded["targets"]) == list(TARGETS)
    assert [name for name, each in recorded["targets"].items() if each["open"]] == []
    assert all(each["seconds"] > 0 and each["executions"] > 0 for each in recorded["targets"].values())


@needs_engine
@pytest.mark.parametrize("name", TARGETS)
def test_the_engine_finds_a_fault(name):
    """The engine begins with the same number each time: it finds the fault after as many inputs, on a busy machine later."""
    code, printed = fuzz("faults", name, "--seconds", "120")
    assert code == 0, printed
