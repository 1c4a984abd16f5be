"""What the demo says while it runs: lines with the time, and on a terminal how far everything is."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attrs import define

from rbim.cli.output import console

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.console import Console
    from rich.status import Status

__all__ = ["Story", "telling"]


@define(eq=False)
class Story:
    """Tells what happens, as lines; between them, on a terminal, how far everything is."""

    out: Console | None
    status: Status | None
    began: float = 0.0

    def tell(self, words: str) -> None:
        """Print a line with the time."""
        if self.out is not None:
            self.out.print(f"{time.monotonic() - self.began:6.1f} s  {words}")

    def show(self, words: str) -> None:
        """Show how far everything is."""
        if self.status is not None:
            self.status.update(words)


@contextmanager
def telling(*, plain: bool, as_json: bool) -> Generator[Story]:
    """Return what tells: nothing but the status with JSON, and no status with ``plain`` or without a terminal."""
    out = console(stderr=as_json)
    if plain or not out.file.isatty():
        yield Story(None if as_json else out, None, time.monotonic())
        return
    with out.status("starting") as status:
        yield Story(out, status, time.monotonic())
