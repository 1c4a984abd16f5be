"""The table of the interface description's statements: it is whole, and what it names is there.

The rows are in the ``.toml`` files beside this one, one file for each section of the description. ``docs/description.md``
shows them.
"""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache

import attrs
import pytest

from helpers.pages import docs_module
from helpers.paths import PACKAGE, ROOT
from rbim import Dialect

description = docs_module("_derive.description")
ROWS = description.rows()
STATEMENTS = [row for row in ROWS if not row.gap]
GAPS = [row for row in ROWS if row.gap]
FIELDS = {each.name for each in attrs.fields(Dialect)}
SECTIONS = [
    "What the service does",
    "Resources and their fields",
    "States and transitions",
    "Endpoints",
    "Authentication",
    "Events",
    "Errors",
    "Limits",
    "Versioning",
]


# ------------------------------------------------------------------------------ what is wrong with rows


def misnumbered(rows):
    """Return the rows whose number is not their place."""
    return [row for expected, row in enumerate(rows, 1) if row.number != expected]


def without_proof(rows):
    """Return the rows that name no place or no test."""
    return [row for row in rows if not row.says or not row.where or not row.tests]


def without_chinese(rows):
    """Return the rows whose text in Chinese is missing, is not Chinese, or has other code in it."""
    pairs = [(row, pair) for row in rows for pair in ((row.says, row.zh), (row.no_field, row.zh_no_field)) if any(pair)]
    return [row for row, (says, zh) in pairs if not re.search("[\u4e00-\u9fff]", zh) or coded(says) != coded(zh)]


def coded(text):
    return sorted(re.findall(r"`[^`]+`", text))


def missing_places(rows):
    return [(row.name, place) for row in rows for place in row.where if not there(place)]


def missing_tests(rows):
    return [(row.name, test) for row in rows for test in row.tests if not runs_every_day(test)]


def unsettled(rows):
    """Return the gaps that name neither a field nor the reason why they need none, or both."""
    return [row for row in rows if bool(row.fields) is bool(row.no_field)]


def unknown_fields(rows):
    return [(row.name, field) for row in rows for field in row.fields if field not in FIELDS]


def there(place):
    path, _, name = place.partition(":")
    file = ROOT / path
    return path.startswith("rbim/") and file.is_file() and name in names_in(file)


def runs_every_day(test):
    name, bracket, case = test.removesuffix("]").partition("[")
    cases = everyday_tests().get(name, [])
    return any(f"-{case}-" in f"-{each}-" for each in cases) if bracket else bool(cases)


