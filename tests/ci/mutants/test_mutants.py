"""The tool's own logic: which changes it finds, that it makes them, and what it does with the results."""

import json
import sys
import tomllib
from types import SimpleNamespace

import pytest

pytest.importorskip("cosmic_ray", reason="mutation testing needs the extra `ci`")
if sys.platform == "win32":
    pytest.skip("each mutant runs in a process that is forked", allow_module_level=True)

from cosmic_ray.mutating import mutate_code

from . import mutation, record
from .areas import AREAS
from .mutation import ROOT, Mutant, mutants_of
from .operators import OWN
from .session import Result

PATH = "rbim/client/retry.py"
TEXT = '''"""A module."""

LIMIT = 300


class Budget:
    size: int = 3

    def spend(self, left: int | None, *given) -> bool:
        self.left = left - 1
        first = left
        return left < 1 and bool(first)


QUERY = "SELECT 1 FROM event WHERE due <= ? AND state = 0 ORDER BY number LIMIT 1"
'''


@pytest.fixture
def module(monkeypatch):
    """Have other text in place of that of a module."""
    texts = {PATH: TEXT}
    monkeypatch.setattr(mutation, "source", lambda path: texts[path])
    return texts


@pytest.mark.parametrize("operator", OWN.values(), ids=OWN)
def test_an_operator_makes_the_changes_of_its_examples(operator):
    for example in operator.examples():
        made = mutate_code(example.pre_mutation_code, operator(), example.occurrence)
        assert made == example.post_mutation_code


@pytest.mark.usefixtures("module")
def test_the_changes_of_a_module_are_named_by_what_they_change():
    changes = {mutant.change() for mutant in mutants_of(PATH)}
    assert "self.left = left - 1 -> self.left = left + 1" in changes
    assert "self.left = left - 1 -> pass" in changes
    assert "return left < 1 and bool(first) -> return left <= 1 and bool(first)" in changes
    assert "size: int = 3 -> size: int = 4" in changes
    assert any("due < ?" in change for change in changes)
    assert not any(change.startswith(("first = left", "LIMIT", "def spend")) for change in changes)


def test_a_name_stays_when_other_code_of_the_module_changes(module):
    before = {mutant.key: mutant for mutant in mutants_of(PATH)}
    assert len(before) == len(mutants_of(PATH))
    module[PATH] = TEXT.replace("LIMIT = 300\n", "LIMIT = 300\nOTHER = max(1, 2) + 3\n")
    after = {mutant.key: mutant for mutant in mutants_of(PATH)}
    assert before.keys() <= after.keys()
    assert all(
        before[key].digest == after[key].digest and before[key].line < after[key].line for key in before if "spend" in key
    )
    module[PATH] = TEXT.replace("first = left", "first = left  # another text")
    changed = {mutant.key: mutant for mutant in mutants_of(PATH)}
    assert all(before[key].digest != changed[key].digest for key in before if "spend" in key)


def test_a_run_goes_on_where_another_one_has_ended(tmp_path):
    mutant = Mutant(PATH, "f", "AddNot", 0, 1, (1, 1), "a key", "a digest")
    record.Results(tmp_path, "an area").add(Result("a key", "survived", "", 3, 0.1, "a digest"))
    results = record.Results(tmp_path, "an area")
    assert results.of(mutant).verdict == "survived"
    assert not results.noticed(mutant)
    assert results.of(Mutant(PATH, "f", "AddNot", 0, 1, (1, 1), "a key", "another text")) is None
    results.add(Result("a key", "killed", "a test", 1, 0.1, "a digest"))
    assert record.Results(tmp_path, "an area").noticed(mutant)


def test_a_survivor_without_a_reason_is_new(monkeypatch):
    monkeypatch.setattr(record, "reasons", lambda: {"known": {"kind": "speed", "reason": "it costs time"}})
    sample = [
        SimpleNamespace(key=key, path=PATH, line=1, change=lambda: "a -> b")
        for key in ("killed", "known", "unknown", "late")
    ]
    verdicts = {"killed": "killed", "known": "survived", "unknown": "survived"}
    results = SimpleNamespace(
        of=lambda mutant: verdict and SimpleNamespace(verdict=verdict) if (verdict := verdicts.get(mutant.key)) else None
    )
    counted = record.area_record([PATH], 9, sample, results)
    assert (counted["possible"], counted["mutants"], counted["noticed"], counted["survived"]) == (9, 3, 1, 2)
    assert {row["mutant"]: row["kind"] for row in counted["survivors"]} == {"known": "speed", "unknown": record.NEW}


def test_areas_name_files_that_are_there():
    for area in AREAS.values():
        assert area.paths()
        assert all((ROOT / path).is_file() for path in area.paths())
        assert all((ROOT / name.partition("::")[0]).exists() for name in area.tests)


def test_each_survivor_of_the_record_has_its_reason_and_each_reason_its_survivor():
    areas = json.loads(record.RECORD.read_text(encoding="utf-8"))["areas"]
    survivors = {row["mutant"]: row for area in areas.values() for row in area["survivors"]}
    assert survivors.keys() == record.reasons().keys()
    assert tomllib.loads(record.REASONS.read_text(encoding="utf-8"))
    assert {row["kind"] for row in survivors.values()} <= {"equivalent", "speed", "message", "boundary", "tuning", "open"}


def test_a_few_mutants_of_all_areas_are_killed():
    import subprocess

    command = [sys.executable, "-m", "tests.ci.mutants", "--fixed"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
