"""Every day each kept input goes through its target; CI runs the engine, also to find faults that are put into rbim."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .broken import Broken, require
from .corpora import HERE, kept
from .engine import Findings, kind_of
from .planted_faults import PLANTED
from .record import RECORDED
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


def test_a_finding_is_noted_once_for_each_promise(tmp_path, capsys):
    def check(data):
        require(data != b"a", "no a", data)
        require(b"b" not in data, "no b", data)
        assert data != b"c"

    checked = Findings(tmp_path, stop=False).checked(check)
    for data in (b"x", b"a", b"b", b"bb", b"c", b"a"):
        checked(data)
    kinds = {path.read_text().splitlines()[0] for path in tmp_path.glob("*.txt")}
    assert kinds == {"no a", "no b", 'AssertionError in check: assert data != b"c"'}
    assert sorted(path.read_bytes() for path in tmp_path.glob("*.input")) == [b"a", b"b", b"c"]
    assert capsys.readouterr().err.count("FINDING") == 3
    assert kind_of(Broken("a rule", 1)) == "a rule"
    assert str(Broken("a rule", 1, "b")) == "a rule\n  1\n  b"


def test_the_record_has_every_target_and_no_open_finding():
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert list(recorded["targets"]) == list(TARGETS)
    assert [name for name, each in recorded["targets"].items() if each["open"]] == []
    assert all(each["seconds"] > 0 and each["executions"] > 0 for each in recorded["targets"].values())


@needs_engine
def test_a_run_says_what_it_tried(tmp_path):
    code, printed = fuzz("--folder", str(tmp_path), "run", "events", "--seconds", "2")
    assert (code, printed.count("\n")) == (0, 1), printed
    _, executions, edges, _ = map(int, re.findall(r"\d+", printed.partition(":")[2]))
    assert min(executions, edges) > 0


@needs_engine
@pytest.mark.parametrize("name", TARGETS)
def test_the_engine_finds_a_fault(name):
    """The engine begins with the same number each time: it finds the fault after as many inputs, on a busy machine later."""
    code, printed = fuzz("faults", name, "--seconds", "120")
    assert code == 0, printed
