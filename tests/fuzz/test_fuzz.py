"""Every day each kept input goes through its target; CI runs the engine, also to find faults that are put into rbim."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import corpora
from .broken import Broken, require
from .command_line import main
from .corpora import HERE, findings, kept, write_kept
from .engine import Findings, kind_of
from .planted_faults import PLANTED
from .record import RECORDED
from .runner import TARGETS, Progress, _add, has_engine

ROOT = Path(__file__).parents[2]
MOST_KEPT = 500_000  # bytes, together

needs_engine = pytest.mark.skipif(not has_engine(), reason='atheris is not installed: python -m pip install "rbim[proof]"')


def fuzz(*arguments):
    """The exit code and the output of the command, in a process of its own: atheris instruments what it imports."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_each_kept_input_keeps_the_promises():
    assert fuzz("replay", "all") == (0, "")


def test_the_inputs_are_kept_as_small_text():
    files = [*HERE.glob("corpus/*.txt"), *HERE.glob("findings/*.txt")]
    assert {path.stem for path in files} <= set(TARGETS)
    assert sum(path.stat().st_size for path in files) < MOST_KEPT
    for path in files:
        lines = [line for line in path.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
        assert all(isinstance(ast.literal_eval(line), bytes) for line in lines)
        assert len(lines) == len(set(lines))


def test_each_target_has_a_corpus_and_a_fault():
    assert [name for name in TARGETS if not kept(name)] == []
    assert sorted(PLANTED) == sorted(TARGETS)
    modules = {path.stem for path in HERE.glob("targets/*.py")} - {"__init__"}
    assert modules == set(TARGETS)


def test_what_is_kept_is_read_as_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "HERE", tmp_path)
    inputs = [bytes(range(256)), b"'\"\\\n", b"a"]
    size = write_kept("x", inputs)
    assert size == len((tmp_path / "corpus" / "x.txt").read_bytes())
    assert kept("x") == [b"a", b"'\"\\\n", bytes(range(256))]
    assert findings("x") == []


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


LOG = """\
#2\tINITED cov: 10 ft: 12 corp: 1/1b exec/s: 0 rss: 40Mb
#70\tREDUCE cov: 11 ft: 13 corp: 2/4b lim: 4 exec/s: 0 rss: 40Mb L: 2/2 MS: 1 EraseBytes-
#90\tDONE   cov: 12 ft: 14 corp: 3/5b lim: 4 exec/s: 45 rss: 40Mb
Done 90 runs in 2 second(s)
stat::number_of_executed_units: 90
"""


def test_the_progress_of_several_runs_is_added_up(tmp_path):
    progress = Progress(seconds=3, executions=10, edges=5, inputs=1, findings={"old": "x"})
    (tmp_path / "abc.txt").write_text("a rule\nmore\n")
    (tmp_path / "timeout-123").write_bytes(b"")
    _add(progress, LOG, tmp_path)
    assert progress == Progress(5, 100, 12, 3, {"a rule": "abc.txt", "timeout": "timeout-123"})
    _add(progress, LOG.partition("#90")[0], tmp_path)  # killed
    assert (progress.seconds, progress.executions, progress.edges) == (5, 170, 11)


def test_without_the_engine_it_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "atheris", None)
    assert main(["--folder", str(tmp_path), "run", "values", "--seconds", "1"]) == 2
    assert capsys.readouterr().out == 'atheris is not installed: python -m pip install "rbim[proof]"\n'


def test_the_record_has_every_target_and_no_open_finding():
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert list(recorded["targets"]) == list(TARGETS)
    assert [name for name, each in recorded["targets"].items() if each["open"]] == []
    assert all(each["seconds"] > 0 and each["executions"] > 0 for each in recorded["targets"].values())


@needs_engine
@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", TARGETS)
def test_the_engine_finds_nothing_in_some_seconds(name, tmp_path):
    code, printed = fuzz("--folder", str(tmp_path), "run", name, "--seconds", "5")
    assert (code, printed.count("\n")) == (0, 1), printed
    _, executions, edges, _ = re.findall(r"\d+", printed.partition(":")[2])
    assert int(executions) > 0
    assert int(edges) > 0


@needs_engine
@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", TARGETS)
def test_the_engine_finds_a_fault(name):
    """The engine begins with the same number each time: it finds the fault after as many inputs, on a busy machine later."""
    code, printed = fuzz("faults", name, "--seconds", "120")
    assert code == 0, printed


@needs_engine
@pytest.mark.slow
@pytest.mark.ci
def test_the_fewest_inputs_are_of_the_corpus(tmp_path):
    fuzz("--folder", str(tmp_path), "run", "values", "--seconds", "2")
    program = "import sys, pathlib, tests.fuzz.runner as r; print(r.Runner(pathlib.Path(sys.argv[1])).minimised('values'))"
    command = [sys.executable, "-c", program, str(tmp_path)]
    fewest = ast.literal_eval(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    corpus = [path.read_bytes() for path in (tmp_path / "values" / "corpus").iterdir()]
    assert 0 < len(fewest) < len(corpus)
    assert set(fewest) <= set(corpus)
