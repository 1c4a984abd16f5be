"""The instructions: two trees are compared, what is slower is refused, what is meant is accepted."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest

from benchmarks import counted, instructions
from benchmarks.__main__ import main
from benchmarks.httpload import process
from benchmarks.instructions import Counts, accepted, comparison
from helpers.paths import ROOT

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


def test_a_slow_down_that_is_meant_is_accepted_and_shown(after, capsys):
    after({"core": 150_000.0, "asyncio": 200_000.0}, "Subject\n\nSlower: core each field is checked twice\n")
    assert main(["instructions", "--against", "HEAD~1"]) == 0
    assert "Accepted: core +50.0%: each field is checked twice." in capsys.readouterr().out


def test_a_slow_down_of_something_else_does_not_accept_it(after):
    after({"core": 150_000.0, "asyncio": 200_000.0}, "Slower: asyncio connections are checked\nSlower: core\nslower: core x")
    assert main(["instructions", "--against", "HEAD~1"]) == 1


def test_the_tolerance_is_given(after):
    after({"core": 105_001.0, "asyncio": 150_000.0})
    assert main(["instructions", "--against", "HEAD~1", "--tolerance", "0.06"]) == 0


def test_a_tree_has_the_package_of_its_revision_and_the_present_benchmarks():
    with instructions.tree_of("") as tree:
        assert {path.name for path in tree.iterdir()} == {"rbim", "benchmarks"}
        assert (tree / "rbim" / "errors.py").read_bytes() == (ROOT / "rbim" / "errors.py").read_bytes()
        done = subprocess.run(
            [sys.executable, "-c", "import benchmarks, rbim; print(benchmarks.__file__, rbim.__file__)"],
            cwd=tree,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == [str(tree / "benchmarks" / "__init__.py"), str(tree / "rbim" / "__init__.py")]


def test_messages_say_what_is_slower_and_why():
    message = "One\n\nSlower: core  a reason \n\nTwo\n\n  Slower: asyncio indented\nSlower: fan-out another one\n"
    assert accepted(message) == {"core": "a reason", "fan-out": "another one"}


def test_what_only_one_tree_has_is_left_out_with_the_reason():
    result = comparison("HEAD", BEFORE, Counts({"core": 1e5, "new": 1.0}, {"gone": "renamed"}), {}, 0.05)
    assert [goal.name for goal in result.goals] == ["instructions of core / at HEAD"]
    assert result.notes == ("Left out: asyncio-h11 (ImportError: no httptools).", "Left out: gone (renamed).")


def test_a_missing_valgrind_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert main(["instructions"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "measuring instructions ...",
        "python -m benchmarks: instructions: valgrind is not installed: apt-get install valgrind",
    ]


def test_a_revision_that_there_is_not_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(instructions, "missing", str)
    assert main(["instructions", "--against", "no-such-revision"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("python -m benchmarks: instructions: git log: ")


def test_every_item_runs_and_tells_its_processes():
    """Without valgrind, which would count; each item ends with two processes of its own."""
    with process("benchmarks.target") as served:
        command = [sys.executable, "-m", "benchmarks.counted", str(served.port), "--quick"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    found = {line["item"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert [*found] == [*counted.ITEMS]
    for name, line in found.items():
        if "error" in line:
            assert name == "asyncio-h11", line
            assert "httptools" in line["error"]
        else:
            assert len({*line["processes"]}) == 2
            assert line["calls"] == 20


def test_a_counter_marks_the_end_of_its_warm_up_and_its_own(monkeypatch):
    ended = iter([7, 8])
    monkeypatch.setattr(counted, "_ended", ended.__next__)
    counter = counted.Counter(2, 3)
    assert [counter.more() for _ in range(5)] == [True] * 4 + [False]
    assert counter.processes == [7, 8]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="it needs valgrind")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="it needs the history")
def test_a_tree_beside_itself_has_the_same_figures(capsys):
    assert main(["instructions", "--against", "HEAD", "--quick", "--tolerance", "0.2"]) == 0
    assert "fan-out" in capsys.readouterr().out
    assert os.environ.get("PYTHONHASHSEED") != "0"
