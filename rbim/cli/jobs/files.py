"""The files that a job writes: the rows that were done, refused or not done, all rows as CSV, a plot."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rbim._support.private_files import private_stream
from rbim.bulk.journal.facts import open_to_read
from rbim.bulk.report.plot import ENDINGS, plot_report
from rbim.bulk.report.rows import NOT_DONE, format_of, rows_of, write_csv, write_rows
from rbim.cli.errors import require
from rbim.cli.jobs.input import STANDARD
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import IO

    from rbim.bulk.report.model import Report

__all__ = ["Files"]


class Files:
    """The files to write about the job in a journal; the journal and the input, ``source``, must not be overwritten.

    ``files``: those of the flags ``--csv``, ``--done``, ``--refused``, ``--not-done`` and ``--plot``, or None. With
    ``standard``, ``-`` means standard output. Raises InvalidRequest if one of the files clearly cannot be written, and
    MissingExtra for a plot without matplotlib.
    """

    def __init__(self, journal: Path, *, source: str | None = None, standard: bool = False, **files: Path | None) -> None:
        self._journal = journal
        self.by_flag = {f"--{name.replace('_', '-')}": file for name, file in files.items() if file is not None}
        protected = {"the journal of this job": journal}
        if source is not None:
            protected["the input of this job"] = Path(source)
        for flag, file in self.by_flag.items():
            if not (standard and str(file) == STANDARD and flag != "--plot"):
                _check(file, flag, protected)
                protected[f"the file of {flag}"] = file
        if (plot := self.by_flag.get("--plot")) is not None:
            if plot.suffix.lower() not in ENDINGS:
                ending = f"--plot: unknown ending {plot.suffix!r}: use {' or '.join(ENDINGS)}"
                raise InvalidRequest(ending, field="plot")
            require("plot", "matplotlib")

    def write(self, report: Report) -> None:
        """Write the files; each existing file is replaced as a whole or not at all. Raises InvalidRequest."""
        states = {"--done": (report.done_word,), "--refused": ("refused",), "--not-done": NOT_DONE}
        for flag, file in self.by_flag.items():
            if flag == "--plot":
                with _naming(file, flag):
                    plot_report(report, file)
                continue
            try:
                with _written(file, flag) as stream, closing(open_to_read(self._journal)) as connection:
                    if flag == "--csv":
                        write_csv(stream, rows_of(connection), mark=str(file) != STANDARD)
                    else:
                        write_rows(stream, format_of(self._journal, report.source), rows_of(connection, states[flag]))
            except sqlite3.Error as error:
                raise InvalidRequest(f"{self._journal}: {error}", field="journal") from error


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
