"""A few mutants are noticed; the operators do what they say; areas, record and reasons agree with the code."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("cosmic_ray", reason="mutation testing needs the extra `ci`")
if sys.platform == "win32":
    pytest.skip("each mutant runs in a process that is forked", allow_module_level=True)

from cosmic_ray.mutating import mutate_code

from . import record
from .areas import AREAS
from .mutation import ROOT, mutants_of
from .operators import OWN

KINDS = {"equivalent", "speed", "message", "boundary", "tuning", "open"}


@pytest.mark.parametrize("operator", OWN.values(), ids=OWN)
def test_an_operator_makes_the_changes_of_its_examples(operator):
    for example in operator.examples():
        made = mutate_code(example.pre_mutation_code, operator(), example.occurrence)
        assert made == example.post_mutation_code


def test_areas_name_files_that_are_there():
    for area in AREAS.values():
        assert area.paths()
        assert all((ROOT / path).is_file() for path in area.paths())
        assert all((ROOT / name.partition("::")[0]).exists() for name in area.tests)


def test_each_survivor_of_the_record_has_a_reason():
    areas = json.loads(record.RECORD.read_text(encoding="utf-8"))["areas"]
    survivors = [row for area in areas.values() for row in area["survivors"]]
    assert [row["mutant"] for row in survivors if row["kind"] not in KINDS] == []


def test_each_reason_names_a_function_that_there_is():
    known = record.reasons()
    assert {row["kind"] for row in known.values()} <= KINDS
    assert all(row["reason"] for row in known.values())
    paths = dict.fromkeys(key.partition(" ")[0] for key in known)
    functions = {f"{path} {mutant.function or '(module)'}" for path in paths for mutant in mutants_of(path)}
    assert [key for key in known if key.partition(" | ")[0] not in functions] == []


def test_the_mutants_of_a_function_are_tried_and_noticed(tmp_path):
    """The whole way: tests without mutants, the mutants of the method that signs, the results in a file."""
    command = [sys.executable, "-m", "tests.ci.mutants", "signatures", "--only", "AppSigner.sign ", "--work", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = [json.loads(line) for line in (tmp_path / "signatures.jsonl").read_text().splitlines()]
    assert len(results) > 2
    assert {each["verdict"] for each in results} <= {"killed", "timed out"}
