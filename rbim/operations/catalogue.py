"""The catalogue of operations, derived from the existing namespaces: names, methods, paths.

There is no registration: every declared subclass of :class:`~rbim.operations.Namespace` is part of it.
"""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rbim.operations import call_tasks as calls, groups
from rbim.operations.base import Repeat
from rbim.operations.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.operations.base import Operation
    from rbim.operations.namespace import Method

__all__ = ["CatalogueEntry", "entries", "find", "markdown", "namespaces", "repeating", "summary_of"]


BUILT_IN = (groups.Groups, calls.Calls)


@frozen(kw_only=True)
class CatalogueEntry:
    """One operation as users call it: ``groups``, ``create``, and the operation class."""

    namespace: str
    method: str
    operation: type[Operation[Any]]


def namespaces() -> dict[str, type[Namespace]]:
    """Return all namespaces by name, rbim's first. A later one replaces an earlier one of the same name."""
    found: dict[str, type[Namespace]] = {kind.__name__.lower(): kind for kind in BUILT_IN}
    waiting = list(Namespace.__subclasses__())
    while waiting:
        kind = waiting.pop(0)
        found[kind.__name__.lower()] = kind
        waiting += kind.__subclasses__()
    return found


def entries() -> Iterator[CatalogueEntry]:
    """Yield every operation of every namespace, in order of declaration."""
    for name, kind in namespaces().items():
        for method_name, method in kind.methods():
            yield _entry(name, method_name, method)


def _entry(namespace: str, name: str, method: Method[..., Any]) -> CatalogueEntry:
    return CatalogueEntry(namespace=namespace, method=name, operation=method.operation)


def markdown() -> str:
    """Return the Markdown table of operations for the docs."""
    lines = ["| method | operation | answer | may be repeated |", "|---|---|---|---|"]
    for entry in entries():
        spec = entry.operation.spec
        cells = (f"`{entry.namespace}.{entry.method}`", f"`{spec.name}`", f"`{spec.answer.__name__}`")
        lines.append(f"| {' | '.join(cells)} | {repeating(entry.operation)} |")
    return "\n".join(lines) + "\n"


def repeating(kind: type[Operation[Any]]) -> str:
    """Return how an operation may be repeated, as text; if a function of the value decides, return its docstring."""
    rule = kind.spec.repeat
    return str(rule) if isinstance(rule, Repeat) else (rule.__doc__ or "depends on the values")


def find(path: str) -> type[Operation[Any]] | None:
    """Return the operation class for a request path of any version and application, or None."""
    for entry in entries():
        for template in entry.operation.spec.paths:
            if _pattern(template).fullmatch(path):
                return entry.operation
    return None


@lru_cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)))


def summary_of(kind: type[Namespace]) -> str:
    """Return the first paragraph of a namespace's docstring, with its commands."""
    text = inspect.cleandoc(vars(kind).get("__doc__") or f"The operations of {kind.__name__.lower()}.")
    summary = " ".join(text.partition("\n\n")[0].split()).rstrip(".").removesuffix(" as methods")
    return f"{summary}: {', '.join(name.replace('_', '-') for name, _ in kind.methods())}."
