"""A job's input as the command line takes it: a file or standard input, and the rows in it that cannot be used."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rbim.bulk.input.file import RowFile
from rbim.bulk.input.rows import BadRow
from rbim.cli.printable import printable
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.bulk.input.rows import Row

__all__ = ["STANDARD", "Input", "journal_beside", "line_of", "open_input"]

STANDARD = "-"
"""Standard input, or standard output, in the place of a file's name."""

SHOWN = 10
"""Rows that cannot be used and are said one by one."""


class Input(RowFile):
    """Rows of a file, with the first ones that cannot be used.

    ``reading`` tells whether somebody is in the midst of it: a thread that waits for more of a stream does not end.
    """

    def __init__(self, source: Any, **options: Any) -> None:  # as RowFile
        super().__init__(source, **options)
        self.bad: list[BadRow] = []
        self.bad_count = 0
        self.reading = False

    def __iter__(self) -> Iterator[Row | BadRow]:
        rows = super().__iter__()
        self.reading = True
        for row in rows:
            if isinstance(row, BadRow):
                self.bad_count += 1
                if len(self.bad) < SHOWN:
                    self.bad.append(row)
            yield row
        self.reading = False

    def leave(self, code: int) -> int:
        """Return the exit code; where a thread still waits for standard input, the process ends here."""
        if self.reading and self.source is sys.stdin.buffer:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code


def open_input(file: str, options: dict[str, Any]) -> Input:
    """Open a file, or standard input, and read its beginning. Raises InvalidRequest."""
    if file != STANDARD and file.startswith("-"):  # it would have been taken as a flag
        raise InvalidRequest(f"unknown option {file}; a file of that name is ./{file}", field="file")
    if file == STANDARD and cast("object", sys.stdin) is None:
        raise InvalidRequest("standard input is closed", field="file")
    rows = Input(sys.stdin.buffer if file == STANDARD else file, **options)
    _ = rows.format
    return rows


def journal_beside(file: str, verb: str) -> Path:
    """Return where the journal goes unless told: beside the input, or into the working directory where that is no file."""
    if file != STANDARD and Path(file).is_file():
        return Path(f"{file}.{verb}.journal").absolute()
    return Path(f"rbim-{verb}-{datetime.now().astimezone():%Y%m%d-%H%M%S}.journal").absolute()


def line_of(row: BadRow) -> str:
    """Return what is said of a row that cannot be used."""
    return f"line {row.line}: {row.reason}: {printable(row.raw)}"
