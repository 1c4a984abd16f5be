"""Make Markdown: tables, inline code, text from docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

__all__ = ["code", "inline", "node_ids", "table", "words_below"]

_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


def code(text: object) -> str:
    """Return inline code, with pipes escaped: a pipe would end the cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def inline(docstring: str) -> str:
    """Return a docstring's text as Markdown: roles and literals as inline code, paragraphs kept."""
    text = _ROLE.sub(r"`\1`", inspect.cleandoc(docstring)).replace("``", "`")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    names = [*head]
    lines = [names, ["---"] * len(names), *([*row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines) + "\n"


def words_below(module: ModuleType, name: str) -> dict[str, str]:
    """Return the docstring below each member of a class, by the name of the member."""
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    (kind,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    for before, after in pairwise(kind.body):
        target: Any = before.targets[0] if isinstance(before, ast.Assign) else None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(target, ast.Name):
            found[target.id] = str(after.value.value)
    return found


def node_ids(tests: Iterable[str]) -> str:
    """Return pytest's node ids, below ``tests/``, as they are given to pytest."""
    return "<br>".join(code(test.removeprefix("tests/")) for test in tests)
