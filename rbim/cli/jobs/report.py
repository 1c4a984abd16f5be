"""``rbim job list``, ``status`` and ``report``, read from journals, which other processes may be writing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim._support.text import printable
from rbim.bulk.journal.facts import job_facts
from rbim.bulk.journal.lock import is_locked
from rbim.bulk.journal.schema import JOURNAL
from rbim.bulk.report.reading import first_not_done, read_report
from rbim.bulk.report.text import report_text
from rbim.cli.errors import print_error
from rbim.cli.folding import fold_for
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.input import STANDARD
from rbim.cli.jobs.journal_errors import explaining
from rbim.cli.json_output import show_json
from rbim.cli.output import print_rows
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

    from rbim.bulk.report.model import Report

__all__ = ["print_jobs", "print_report", "print_status", "show_report"]

SQLITE = b"SQLite format 3\0"
HEADER = 100  # bytes at the beginning of an SQLite file
MARK = slice(68, 72)  # where they have the application_id

COUNTS = ("rows", "done", "left", "refused", "failed", "unknown")


def print_status(journal: Path, *, as_json: bool) -> None:
    """Print how far the job is. Raises InvalidRequest."""
    journal = journal.absolute()
    with explaining(journal, "status"):
        running = is_locked(journal)
        report = read_report(journal, running=running)
    if as_json:
        show_json(_status(journal, report, running=running))
    else:
        sys.stdout.write(fold_for(sys.stdout, "".join(f"{line}\n" for line in _lines(report, running=running))))


def _status(journal: Path, report: Report, *, running: bool) -> dict[str, Any]:
    """Return the status of a job as JSON."""
    full = report.to_dict()
    return {
        "journal": str(journal),
        "operation": report.operation,
        **{name: full[name] for name in ("state", "complete", "accounts", "in_flight")},
        "running": running,
        "last_run": full["runs"][-1] if full["runs"] else None,
        "erased": full["job"]["erased"],
    }


def _lines(report: Report, *, running: bool) -> list[str]:
    accounts = report.accounts
    source = f" of {printable(report.source_name)}" if report.source_name else ""
    process = "a process runs it" if running else "no process runs it"
    counts = report.to_dict()["accounts"]
    total = counts.pop("total")
    lines = [
        f"{report.operation}{source}: {report.state}; {process}",
        f"{total:,} rows: {', '.join(f'{number:,} {name}' for name, number in counts.items())}",
    ]
    if accounts.in_flight:
        lines.append(f"{accounts.in_flight:,} of the unknown are in flight")
    if report.erased:
        lines.append(f"the accounts were erased on {report.erased:%Y-%m-%d %H:%M:%S} UTC")
    if report.runs:
        last = report.runs[-1]
        end = last.why or ("still running" if running else "was killed")
        lines.append(f"last run: {last.began:%Y-%m-%d %H:%M:%S} UTC, {last.seconds:,.1f} s, {end}")
    return lines


def print_report(journal: Path, *, as_json: bool, **files: Path | None) -> None:
    """Print the report of the job, and write its files. Raises InvalidRequest."""
    given = {f"--{name.replace('_', '-')}": str(path) for name, path in files.items() if path is not None}
    piped = [flag for flag, path in given.items() if path == STANDARD and flag != "--plot"]
    if len(flags := [*piped, *(["--json"] if as_json else [])]) > 1:
        both = f"{' and '.join(flags)}: only one can use standard output; give the others a file name"
        raise InvalidRequest(both, field=flags[0])
    journal = journal.absolute()
    with explaining(journal, "report"):
        if given.keys() - {"--plot"}:
            job_facts(journal).require_accounts(journal)
        report = read_report(journal, running=is_locked(journal))
        writer = Files(journal, source=report.source.get("path"), standard=True, **files)
        if not piped:
            show_report(journal, report, as_json=as_json)
        writer.write(report)


def show_report(journal: Path, report: Report, *, as_json: bool) -> None:
    """Write a report to standard output."""
    if as_json:
        show_json(report)
    else:
        sys.stdout.write(fold_for(sys.stdout, report_text(report, first_not_done(journal, report))))


# ------------------------------------------------------------------------------ the jobs of a folder


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
        read = [each for path in folder.iterdir() if (each := _found_in(path)) is not None]
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


def _found_in(path: Path) -> _Found | None:
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
    return _status(found.journal, found.report, running=found.running)


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
