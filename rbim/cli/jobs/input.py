"""The input of a job on the command line: a file or standard input, and its invalid rows."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rbim._support.text import printable
from rbim.bulk.input.file import RowFile
from rbim.bulk.input.rows import Row
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rbim.bulk.input.rows import BadRow, Columns

__all__ = ["SHOWN", "STANDARD", "Input", "journal_beside", "line_of", "open_input"]

STANDARD = "-"
"""The file name that means standard input or standard output."""

FIRST = 3  # rows that a dry run shows
SHOWN = 10  # invalid rows that are printed; the others are only counted


class Input(RowFile):
    """The rows of a file, with its first rows and its first invalid ones.

    An input without rows, such as a header alone, is an error at its end.
    ``reading`` is True while it is iterated: a thread that waits for more of a stream does not end.
    """

    def __init__(self, source: Any, options: Mapping[str, Any]) -> None:  # those of RowFile
        super().__init__(source, **options)
        self.first: list[tuple[int, Row]] = []
        self.bad: list[BadRow] = []
        self.bad_count = 0
        self.reading = False

    def _batches(self) -> Iterator[Columns]:
        """Yield the rows. Raises InvalidRequest if there are none."""
        self.reading = True
        yield from super()._batches()
        self.reading = False
        if not self.first and not self.bad:
            raise InvalidRequest(f"{self.name}: the input has no rows: check where it comes from", field="source")

    def _note(self, columns: Columns, bad: list[BadRow]) -> None:
        if len(self.first) < FIRST:
            rows = zip(columns.lines, columns.rows(), strict=True)
            self.first.extend([(line, row) for line, row in rows if isinstance(row, Row)][: FIRST - len(self.first)])
        self.bad.extend(bad[: SHOWN - len(self.bad)])
        self.bad_count += len(bad)

    def leave(self, code: int) -> int:
        """Return the exit code; end the process here if a thread still waits for standard input."""
        if self.reading and self.source is sys.stdin.buffer:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code


def open_input(file: str, options: dict[str, Any]) -> Input:
    """Open a file, or standard input, and read its beginning. Raises InvalidRequest."""
    if file != STANDARD and file.startswith("-"):  # cyclopts would have taken it as a flag if it knew it
        raise InvalidRequest(f"unknown flag {file}; if it is a file, write ./{file}", field="file")
    if file == STANDARD and cast("object", sys.stdin) is None:
        raise InvalidRequest("standard input is closed: give the name of a file", field="file")
    rows = Input(sys.stdin.buffer if file == STANDARD else file, options)
    _ = rows.about
    return rows


def journal_beside(file: str, verb: str) -> Path:
    """Return the default journal: beside the input, or in the working directory if the input is not a file."""
    if file != STANDARD and Path(file).is_file():
        return Path(f"{file}.{verb}.journal").absolute()
    return Path(f"rbim-{verb}-{datetime.now().astimezone():%Y%m%d-%H%M%S}.journal").absolute()


def line_of(row: BadRow) -> str:
    """Return the line to print about an invalid row."""
    return f"line {row.line}: {row.reason}: {printable(row.raw)}"
