"""``rbim emulator`` and its commands: without one, it serves; the others are sent to an emulator that runs."""

from __future__ import annotations

from cyclopts import App

from rbim.cli.emulator.serve import serve
from rbim.cli.emulator.verbs import add_verbs

__all__ = ["emulator"]

emulator = App(name="emulator", help=serve.__doc__, help_format="markdown")
emulator.default(serve)
add_verbs(emulator)
