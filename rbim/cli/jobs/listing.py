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
from rbim.cli.output import print_rows
from rbim.cli.printable import printable
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

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
    rows: list[dict[str, str]] = []
    for each in found:
        row = {"journal": each.journal.name, "operation": "", "state": "unreadable"}
        row |= dict.fromkeys((*COUNTS, "last run (UTC)"), "")
        if each.report is not None:
            counts = zip(COUNTS, (f"{number:,}" for number in _numbers(each.report)), strict=True)
            row |= {"operation": each.report.operation, "state": each.report.state, **dict(counts)}
            row["last run (UTC)"] = f"{_latest(each.report):%Y-%m-%d %H:%M}"
        rows.append(row)
    print_rows(rows, numbers=COUNTS, whole=("journal", "last run (UTC)"))
    for each in found:
        if each.cause:
            print_error(f"{each.journal.name}: {each.cause}")


def _numbers(report: Report) -> tuple[int, ...]:
    """Return the numbers of ``COUNTS``."""
    a = report.accounts
    return a.total, a.done, a.not_sent, a.refused, a.failed, a.unknown
