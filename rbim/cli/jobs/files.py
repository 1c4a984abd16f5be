"""The files that a job writes: the rows that were not done, all rows as CSV, a plot."""

from __future__ import annotations

import sys
from codecs import getwriter
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rbim._support.private_files import private_stream
from rbim.bulk.input.format import Format, write_rows
from rbim.bulk.journal.facts import open_to_read
from rbim.bulk.report.plot import ENDINGS, plot_report
from rbim.bulk.report.rows import not_done, write_report_csv
from rbim.cli.extras import require
from rbim.cli.jobs.input import STANDARD
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Generator
    from typing import IO

    from rbim.bulk.report.model import Report

__all__ = ["Files"]


class Files:
    """The files to write about the job in a journal; the journal and the input, ``source``, must not be overwritten.

    With ``standard``, ``-`` means standard output. Raises InvalidRequest if one of the files clearly cannot be written, and
    MissingExtra for a plot without matplotlib.
    """

    def __init__(  # noqa: PLR0913  # one flag each
        self,
        journal: Path,
        *,
        rows: str | Path | None = None,
        csv: str | Path | None = None,
        plot: str | Path | None = None,
        source: str | None = None,
        standard: bool = False,
    ) -> None:
        self._journal = journal
        self.has_rows = rows is not None
        """Whether the rows that were not done are written."""
        files = {"--not-done": rows, "--csv": csv, "--plot": plot}
        protected = [journal] if source is None else [journal, Path(source)]
        for flag, file in files.items():
            if file is not None and not (standard and str(file) == STANDARD and flag != "--plot"):
                _check(Path(file), flag, protected)
        self._rows, self._csv, self._plot = (None if file is None else Path(file) for file in files.values())
        if self._plot is not None:
            require("plot", "matplotlib")
            if self._plot.suffix.lower() not in ENDINGS:
                raise InvalidRequest(
                    f"--plot: unknown ending {self._plot.suffix!r}: use {' or '.join(ENDINGS)}",
                    field="plot",
                )

    def write(self, report: Report) -> None:
        """Write the files; each existing file is replaced as a whole or not at all. Raises InvalidRequest."""
        if self._rows is not None:
            with _written(self._rows, "--not-done") as stream, closing(self._opened()) as connection:
                write_rows(stream, Format.from_json(report.source.get("format")), not_done(connection))
        if self._csv is not None:
            with _written(self._csv, "--csv") as stream, closing(self._opened()) as connection:
                write_report_csv(cast("IO[str]", getwriter("utf-8")(stream)), connection)
        if self._plot is not None:
            with _naming(self._plot, "--plot"):
                plot_report(report, self._plot)

    def _opened(self) -> sqlite3.Connection:
        return open_to_read(self._journal)


def _check(path: Path, flag: str, protected: list[Path]) -> None:
    reason = None
    if str(path) == STANDARD:
        reason = f"{flag}: cannot write to standard output ({STANDARD}): give a file name"
    elif not path.parent.is_dir():
        reason = f"{flag}: there is no directory {path.parent}: create it first"
    elif path.is_dir():
        reason = f"{flag}: {path} is a directory: give a file name"
    elif any(
        path.absolute() == each.absolute() or (path.exists() and each.exists() and path.samefile(each)) for each in protected
    ):
        reason = f"{flag}: {path} is the journal or the input of this job: choose another file"
    if reason is not None:
        raise InvalidRequest(reason, field=flag)


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
