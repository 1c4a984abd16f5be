"""What is imported when it is first used, so that importing a package costs next to nothing: public names, and anyio."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["homes", "late_anyio", "resolve"]


@cache
def late_anyio() -> Any:  # the module; an import statement in each call would cost more than the call
    """Return anyio, which is imported only when something waits."""
    return import_module("anyio")


def homes(table: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name; ``table`` has the names of each module, separated by spaces."""
    return {name: module for module, names in table.items() for name in names.split()}


def resolve(package: dict[str, Any], where: Mapping[str, str], name: str) -> object:
    """Return what ``name`` stands for in a package, whose globals keep it. Raises AttributeError where it is unknown."""
    module = where.get(name)
    if module is None:
        reason = f"module {package['__name__']!r} has no attribute {name!r}"
        raise AttributeError(reason)
    value: object = getattr(import_module(module), name)
    package[name] = value
    return value
