"""``rbim job list``: the journals in a folder, found by their mark, with the state of each job."""

from __future__ import annotations

import sqlite3
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim.bulk.journal.facts import open_to_read
from rbim.bulk.journal.lock import is_locked
from rbim.bulk.journal.schema import JOURNAL
from rbim.bulk.report.reading import read_report
from rbim.cli.errors import print_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.report import status_document
from rbim.cli.json_output import show_json
from rbim.cli.output import UNFOLDED, console, table
from rbim.cli.printable import printable
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from rich.console import Group
    from rich.table import Table

    from rbim.bulk.report.model import Report

__all__ = ["print_jobs"]

SQLITE = b"SQLite format 3\0"
HEADER = 100  # bytes at the beginning of an SQLite file
MARK = slice(68, 72)  # where they have the application_id

COUNTS = ("rows", "done", "left", "refused", "failed", "unknown")


class _Found(NamedTuple):
    """A journal, and its job or the cause why that cannot be read."""

    journal: Path
    report: Report | None
    running: bool
    cause: str = ""

    @property
    def latest(self) -> float:
        """The time of its last run, or else of its beginning, in epoch seconds; of an unreadable one that of its file."""
        if self.report is not None:
            return _latest(self.report).timestamp()
        try:
            return self.journal.stat().st_mtime
        except OSError:
            return 0.0


def print_jobs(folder: Path, *, as_json: bool) -> int:
    """Print the jobs of a folder and return the exit code."""
    folder = folder.absolute()
    try:
        journals = [path for path in folder.iterdir() if _is_journal(path)]
    except OSError as error:
        print_error(f"{folder}: cannot be read: {error.strerror or error}")
        return JobExit.USAGE
    found = sorted(map(_read, journals), key=lambda each: (-each.latest, each.journal.name))
    if as_json:
        show_json([_document(each) for each in found])
    elif found:
        _print_jobs(found)
    else:
        sys.stdout.write(f"no journals in {printable(str(folder))}\n")
    return JobExit.DONE


def _is_journal(path: Path) -> bool:
    """Return whether a file has the mark of a journal, also of a newer version or a damaged one."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(HEADER)
    except OSError:
        return False
    if not head.startswith(SQLITE):
        return False
    if any(head[MARK]):
        return head[MARK] == JOURNAL.mark
    try:  # the mark of a new journal may still be in its log
        open_to_read(path).close()
    except (InvalidRequest, sqlite3.Error, OSError):
        return False
    return True


def _read(journal: Path) -> _Found:
    try:
        running = is_locked(journal)
        return _Found(journal, read_report(journal, running=running), running)
    except (InvalidRequest, sqlite3.Error, OSError) as error:
        cause = str(getattr(error, "message", error)).removeprefix(f"{journal}").lstrip(": ")
        return _Found(journal, None, running=False, cause=cause)


def _latest(report: Report) -> datetime:
    return report.runs[-1].began if report.runs else report.created


def _document(found: _Found) -> dict[str, Any]:
    if found.report is None:
        return {"journal": str(found.journal), "state": "unreadable", "cause": found.cause}
    return status_document(found.journal, found.report, running=found.running)


def _print_jobs(found: list[_Found]) -> None:
    """Print a table, or two lines for each job if the terminal is too narrow for it."""
    from rich.measure import Measurement

    out = console()
    made = _table(found)
    needed = Measurement.get(out, out.options.update(width=UNFOLDED), made).maximum
    out.print(made if needed <= out.width else _pairs_of_lines(found))
    for each in found:
        if each.cause:
            print_error(f"{each.journal.name}: {each.cause}")


def _table(found: list[_Found]) -> Table:
    from rich.text import Text

    made = table("journal", "operation", "state", *COUNTS, "last run (UTC)", numbers=COUNTS, whole=("last run (UTC)",))
    for each in found:
        cells = [each.journal.name, "", "unreadable"]
        if each.report is not None:
            numbers = [f"{number:,}" for number in _numbers(each.report)]
            last = f"{_latest(each.report):%Y-%m-%d %H:%M}"
            cells = [each.journal.name, each.report.operation, each.report.state, *numbers, last]
        made.add_row(*map(Text, map(printable, cells)))
    return made


def _pairs_of_lines(found: list[_Found]) -> Group:
    """Return the name of each journal, and below it the state and the counts that are not zero."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[Text | Padding] = []
    for each in found:
        state = "unreadable"
        if each.report is not None:
            rows, *others = zip(_numbers(each.report), COUNTS, strict=True)
            counts = [rows, *(pair for pair in others if pair[0])]
            state = f"{each.report.state}: {', '.join(f'{number:,} {name}' for number, name in counts)}"
        lines += [Text(printable(each.journal.name), overflow="fold"), Padding(Text(state), (0, 0, 0, 2))]
    return Group(*lines)


def _numbers(report: Report) -> tuple[int, ...]:
    """Return the numbers of ``COUNTS``."""
    a = report.accounts
    return a.total, a.done, a.not_sent, a.refused, a.failed, a.unknown
