"""The progress of a job on standard error: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rbim._support.text import listed, visible
from rbim.cli.folding import fold_for
from rbim.cli.jobs.input import SHOWN, line_of
from rbim.cli.output import console

if TYPE_CHECKING:
    from typing import Self

    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from rbim.bulk.progress import Snapshot
    from rbim.cli.jobs.input import Input

__all__ = ["ProgressDisplay", "time_left"]

SECONDS = 5.0  # seconds between two lines, if there is no bar
MINUTE, HOUR = 60, 3600
STATES = {"halted": "paused", "draining": "stopping"}


class ProgressDisplay:
    """Shows snapshots while its block runs, and lines of text above them. Only a bar imports rich."""

    def __init__(self, rows: Input | None, *, quiet: bool) -> None:
        self._rows = rows
        self._printed = 0  # invalid rows
        self._quiet = quiet
        self._live = None if quiet or not sys.stderr.isatty() else _live()
        self._next = time.monotonic() + SECONDS
        self._has_cause = False  # whether a line has said why the job waits

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._rows is not None:
            self._print_bad_rows(self._rows)
            if self._rows.bad_count > SHOWN:
                self.print_line(f"{self._rows.bad_count:,} rows are invalid; the first {SHOWN} are shown")

    def print_line(self, line: str) -> None:
        """Print a line above the progress, with unprintable characters replaced."""
        line = fold_for(sys.stderr, visible(line))
        with suppress(OSError):  # the reader has closed it; the job continues
            if self._live is not None:
                from rich.text import Text

                self._live.console.print(Text(line), soft_wrap=True)
            else:
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()

    def update(self, snapshot: Snapshot) -> None:
        """Show a snapshot of the progress."""
        if self._rows is not None:
            self._print_bad_rows(self._rows)
        if self._live is not None:
            with suppress(OSError):
                self._live.update(_bar(snapshot), refresh=True)
        elif not self._quiet and (time.monotonic() >= self._next or self._has_news(snapshot)):
            self._next = time.monotonic() + SECONDS
            self.print_line(_line(snapshot))

    def _has_news(self, snapshot: Snapshot) -> bool:
        """Return whether the job waits for the first time: the cause is shown at once."""
        first = not self._has_cause and snapshot.phase == "halted" and bool(snapshot.cause)
        self._has_cause = self._has_cause or first
        return first

    def _print_bad_rows(self, rows: Input) -> None:
        for row in rows.bad[self._printed :]:
            self.print_line(line_of(row))
            self._printed += 1


def _live() -> Live | None:
    """Return the display of the bar; None if the terminal cannot show it."""
    from rich.live import Live

    terminal = console(stderr=True)
    if terminal.is_dumb_terminal:
        return None
    return Live(console=terminal, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def _figures(snapshot: Snapshot) -> str:
    """Return rate, requests in flight and counts as text."""
    in_flight = f"{snapshot.in_flight:,} of {snapshot.concurrency:,} in flight"
    counts = listed((getattr(snapshot, name), name) for name in ("refused", "failed", "unknown", "throttled"))
    return f"{snapshot.request_rate:,.1f} requests/s, {in_flight}{counts and f', {counts}'}"


def time_left(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // HOUR}:{whole % HOUR // MINUTE:02}:{whole % MINUTE:02}"


def _line(snapshot: Snapshot) -> str:
    if snapshot.phase == "loading":
        return f"reading: {snapshot.total:,} rows"
    state = f"{_state(snapshot)}; " if snapshot.phase in STATES else ""
    left = "" if snapshot.eta is None or not snapshot.waiting else f", {time_left(snapshot.eta)} left"
    return f"{state}{_settled(snapshot):,} of {snapshot.total:,} rows; {_figures(snapshot)}{left}"


def _state(snapshot: Snapshot) -> str:
    """Return the phase as text, with the last failure if the job waits because of it; empty for the usual phases."""
    state = STATES.get(snapshot.phase, "")
    return f"{state}: {snapshot.cause}" if snapshot.phase == "halted" and snapshot.cause else state


def _settled(snapshot: Snapshot) -> int:
    return snapshot.total - snapshot.waiting


def _bar(snapshot: Snapshot) -> Group | Text:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if snapshot.phase == "loading":
        return Text(_line(snapshot))
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    left = "-:--:--" if snapshot.eta is None else time_left(snapshot.eta)
    grid.add_row(
        ProgressBar(total=max(snapshot.total, 1), completed=_settled(snapshot)),
        f"{_settled(snapshot):,}/{snapshot.total:,}",
        f"{_settled(snapshot) / max(snapshot.total, 1):.0%}",
        f"{left} left" if snapshot.waiting else "",
    )
    below = [Text(_figures(snapshot))]
    if state := _state(snapshot):
        below.append(Text(visible(state), style="yellow", overflow="ellipsis", no_wrap=True))
    return Group(grid, *below)
