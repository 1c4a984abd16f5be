"""The table of the interface description's statements: it is whole, and what it names is there.

The rows are in the ``.toml`` files beside this one, one file for each section of the description. A page
of ``docs/internals`` shows them.
"""

import ast
from functools import cache

import attrs

from helpers.pages import docs_module
from helpers.paths import ROOT
from helpers.tables import each_row
from rbim import Dialect
from rbim.emulator import Rules

description = docs_module("_derive.description")
ROWS = description.rows()
STATEMENTS = [row for row in ROWS if not row.gap]
GAPS = [row for row in ROWS if row.gap]
SHAPES = "tests/description/test_shapes.py"
CHOICES = [*Dialect.gaps(), *Rules.gaps()]
FIELDS = {gap.name for gap in CHOICES}
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


def missing_places(rows):
    return [(row.name, place) for row in rows for place in row.where if not there(place)]


def missing_tests(rows):
    return [(row.name, test) for row in rows for test in row.tests if proof(test) is None]


def without_everyday_test(rows):
    return [row.name for row in rows if not any(map(runs_every_day, row.tests))]


def unsettled(rows):
    """Return the gaps that name neither a field nor the reason why they need none, or both."""
    return [row for row in rows if bool(row.fields) is bool(row.no_field)]


def unknown_fields(rows):
    return [(row.name, field) for row in rows for field in row.fields if field not in FIELDS]


def there(place):
    path, _, name = place.partition(":")
    file = ROOT / path
    return path.startswith("rbim/") and file.is_file() and name in names_in(file)


def proof(name):
    """Return the function of a test, or None; what stands in brackets is the case that a reader should look at."""
    path, _, function = name.partition("[")[0].partition("::")
    return functions_in(ROOT / path).get(function) if (ROOT / path).is_file() else None


@cache
def functions_in(file):
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: node for node in functions if node.name.startswith("test_")}


def runs_every_day(name):
    marks = [ast.unparse(each) for each in getattr(proof(name), "decorator_list", ())]
    return not name.startswith("tests/ci/") and "pytest.mark.ci" not in marks


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


def test_every_place_is_there():
    assert missing_places(ROWS) == []


def test_every_test_is_there_and_one_of_each_row_runs_every_day():
    assert missing_tests(ROWS) == []
    assert without_everyday_test(ROWS) == []


def test_every_gap_names_the_field_that_settles_it_or_why_nothing_is_assumed():
    assert unsettled(GAPS) == []
    assert [row.name for row in STATEMENTS if row.no_field] == []


def test_every_choice_belongs_to_a_row_and_no_other_does():
    assert unknown_fields(ROWS) == []
    assert {field for row in ROWS for field in row.fields} == FIELDS


def test_every_field_is_named_in_the_section_that_it_settles():
    places = {field: {row.part or row.section for row in ROWS if field in row.fields} for field in FIELDS}
    assert [gap.name for gap in CHOICES if places[gap.name].isdisjoint(gap.section.split(", "))] == []


def test_every_test_of_the_shapes_proves_a_row():
    named = {test.partition("[")[0] for row in ROWS for test in row.tests}
    assert {f"{SHAPES}::{name}" for name in functions_in(ROOT / SHAPES)} <= named


# ---------------------------------------------------------------------------- the checks see what is wrong

GOOD = attrs.evolve(STATEMENTS[0], number=1)
GAP = attrs.evolve(next(row for row in GAPS if row.fields), number=1)


@each_row(
    "check, row, wrong",
    [
        (misnumbered, GOOD, {"number": 2}),
        (without_proof, GOOD, {"tests": []}),
        (without_proof, GOOD, {"where": []}),
        (missing_places, GOOD, {"where": ["rbim/operations/groups.py:Groups.explode"]}),
        (missing_places, GOOD, {"where": ["rbim/operations/nowhere.py:Groups"]}),
        (missing_tests, GOOD, {"tests": [f"{SHAPES}::test_that_is_gone"]}),
        (missing_tests, GOOD, {"tests": ["tests/description/test_nowhere.py::test_a"]}),
        (without_everyday_test, GOOD, {"tests": ["tests/ci/docs/test_readme.py::test_ci_runs"]}),
        (unsettled, GAP, {"fields": []}),
        (unknown_fields, GAP, {"fields": ["taste"]}),
    ],
)
def test_a_check_names_the_row_that_is_wrong(check, row, wrong):
    assert check([row]) == []
    assert len(check([attrs.evolve(row, **wrong)])) == 1
