"""The files that a job writes: the rows that were done, refused or not done, all rows as CSV, a plot."""

from __future__ import annotations

import sys
from codecs import getwriter
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from rbim._support.private_files import private_stream
from rbim.bulk.input.format import Format, write_rows
from rbim.bulk.journal.facts import open_to_read
from rbim.bulk.report.plot import ENDINGS, plot_report
from rbim.bulk.report.rows import done, not_done, write_report_csv
from rbim.cli.errors import require
from rbim.cli.jobs.input import STANDARD
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Generator, Iterator
    from typing import IO, Unpack

    from rbim.bulk.input.format import NotDone
    from rbim.bulk.report.model import Report

__all__ = ["Files", "FilesToWrite"]

ROWS: dict[str, Callable[[sqlite3.Connection], Iterator[NotDone]]] = {
    "--done": done,
    "--refused": lambda connection: not_done(connection, ("refused",)),
    "--not-done": not_done,
}
"""The flags of files in the format of the input, and the rows that each one holds."""


class FilesToWrite(TypedDict, total=False):
    """The files to write, by flag; None stands for none."""

    done: Path | None
    refused: Path | None
    not_done: Path | None
    csv: Path | None
    plot: Path | None


class Files:
    """The files to write about the job in a journal; the journal and the input, ``source``, must not be overwritten.

    With ``standard``, ``-`` means standard output. Raises InvalidRequest if one of the files clearly cannot be written, and
    MissingExtra for a plot without matplotlib.
    """

    def __init__(
        self,
        journal: Path,
        *,
        source: str | None = None,
        standard: bool = False,
        **files: Unpack[FilesToWrite],
    ) -> None:
        self._journal = journal
        given = {f"--{name.replace('_', '-')}": file for name, file in files.items() if isinstance(file, Path)}
        self.has_rows = "--not-done" in given
        """Whether the rows that were not done are written."""
        protected = {"the journal of this job": journal}
        if source is not None:
            protected["the input of this job"] = Path(source)
        for flag, file in given.items():
            if not (standard and str(file) == STANDARD and flag != "--plot"):
                _check(file, flag, protected)
                protected[f"the file of {flag}"] = file
        self._plot, self._csv = given.pop("--plot", None), given.pop("--csv", None)
        self._rows = given
        if self._plot is not None:
            if self._plot.suffix.lower() not in ENDINGS:
                raise InvalidRequest(
                    f"--plot: unknown ending {self._plot.suffix!r}: use {' or '.join(ENDINGS)}",
                    field="plot",
                )
            require("plot", "matplotlib")

    def write(self, report: Report) -> None:
        """Write the files; each existing file is replaced as a whole or not at all. Raises InvalidRequest."""
        for flag, file in self._rows.items():
            with _written(file, flag) as stream, closing(self._opened()) as connection:
                write_rows(stream, Format.from_json(report.source.get("format")), ROWS[flag](connection))
        if self._csv is not None:
            with _written(self._csv, "--csv") as stream, closing(self._opened()) as connection:
                encoding = "utf-8" if str(self._csv) == STANDARD else "utf-8-sig"  # spreadsheets need the mark
                write_report_csv(cast("IO[str]", getwriter(encoding)(stream)), connection)
        if self._plot is not None:
            with _naming(self._plot, "--plot"):
                plot_report(report, self._plot)

    def _opened(self) -> sqlite3.Connection:
        return open_to_read(self._journal)


def _check(path: Path, flag: str, protected: dict[str, Path]) -> None:
    reason = None
    taken = next((what for what, each in protected.items() if _is_same(path, each)), None)
    if str(path) == STANDARD:
        reason = f"{flag}: cannot write to standard output ({STANDARD}): give a file name"
    elif not path.parent.is_dir():
        reason = f"{flag}: there is no directory {path.parent}: create it first"
    elif path.is_dir():
        reason = f"{flag}: {path} is a directory: give a file name"
    elif taken is not None:
        reason = f"{flag}: {path} is {taken}: choose another file"
    if reason is not None:
        raise InvalidRequest(reason, field=flag)


def _is_same(path: Path, other: Path) -> bool:
    return path.absolute() == other.absolute() or (path.exists() and other.exists() and path.samefile(other))


@contextmanager
def _written(path: Path, flag: str) -> Generator[IO[bytes]]:
    """Give a stream whose bytes become the content of the file at the end of the block."""
    if str(path) == STANDARD:
        sys.stdout.flush()
        yield cast("IO[bytes]", sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with _naming(path, flag), private_stream(path) as stream:
        yield stream


@contextmanager
def _naming(path: Path, flag: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"{flag}: cannot write {path}: {error.strerror or error}", field=flag) from error
