"""Import on first use: the public names of packages, and anyio."""

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
    """Return the anyio module; import it on the first call."""
    return import_module("anyio")


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` (PEP 562) for a package that imports its public names on first use.

    Call it in the package's ``__init__.py``, which lists each name once, in an import statement under
    ``if TYPE_CHECKING:``. Type checkers read those statements; this function finds them in the compiled code, which exists
    without source files too. ``__all__`` is these names, and ``__version__`` if the package sets it.
    """
    public = vars(sys.modules[package])
    code = sys._getframe(1).f_code  # noqa: SLF001  # of the __init__.py; not every loader has get_code()
    imported = frozenset(public)
    root = f"{package.partition('.')[0]}."  # ignore other libraries: pytest adds imports to the modules it loads

    @cache
    def homes() -> dict[str, str]:
        home, found = "", dict[str, str]()
        for name in code.co_names:  # in statement order: a module, then the names imported from it
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
