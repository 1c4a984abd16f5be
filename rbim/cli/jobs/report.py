"""``rbim job status`` and ``rbim job report``, read from the journal, which another process may be writing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rbim.bulk.journal.facts import job_facts
from rbim.bulk.journal.lock import is_locked
from rbim.bulk.report.reading import first_not_done, read_report
from rbim.bulk.report.text import report_text
from rbim.cli.folding import fold_for
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.input import STANDARD
from rbim.cli.jobs.journal_errors import explaining
from rbim.cli.json_output import show_json
from rbim.cli.printable import printable
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

    from rbim.bulk.report.model import Report

__all__ = ["print_report", "print_status", "status_document"]


def print_status(journal: Path, *, as_json: bool) -> None:
    """Print how far the job is. Raises InvalidRequest."""
    journal = journal.absolute()
    with explaining(journal, "status"):
        running = is_locked(journal)
        report = read_report(journal, running=running)
    if as_json:
        show_json(status_document(journal, report, running=running))
    else:
        sys.stdout.write(fold_for(sys.stdout, "".join(f"{line}\n" for line in _lines(report, running=running))))


def status_document(journal: Path, report: Report, *, running: bool) -> dict[str, Any]:
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
        if as_json:
            show_json(report)
        elif not piped:
            sys.stdout.write(fold_for(sys.stdout, report_text(report, first_not_done(journal, report))))
        writer.write(report)
