"""What to say where an extra is not installed."""

from __future__ import annotations

from importlib import import_module

from rbim._support.text import missing_extra

__all__ = ["MissingExtra", "needed"]


class MissingExtra(Exception):
    """A package that a command needs is not installed; the message names the pip command."""


def needed(extras: str, *modules: str) -> None:
    """Raise MissingExtra unless the modules can be imported; ``extras`` is what pip is told between the brackets."""
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise MissingExtra(missing_extra("this command", module, extras)) from None
