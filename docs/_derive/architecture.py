"""The derived parts of the page on architecture: the modules and folders, and the layers of the import contract."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _derive.markdown import code, inline, table

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["house", "layer_names", "pure", "summary"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rbim"


def house() -> str:
    """Return the package's own modules and folders, with the first sentence of the docstring."""
    rows = ((code(f"{path.name}/" if path.is_dir() else path.name), inline(summary(path))) for path in _parts())
    return "\n" + table(("", "what it is"), rows) + "\n"


def _parts() -> Iterator[Path]:
    for path in sorted(PACKAGE.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if (path / "__init__.py").exists() or (path.suffix == ".py" and not path.name.startswith("__")):
            yield path


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
