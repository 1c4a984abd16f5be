"""``rbim job list``: the journals in a folder, found by their mark, with the state of each job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim.bulk.journal.lock import is_locked
from rbim.bulk.journal.schema import JOURNAL
from rbim.bulk.report.reading import read_report
from rbim.cli.errors import print_error
from rbim.cli.jobs.report import status_document
from rbim.cli.json_output import show_json
from rbim.cli.output import print_rows
from rbim.cli.printable import printable
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

    from rbim.bulk.report.model import Report

__all__ = ["print_jobs"]

SQLITE = b"SQLite format 3\0"
HEADER = 100  # bytes at the beginning of an SQLite file
MARK = slice(68, 72)  # where they have the application_id

COUNTS = ("rows", "done", "left", "refused", "failed", "unknown")


class _Found(NamedTuple):
    """A journal, and its job or the cause why that cannot be read.

    ``latest``: its last run, or else its beginning, in epoch seconds; of an unreadable one the time of the file.
    """

    journal: Path
    latest: float
    report: Report | None = None
    running: bool = False
    cause: str = ""


def print_jobs(folder: Path, *, as_json: bool) -> None:
    """Print the jobs of a folder, the latest first. Raises InvalidRequest."""
    folder = folder.absolute()
    try:
        read = [each for path in folder.iterdir() if (each := _read(path)) is not None]
    except OSError as error:
        raise InvalidRequest(f"{folder}: cannot be read: {error.strerror or error}", field="folder") from error
    found = sorted(read, key=lambda each: (-each.latest, each.journal.name))
    if as_json:
        show_json([_document(each) for each in found])
    elif found:
        print_rows(list(map(_row, found)), numbers=COUNTS, whole=("journal", "last run (UTC)"))
        for each in found:
            if each.cause:
                print_error(f"{each.journal.name}: {each.cause}")
    else:
        sys.stdout.write(f"no journals in {printable(str(folder))}\n")


def _read(path: Path) -> _Found | None:
    """Return what a file has if it is a journal, also one of a newer version or a damaged one; None for other files."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.read(HEADER)
        written = path.stat().st_mtime
    except OSError:
        return None
    if not head.startswith(SQLITE) or head[MARK] not in {JOURNAL.mark, bytes(4)}:
        return None
    try:
        running = is_locked(path)
        report = read_report(path, running=running)
    except (InvalidRequest, OSError) as error:
        if head[MARK] != JOURNAL.mark:  # only the mark of a new journal may still be in its log
            return None
        return _Found(path, written, cause=str(getattr(error, "message", error)).removeprefix(f"{path}").lstrip(": "))
    latest = report.runs[-1].began if report.runs else report.created
    return _Found(path, latest.timestamp(), report, running)


def _document(found: _Found) -> dict[str, Any]:
    if found.report is None:
        return {"journal": str(found.journal), "state": "unreadable", "cause": found.cause}
    return status_document(found.journal, found.report, running=found.running)


def _row(found: _Found) -> dict[str, str]:
    row = {"journal": found.journal.name, "operation": "", "state": "unreadable"}
    row |= dict.fromkeys((*COUNTS, "last run (UTC)"), "")
    if (report := found.report) is not None:
        a = report.accounts
        numbers = (a.total, a.done, a.not_sent, a.refused, a.failed, a.unknown)
        row |= {"operation": report.operation, "state": report.state}
        row |= {name: f"{number:,}" for name, number in zip(COUNTS, numbers, strict=True)}
        row["last run (UTC)"] = f"{report.runs[-1].began if report.runs else report.created:%Y-%m-%d %H:%M}"
    return row
