"""Everything the client can ask, computed from the namespaces that exist: names, methods, paths.

Nothing is registered: whoever declares a :class:`~rbim.Namespace` of their own is part of it.
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
    """One operation as users meet it: ``groups``, ``create``, and the operation class."""

    namespace: str
    method: str
    operation: type[Operation[Any]]


def namespaces() -> dict[str, type[Namespace]]:
    """Return every namespace by its name, rbim's own first. A later one of the same name goes before an earlier one."""
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
    """Return the table of operations as the docs show it."""
    lines = ["| method | operation | answer | may be repeated |", "|---|---|---|---|"]
    for entry in entries():
        spec = entry.operation.spec
        cells = (f"`{entry.namespace}.{entry.method}`", f"`{spec.name}`", f"`{spec.answer.__name__}`")
        lines.append(f"| {' | '.join(cells)} | {repeating(entry.operation)} |")
    return "\n".join(lines) + "\n"


def repeating(kind: type[Operation[Any]]) -> str:
    """Return in words how an operation may be repeated: a function of the value says it in its docstring."""
    rule = kind.spec.repeat
    return str(rule) if isinstance(rule, Repeat) else (rule.__doc__ or "depends on the values")


def find(path: str) -> type[Operation[Any]] | None:
    """Return the operation that a request path asks for, whatever its version and application; None where there is none."""
    for entry in entries():
        for template in entry.operation.spec.paths:
            if _pattern(template).fullmatch(path):
                return entry.operation
    return None


@lru_cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)))


def summary_of(kind: type[Namespace]) -> str:
    """Return what a namespace is, and its commands."""
    words = inspect.cleandoc(vars(kind).get("__doc__") or f"The operations of {kind.__name__.lower()}.")
    what = " ".join(words.partition("\n\n")[0].split()).rstrip(".").removesuffix(" as methods")
    return f"{what}: {', '.join(name.replace('_', '-') for name, _ in kind.methods())}."