@cache
def everyday_tests():
    """Return the parameters of each test that pytest runs every day, from the files that the table names."""
    files = sorted({test.partition("::")[0] for row in ROWS for test in row.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--assert=plain", "-p", "no:cacheprovider"]
    command += [file for file in files if (ROOT / file).is_file()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = defaultdict(list)
    for line in done.stdout.splitlines():
        if "::" in line:
            name, _, parameters = line.removesuffix("]").partition("[")
            found[name].append(parameters)
    return found


@cache
def names_in(file):
    """Return the names that a module defines at its top and in its classes, such as ``Group`` and ``Group.owner``."""
    return set(defined(ast.parse(file.read_text(encoding="utf-8")).body, ""))


def defined(body, prefix):
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from defined(node.body, f"{prefix}{node.name}.")
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


# ------------------------------------------------------------------------------------------ the table


def test_the_description_has_226_statements_and_18_gaps():
    assert (len(STATEMENTS), len(GAPS)) == (226, 18)


def test_the_sections_are_those_of_the_description_in_its_order():
    assert list(dict.fromkeys(row.section for row in ROWS)) == SECTIONS


def test_the_numbers_are_consecutive():
    assert misnumbered(STATEMENTS) == []
    assert misnumbered(GAPS) == []


def test_no_statement_stands_there_twice():
    assert len({(row.section, row.part, row.says) for row in ROWS}) == len(ROWS)


def test_every_row_names_a_place_and_a_test():
    assert without_proof(ROWS) == []


def test_every_row_says_the_same_in_chinese():
    assert without_chinese(ROWS) == []
    assert len({(row.says, row.zh) for row in ROWS}) == len({row.says for row in ROWS})


def test_every_place_is_there():
    assert missing_places(ROWS) == []


def test_every_test_is_there_and_runs_every_day():
    assert missing_tests(ROWS) == []


def test_every_gap_names_the_field_that_settles_it_or_why_nothing_is_assumed():
    assert unsettled(GAPS) == []
    assert [row.name for row in STATEMENTS if row.no_field] == []


def test_every_field_of_the_dialect_belongs_to_a_row_and_no_other_does():
    assert unknown_fields(ROWS) == []
    assert {field for row in ROWS for field in row.fields} == FIELDS


def test_every_field_is_named_in_the_section_that_it_settles():
    places = {field: {row.part or row.section for row in ROWS if field in row.fields} for field in FIELDS}
    assert [gap.name for gap in Dialect.gaps() if places[gap.name].isdisjoint(gap.section.split(", "))] == []


def test_every_test_of_the_shapes_proves_a_row():
    named = {test.partition("[")[0] for row in ROWS for test in row.tests}
    assert {name for name in everyday_tests() if name.startswith("tests/description/test_shapes.py::")} <= named


# ---------------------------------------------------------------------------- the checks see what is wrong

GOOD = STATEMENTS[0]
GAP = next(row for row in GAPS if row.fields)
SHAPES = "tests/description/test_shapes.py"
IN_TIME = "tests/callbacks/receiver/test_in_time.py::test_a_handler_that_misbehaves_never_delays_an_answer"
CLIENT = "test_the_client_sends_this_request_and_reads_this_answer"


@pytest.mark.parametrize(
    ("check", "row", "wrong"),
    [
        (misnumbered, GOOD, {"number": 2}),
        (without_proof, GOOD, {"tests": []}),
        (without_proof, GOOD, {"where": []}),
        (without_chinese, GOOD, {"zh": ""}),
        (without_chinese, GOOD, {"zh": GOOD.says}),
        (without_chinese, GOOD, {"zh": "`sig` 是签名。"}),
        (without_chinese, GAP, {"no_field": "a reason", "zh_no_field": ""}),
        (missing_places, GOOD, {"where": ["rbim/operations/groups.py:Groups.explode"]}),
        (missing_places, GOOD, {"where": ["rbim/operations/nowhere.py:Groups"]}),
        (missing_places, GOOD, {"where": ["tests/description/test_table.py:there"]}),
        (missing_tests, GOOD, {"tests": [f"{SHAPES}::test_that_is_gone"]}),
        (missing_tests, GOOD, {"tests": [f"{SHAPES}::contents"]}),
        (missing_tests, GOOD, {"tests": ["tests/description/test_nowhere.py::test_a"]}),
        (missing_tests, GOOD, {"tests": [f"{SHAPES}::{CLIENT}[DeleteGroups]"]}),
        (missing_tests, GOOD, {"tests": [f"{SHAPES}::{CLIENT}[Group]"]}),
        (missing_tests, GOOD, {"tests": [f"{IN_TIME}[memory]"]}),
        (unsettled, GAP, {"fields": []}),
        (unsettled, GAP, {"no_field": "both"}),
        (unknown_fields, GAP, {"fields": ["taste"]}),
    ],
)
def test_a_check_names_the_row_that_is_wrong(check, row, wrong):
    first = attrs.evolve(row, number=1)
    assert check([first]) == []
    assert len(check([attrs.evolve(first, **wrong)])) == 1


def test_a_row_with_an_unknown_or_a_missing_key_is_refused():
    row = attrs.asdict(GOOD)
    description.Row(**row)
    for wrong in ({**row, "test": "x"}, {key: value for key, value in row.items() if key != "tests"}):
        with pytest.raises(TypeError):
            description.Row(**wrong)


def test_places_are_found_in_classes_and_as_constants():
    groups = PACKAGE / "operations" / "groups.py"
    assert names_in(groups) >= {"NAME", "Role", "Role.CREATOR", "CreateGroup.name", "Groups.create", "GroupDetail.owner"}
