"""What a job leaves behind in files: the rows that were not done, every row as CSV, a picture."""

from __future__ import annotations

import os
import sqlite3
import sys
from codecs import getwriter
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rbim.bulk.input.format import Format, write_rows
from rbim.bulk.report.plot import ENDINGS, plot_report
from rbim.bulk.report.rows import not_done, write_report_csv
from rbim.cli.extras import needed
from rbim.cli.jobs.input import STANDARD
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import IO

    from rbim.bulk.report.model import Report

__all__ = ["Files"]


class Files:
    """The files that are to be written of the job in a journal. None is its journal, or its input, which is ``kept``.

    With ``standard``, ``-`` is standard output.
    Raises InvalidRequest where one of them cannot be written, as far as that can be told before; MissingExtra for a picture
    without matplotlib.
    """

    def __init__(  # noqa: PLR0913  # one flag each
        self,
        journal: Path,
        *,
        rows: str | Path | None = None,
        csv: str | Path | None = None,
        plot: str | Path | None = None,
        kept: str | None = None,
        standard: bool = False,
    ) -> None:
        self._journal = journal
        self.has_rows = rows is not None
        """Whether the rows that were not done are among them."""
        files = {"--not-done": rows, "--csv": csv, "--plot": plot}
        own = [journal] if kept is None else [journal, Path(kept)]
        for flag, file in files.items():
            if file is not None and not (standard and str(file) == STANDARD and flag != "--plot"):
                _check(Path(file), flag, own)
        self._rows, self._csv, self._plot = (None if file is None else Path(file) for file in files.values())
        if self._plot is not None:
            needed("plot", "matplotlib")
            if self._plot.suffix.lower() not in ENDINGS:
                raise InvalidRequest(
                    f"--plot: a picture's name ends with {' or '.join(ENDINGS)}, not with {self._plot.suffix!r}",
                    field="plot",
                )

    def write(self, report: Report) -> None:
        """Write them; a file that exists is replaced at once or not at all. Raises InvalidRequest."""
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
        return sqlite3.connect(f"{self._journal.absolute().as_uri()}?mode=ro", uri=True)


def _check(path: Path, flag: str, kept: list[Path]) -> None:
    reason = None
    if str(path) == STANDARD:
        reason = f"{flag}: the name of a file is needed, not {STANDARD}"
    elif not path.parent.is_dir():
        reason = f"{flag}: there is no directory {path.parent}"
    elif path.is_dir():
        reason = f"{flag}: {path} is a directory"
    elif any(
        path.absolute() == each.absolute() or (path.exists() and each.exists() and path.samefile(each)) for each in kept
    ):
        reason = f"{flag}: {path} is what the job needs itself"
    if reason is not None:
        raise InvalidRequest(reason, field=flag)


@contextmanager
def _written(path: Path, flag: str) -> Generator[IO[bytes]]:
    """Give a stream whose bytes become the file's at the end of the block."""
    if str(path) == STANDARD:
        sys.stdout.flush()
        yield cast("IO[bytes]", sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with _naming(path, flag):
        if path.exists() and not path.is_file():  # a pipe
            with path.open("wb") as stream:
                yield stream
            return
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("xb") as stream:
                yield stream
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path, flag: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"{flag}: {path} cannot be written: {error.strerror or error}", field=flag) from error
