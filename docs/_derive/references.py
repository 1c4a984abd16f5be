"""An extension for Sphinx: it resolves the names in signatures, and checks that derived pages are up to date.

Signatures use the short names that their module imports. The extension replaces each by its full name, so that a name
links to the right object and to no other object of that name. The site is built offline: names of other libraries and
of rbim's internals have no page to link to. They are shown without a link if they exist; if not, they are warnings. An
object to which a docstring refers by a role must be on a page, unless it is a module.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import re
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import attrs
from docutils.nodes import Text
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.util import logging

if TYPE_CHECKING:
    from docutils.nodes import Element, TextElement, document
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

__all__ = ["setup"]

logger = logging.getLogger(__name__)

_KEPT = re.compile(r"= (?:attr_dict\['(\w+)'\]\.default|([A-Z][A-Z_]+)\b)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension to Sphinx."""
    app.connect("builder-inited", _up_to_date)
    app.connect("autodoc-process-signature", _defaults)
    app.connect("doctree-read", _whole_names)
    app.connect("missing-reference", _without_link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _up_to_date(_: Sphinx) -> None:
    from derive import outdated

    for path in outdated():
        logger.warning("%s does not match the code: run `python docs/derive.py`", path.name, type="derived")


def _defaults(
    _: Sphinx, __: str, ___: str, documented: Any, ____: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Replace names by values in a signature: the defaults of attrs classes, and constants."""
    if signature is None:
        return signature, returns
    kept = {each.name: each.default for each in attrs.fields(documented)} if attrs.has(documented) else {}
    homes = [importlib.import_module(home) for home in _homes_of(documented)]

    def shown(found: re.Match[str]) -> str:
        field, constant = found.groups()
        if field is not None:
            return f"= {_plain(kept[field]) or '...'}"
        value = next((getattr(home, constant) for home in homes if hasattr(home, constant)), attrs.NOTHING)
        return "= ..." if constant == "NOTHING" else f"= {_plain(value) or constant}"

    return _KEPT.sub(shown, signature), returns


def _plain(value: Any) -> str | None:  # a default
    """Return a value as Python code, or None if it would be long."""
    if isinstance(value, Enum):
        return None if value is attrs.NOTHING else f"{type(value).__name__}.{value.name}"
    parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    return (
        repr(cast("object", value))
        if all(isinstance(part, (str, bytes, int, float, type(None))) for part in parts)
        else None
    )


def _whole_names(_: Sphinx, page: document) -> None:
    for signature in page.findall(desc_signature):
        module, name = signature.get("module"), signature.get("fullname")
        if not module or not name:
            continue
        homes = _homes(module, name)
        for reference in signature.findall(pending_xref):
            target = str(reference["reftarget"])
            found = next((bound[target] for home in homes if target in (bound := _bound(home))), None)
            if found is not None:
                reference["reftarget"] = found
                del reference["refspecific"]


def _homes(module: str, name: str) -> list[str]:
    """Return the modules whose names a signature uses: that of the object, and those of its bases."""
    value: Any = importlib.import_module(module)
    owner: Any = None
    for part in name.split("."):
        owner, value = value, getattr(value, part, None)
    return [*_homes_of(value), *(_homes_of(owner) if isinstance(owner, type) else ())]


def _homes_of(value: Any) -> list[str]:  # what has a signature
    value = getattr(value, "fget", None) or getattr(value, "func", None) or value  # properties, cached ones
    kinds: tuple[Any, ...] = value.__mro__ if isinstance(value, type) else (value,)
    return [home for kind in kinds if (home := getattr(kind, "__module__", None)) and home.startswith("rbim")]


@cache
def _bound(home: str) -> dict[str, str]:
    """Return the full name of each name of a module: its imports, also those for type checkers, and its own objects."""
    source = importlib.import_module(home).__file__
    tree = ast.parse(Path(source or "").read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = f"{home}.{node.name}"
        elif isinstance(node, ast.Assign):
            found |= {target.id: f"{home}.{target.id}" for target in node.targets if isinstance(target, ast.Name)}
    return found


def _without_link(_: Sphinx, __: BuildEnvironment, node: pending_xref, shown: TextElement) -> Element | None:
    """Return the text that replaces a link, or None if the name is unknown."""
    if node.get("refdomain") != "py":
        return None
    target = str(node.get("reftarget", ""))
    in_signature = isinstance(shown, Text)
    if node.get("reftype") == "mod":
        known = _is_module(target)
    elif "." in target:
        known = (in_signature or not target.startswith("rbim.")) and _exists(target)
    else:
        known = in_signature and hasattr(builtins, target)
    return shown if known else None


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _exists(name: str) -> bool:
    """Return whether a dotted name can be imported, or is bound for type checkers."""
    module, _, attribute = name.rpartition(".")
    if not module:
        return False
    if not _is_module(module):
        return _exists(module)
    return hasattr(importlib.import_module(module), attribute) or (module.startswith("rbim") and attribute in _bound(module))
