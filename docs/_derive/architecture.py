"""The parts of the page on architecture that the code says: the house and its layers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from _derive.markdown import code, inline, table

__all__ = ["house", "layers"]

ROOT = Path(__file__).resolve().parents[2]


def house() -> str:
    """Return what stands in the package, with the first sentence of each docstring."""
    package = ROOT / "rbim"
    paths = sorted(package.iterdir(), key=lambda path: (path.is_dir(), path.name))
    rows = (
        (
            code(f"{path.name}/" if path.is_dir() else path.name),
            _first_sentence(path / "__init__.py" if path.is_dir() else path),
        )
        for path in paths
        if path.suffix == ".py" or (path / "__init__.py").exists()
    )
    return "\n" + table(("", "what it is"), rows) + "\n"


def _first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = inline(docstring).split("\n\n")[0]
    head, dot, _ = paragraph.partition(". ")
    return f"{head}." if dot else paragraph


def layers() -> str:
    """Return the layers that ``tests/test_layers.py`` checks, lowest first."""
    tree = ast.parse((ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in {"CALLBACKS", "BULK"} or name == "LAYERS":
                exec(compile(ast.Module([node], []), "layers", "exec"), names)  # noqa: S102  # our own test's constants
    found = names["LAYERS"]
    rows = ((str(number), ", ".join(code(name) for name in sorted(layer))) for number, layer in enumerate(found, start=1))
    return "\n" + table(("layer", "modules; a package stands for those of its own that are not named"), rows) + "\n"
