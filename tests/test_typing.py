"""What editors, ``help()`` and type checkers are told: the parameters of every method, and the type tests."""

import inspect
import pydoc
import re
import subprocess
import sys
from typing import get_args, get_type_hints

import attrs
import pytest

from helpers.paths import ROOT
from helpers.tables import each_row
from rbim.operations import catalogue
from rbim.operations.groups import Groups

API = ROOT / "tests" / "typing" / "api.py"


class Sender:
    async def send(self, operation, /):
        return operation


@each_row("entry", [entry for entry in catalogue.entries() if entry.operation.__module__.startswith("rbim.")])
def test_a_method_has_the_parameters_and_the_words_of_its_operation(entry):
    method = getattr(catalogue.namespaces()[entry.namespace](Sender()), entry.method)
    signature = inspect.signature(method)
    declared = inspect.signature(entry.operation)
    assert [(each.name, each.kind, each.default) for each in signature.parameters.values()] == [
        (each.name, each.kind, each.default) for each in declared.parameters.values()
    ]
    assert signature.return_annotation is answer_of(entry.operation)
    assert inspect.signature(method, eval_str=True) == signature  # types, not their names
    assert get_type_hints(method) == inspect.get_annotations(method, eval_str=True)
    assert get_type_hints(method).keys() == signature.parameters.keys() | {"return"}
    assert {name: each.annotation for name, each in signature.parameters.items()} == {
        name: taken(entry.operation, name) for name in signature.parameters
    }
    assert {each.kind for each in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert inspect.getdoc(method) == inspect.getdoc(entry.operation)
    assert method.__name__ == entry.method
    assert method.__qualname__.lower() == f"{entry.namespace}.{entry.method}"
    assert inspect.iscoroutinefunction(method)


def answer_of(kind):
    """Return the answer class that an operation names in brackets."""
    return next(get_args(base)[0] for base in get_original_bases(kind) if get_args(base))


def get_original_bases(kind):
    return [each for base in kind.__mro__ for each in vars(base).get("__orig_bases__", ())]


def taken(kind, name):
    """Return the type that a checker expects for a field: what its converter takes, or else what it is declared as."""
    converter = attrs.fields_dict(kind)[name].converter
    if converter is None:
        return get_type_hints(kind)[name]
    hints = get_type_hints(converter)
    return next(iter(hints.values()))


def test_a_method_shows_its_parameters_and_its_answer():
    assert str(inspect.signature(Groups(Sender()).detail)) == (
        "(*, user_name: str | None = None, group_id: str) -> rbim.operations.groups.GroupDetail"
    )
    assert repr(Groups.detail) == f"detail{inspect.signature(Groups(Sender()).detail)}"
    assert "async detail(*, user_name: str | None = None, group_id: str)" in pydoc.plain(
        pydoc.render_doc(Groups(Sender()).detail)
    )


def test_each_wrong_use_is_wrong_for_both_checkers():
    """A line that only one of them is told to pass over would show where they disagree."""
    wrong = [line for line in API.read_text(encoding="utf-8").splitlines() if "ignore[" in line]
    assert len(wrong) > 20
    assert all(re.search(r"# type: ignore\[[\w, -]+\]  # pyright: ignore\[[\w, ]+\]$", line) for line in wrong)


def test_every_mount_of_the_page_is_checked():
    """The forms that stand in docs/callbacks.md are those that both checkers read in tests/typing/mounts.py."""

    page = (ROOT / "docs" / "callbacks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    mounts = {line.strip() for block in blocks for line in block.splitlines() if "receiver.asgi" in line}
    checked = (ROOT / "tests" / "typing" / "mounts.py").read_text(encoding="utf-8")
    asgi = {line for line in mounts if "Route(" in line}
    assert len(asgi) == 1
    assert all(line in checked for line in asgi)
    others = {'await (receiver.asgi if scope["type"] == "lifespan" else django)(scope, receive, send)'}
    assert mounts - asgi == others  # Django's application has no types


# A right use that both are told to pass over, and a wrong one that neither is.
RIGHT = """

async def right(client: AsyncClient) -> Created:
    return await client.groups.create(name="", type=GroupType.VIP)  # type: ignore[misc]  # pyright: ignore[reportReturnType]
"""
WRONG = """

async def wrong(client: AsyncClient) -> None:
    await client.groups.create(name="a", type="4")
"""


@pytest.mark.ci
@each_row(
    "checker, project, unused, wrong",
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
