"""Imports on first use: the public names of packages, and anyio."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["late_anyio", "lazy_names"]


@cache
def late_anyio() -> Any:  # the module; an import statement in each call would cost more than the call
    """Return anyio, which is imported only when something waits."""
    return import_module("anyio")


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` (PEP 562) of a package that imports its public names on first use.

    To be called by the package's ``__init__.py``, which lists each name once: in an import statement under
    ``if TYPE_CHECKING:``. Type checkers read the statements; they are found here in the compiled code, which is there
    without source files too. The names, and ``__version__`` if it is set, are the package's ``__all__``.
    """
    public = vars(sys.modules[package])
    code = sys._getframe(1).f_code  # noqa: SLF001  # of the __init__.py; not every loader can return it
    imported = frozenset(public)
    root = f"{package.partition('.')[0]}."  # not of another library: pytest puts imports into what it loads

    @cache
    def homes() -> dict[str, str]:
        home, found = "", dict[str, str]()
        for name in code.co_names:  # in the order of the statements: a module, then what is imported from it
            if "." in name:
                home = name
            elif home.startswith(root) and name not in imported and not name.startswith("__"):
                found[name] = home
        return found

    def resolve(name: str) -> Any:
        if name == "__all__":
            return sorted({*homes(), *({"__version__"} & imported)})
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        public[name] = getattr(import_module(homes()[name]), name)
        return public[name]

    def names() -> list[str]:
        return sorted({*public, *homes()})

    return resolve, names
