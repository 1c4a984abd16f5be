"""The check for an extra that is not installed."""

from __future__ import annotations

from importlib import import_module

from rbim._support.text import missing_extra

__all__ = ["MissingExtra", "require"]


class MissingExtra(Exception):
    """A package that a command needs is not installed; the message names the pip command."""


def require(extras: str, *modules: str) -> None:
    """Raise MissingExtra if a module cannot be imported; ``extras`` are the names for ``pip install "rbim[extras]"``."""
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise MissingExtra(missing_extra("this command", module, extras)) from None
