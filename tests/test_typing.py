"""What editors, ``help()`` and type checkers are told: the parameters of every method, and the type tests."""

import inspect
import re
import subprocess
import sys

import pytest

from helpers.paths import ROOT
from rbim.operations import catalogue
from rbim.operations.groups import CreateGroup, Groups, GroupType

API = ROOT / "tests" / "typing" / "api.py"


class Sender:
    async def send(self, operation, /):
        return operation


@pytest.mark.parametrize(
    "entry",
    [entry for entry in catalogue.entries() if entry.operation.__module__.startswith("rbim.")],
    ids=lambda entry: entry.method,
)
def test_a_method_has_the_parameters_and_the_words_of_its_operation(entry):
    method = getattr(catalogue.namespaces()[entry.namespace](Sender()), entry.method)
    signature = inspect.signature(method)
    assert signature == inspect.signature(entry.operation)
    assert {each.kind for each in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert inspect.getdoc(method) == inspect.getdoc(entry.operation)
    assert method.__name__ == entry.method
    assert method.__qualname__.lower() == f"{entry.namespace}.{entry.method}"
    assert inspect.iscoroutinefunction(method)


async def test_a_method_sends_the_operation_that_its_arguments_make():
    groups = Groups(Sender())
    assert await groups.create(name="a", type=GroupType.VIP) == CreateGroup(name="a", type=GroupType.VIP)
    assert groups.create is groups.create  # made once per namespace
    assert Groups.create.operation is CreateGroup


def test_each_wrong_use_is_wrong_for_both_checkers():
    """A line that only one of them is told to pass over would show where they disagree."""
    wrong = [line for line in API.read_text(encoding="utf-8").splitlines() if "ignore[" in line]
    assert len(wrong) > 20
    assert all(re.search(r"# type: ignore\[[\w, -]+\]  # pyright: ignore\[[\w, ]+\]$", line) for line in wrong)


# A right use that both are told to pass over, and a wrong one that neither is.
RIGHT = """

async def right(client: AsyncClient) -> Created:
    return await client.groups.create(name="", type=GroupType.VIP)  # type: ignore[misc]  # pyright: ignore[reportReturnType]
"""
WRONG = """

async def wrong(client: AsyncClient) -> None:
    await client.groups.create(name="a", type="4")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checker", "project", "unused", "wrong"),
    [
        ("mypy", ["--config-file", "pyproject.toml"], "[unused-ignore]", "[arg-type]"),
        ("pyright", ["--project", "pyproject.toml"], "(reportUnnecessaryTypeIgnoreComment)", "(reportArgumentType)"),
    ],
)
def test_the_type_tests_hold_and_would_notice(checker, project, unused, wrong, tmp_path):
    pytest.importorskip(checker)

    def check(more):
        path = tmp_path / "api.py"
        path.write_text(API.read_text(encoding="utf-8") + more, encoding="utf-8")
        command = [sys.executable, "-m", checker, *project, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, re.findall(r"(\[[a-z-]+\]|\(report\w+\))$", done.stdout, flags=re.MULTILINE)

    assert check("") == (0, [])
    assert check(RIGHT) == (1, [unused])
    assert check(WRONG) == (1, [wrong])
