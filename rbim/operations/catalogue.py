"""The catalogue of operations, derived from the existing namespaces: names, methods, paths.

There is no registration: every declared subclass of :class:`~rbim.operations.Namespace` is part of it while it exists.
Python decides when it frees a class whose module is gone: caches of ``typing`` may keep it.
"""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim.operations.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.operations.base import Operation

__all__ = ["CatalogueEntry", "entries", "find", "namespace", "namespaces", "summary_of"]


BUILT_IN = {"groups": ("rbim.operations.groups", "Groups"), "calls": ("rbim.operations.call_tasks", "Calls")}
"""The modules and classes of rbim's own namespaces, which are imported on first use."""


class CatalogueEntry(NamedTuple):
    """One operation as users call it: ``groups``, ``create``, and the operation class."""

    namespace: str
    method: str
    operation: type[Operation[Any]]


def namespaces() -> dict[str, type[Namespace]]:
    """Return all namespaces by name, rbim's first. A later one replaces an earlier one of the same name."""
    return {name: _built_in(name) for name in BUILT_IN} | _declared()


def namespace(name: str) -> type[Namespace] | None:
    """Return one namespace by its name, or None. It imports no other."""
    return _declared().get(name) or (_built_in(name) if name in BUILT_IN else None)


def _built_in(name: str) -> type[Namespace]:
    module, kind = BUILT_IN[name]
    found: type[Namespace] = getattr(import_module(module), kind)
    return found


def _declared() -> dict[str, type[Namespace]]:
    """Return the namespaces that are not rbim's own."""
    found: dict[str, type[Namespace]] = {}
    waiting = list(Namespace.__subclasses__())
    while waiting:
        kind = waiting.pop(0)
        if (kind.__module__, kind.__name__) not in BUILT_IN.values():
            found[kind.__name__.lower()] = kind
        waiting += kind.__subclasses__()
    return found


def entries(name: str | None = None) -> Iterator[CatalogueEntry]:
    """Yield every operation of one namespace, or of all, in order of declaration."""
    found = namespaces() if name is None else {name: namespace(name)}
    for each, kind in found.items():
        for method, declared in () if kind is None else kind.methods():
            yield CatalogueEntry(namespace=each, method=method, operation=declared.operation)


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
