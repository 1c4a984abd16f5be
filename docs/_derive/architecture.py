"""The derived parts of the page on architecture: the folders, and the layers of the import contract."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

from _derive.markdown import code, inline, table

__all__ = ["house", "layer_names", "pure", "summary"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rbim"


def house() -> str:
    """Return the package's own folders, with the first sentence of the docstring."""
    folders = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
    return "\n" + table(("folder", "content"), ((code(f"{path.name}/"), inline(summary(path))) for path in folders)) + "\n"


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring, or of a package's."""
    source = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    paragraph = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    head, dot, _ = paragraph.partition(". ")
    return f"{head}." if dot else paragraph


def _contract(kind: str) -> dict[str, Any]:
    """Return the first contract of a kind in pyproject.toml."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return next(each for each in tools["importlinter"]["contracts"] if each["type"] == kind)


def layer_names() -> list[list[str]]:
    """Return the names in each layer of the package, highest first."""
    return [layer.split(" | ") for layer in _contract("layers")["layers"]]


def pure() -> set[str]:
    """Return the names of the pure modules: those that do no input or output."""
    return {name.removeprefix("rbim.") for name in _contract("forbidden")["source_modules"]}
