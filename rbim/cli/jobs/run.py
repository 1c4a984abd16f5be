"""A run of a job from the command line: client, signals, progress, and the messages at the end."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
from attrs import define

from rbim._support.task_errors import TaskErrors
from rbim.bulk.journal.facts import VIA, damage_of, job_facts
from rbim.bulk.report.reading import read_report
from rbim.bulk.report.text import report_text
from rbim.bulk.run import ANOTHER_JOB
from rbim.cli.command_lines import command_line, quoted_words
from rbim.cli.errors import print_error, report_bug, report_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.folding import fold_for
from rbim.cli.global_flags import given_flags
from rbim.cli.jobs.dialect import with_flags
from rbim.cli.jobs.on_end import run_at_end
from rbim.cli.jobs.progress import ProgressDisplay
from rbim.cli.json_output import show_json
from rbim.cli.printable import visible
from rbim.errors import AuthenticationError, InvalidRequest, RbimError

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus

    from rbim.bulk.report.model import Report
    from rbim.bulk.run import Run
    from rbim.cli.jobs.files import Files
    from rbim.cli.jobs.flags import OutputFlags
    from rbim.cli.jobs.input import Input
    from rbim.client.client import AsyncClient
    from rbim.dialect import Dialect
    from rbim.jetstream.sender import RemoteSender

__all__ = ["JobRun", "execute", "kept_via"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EARLY_EXITS = {
    "stopped": JobExit.INTERRUPTED,
    "interrupted": JobExit.INTERRUPTED,
    "fuse": JobExit.GAVE_UP,
    "not connected": JobExit.GAVE_UP,
    "no answer": JobExit.GAVE_UP,
    "no progress": JobExit.GAVE_UP,
    "error": JobExit.GAVE_UP,
    "fault": JobExit.FAULT,
    "authentication": JobExit.REFUSED,
}
STOP_REASONS = {
    "error": "stopped early",
    "fault": "stopped early",
    "authentication": "the platform refused the credentials",
    "fuse": "too many requests failed (--max-failures)",
    "not connected": "no connection was possible",
    "limit": "the limit of this run was reached (--limit)",
    "no answer": "no response for too long (--patience)",
    "no progress": "no account was settled for too long (--patience)",
}

WITH_CAUSE = {"not connected", "no answer", "no progress"}
"""Reasons of an early end that the last failure of a request explains."""

INPUT_ERRORS = {"source", "max_bad"}
"""Fields of errors that end the reading of the input."""

NO_JOB = (
    "Nothing was sent. {journal} holds no job yet (`rbim job list`: loading, 0 rows): run the same command again, or delete "
    "it."
)

SUFFIXES = {"csv": ".csv", "jsonl": ".jsonl", "text": ".txt"}


class JobRun(NamedTuple):
    """A run to execute: ``begin`` makes it; ``rows`` is its input, if it reads one. ``sender`` is open while it runs."""

    command: str
    journal: Path
    sender: AsyncClient | RemoteSender
    dialect: Dialect
    begin: Callable[[], Run]
    output_flags: OutputFlags
    files: Files
    on_end: str | None = None
    rows: Input | None = None


@define(eq=False)
class _RunResult:
    """The run, and the error that ended it, if any."""

    run: Run | None = None
    error: BaseException | None = None


def execute(job_run: JobRun) -> int:
    """Run the job, print its report and the next steps, and return the exit code."""
    if not job_run.output_flags.quiet:
        sys.stderr.write(f"journal: {visible(str(job_run.journal))}\n")
        sys.stderr.flush()
    result = _RunResult()
    try:
        anyio.run(_run, job_run, result)
    except KeyboardInterrupt:  # only without a receiver of signals
        pass
    except Exception as error:
        result.error = error
    try:
        code = _finish(job_run, result)
    except KeyboardInterrupt:
        print_error("interrupted. To resume, if accounts are left:", _continued("resume", job_run.journal))
        code = JobExit.INTERRUPTED
    return code if job_run.rows is None else job_run.rows.leave(code)


# ------------------------------------------------------------------------------ the run


async def _run(job_run: JobRun, result: _RunResult) -> None:
    result.run = run = job_run.begin()  # an error of it must not become one of a group
    tasks = anyio.create_task_group()
    failures = TaskErrors(tasks)
    with ProgressDisplay(job_run.output_flags, job_run.rows) as progress:
        async with tasks:
            await tasks.start(_handle_signals, run, progress)
            with failures:
                async with job_run.sender, run:
                    async for snapshot in run:
                        progress.update(snapshot)
            tasks.cancel_scope.cancel()
    if failures.errors:
        failures.raise_first()


async def _handle_signals(run: Run, progress: ProgressDisplay, *, task_status: TaskStatus[None]) -> None:
    """Stop the run at the first signal, interrupt it at the second, end the process at the third."""
    with ExitStack() as stack:
        try:
            signals = stack.enter_context(anyio.open_signal_receiver(*SIGNALS))
        except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
            task_status.started()
            return
        task_status.started()
        await anext(signals)
        in_flight = run.snapshot.in_flight
        state = (
            f"waiting for {in_flight:,} requests in flight; Ctrl-C again to abandon them"
            if in_flight
            else "nothing in flight"
        )
        progress.print_line(f"stopping: {state}")
        run.stop()
        await anext(signals)
        progress.print_line("stopped at once: requests in flight may still take effect")
        run.interrupt()
        await anext(signals)
        os._exit(JobExit.INTERRUPTED)  # whatever still runs: the journal survives it


# ------------------------------------------------------------------------------ its end


def _finish(job_run: JobRun, result: _RunResult) -> int:
    if isinstance(result.error, InvalidRequest):
        error = with_flags(result.error, job_run.journal, job_run.dialect)
        if error.field == ANOTHER_JOB:
            error.add_note(f"To finish that job:\n{_continued('resume', job_run.journal)}")
            error.add_note(f"To begin another job, the same command with: {_another_journal(job_run.journal)}")
        if error.field in INPUT_ERRORS and (report := _read(job_run.journal)) is not None and report.state == "loading":
            error.add_note(NO_JOB.format(journal=job_run.journal))
        return report_error(error, job_run.command)
    _print_failure(job_run, result)
    report = _read(job_run.journal)
    code = _code(result, report)
    if report is None and result.run is not None and result.run.began:
        state = "cannot be read any more" if job_run.journal.exists() else "was deleted during the run"
        print_error(f"{job_run.journal}: the journal {state}: there is no record of what was sent")
        return JobExit.GAVE_UP
    if report is None:
        print_error("nothing was sent: run the same command again")
        return code
    steps: tuple[Callable[[], None], ...] = (
        lambda: _print_report(job_run, report),
        lambda: _print_next_steps(job_run, result, report),
        lambda: job_run.files.write(report),
    )
    for step in steps:
        try:
            step()
        except InvalidRequest as failed:  # a field that the report does not have, or a file that cannot be written
            print_error(failed.message)
            code = _most_important(code, JobExit.USAGE)
    if job_run.on_end is not None and report.state != "loading":
        run_at_end(job_run.on_end, report)
    return code


def _print_failure(job_run: JobRun, result: _RunResult) -> None:
    """Print the error that ended the run, if there is one."""
    error = result.error
    if isinstance(error, RbimError):
        report_error(error, job_run.command)
    elif isinstance(error, (sqlite3.Error, OSError)):
        print_error(f"{job_run.journal}: {getattr(error, 'strerror', None) or error}", error=error)
    elif error is not None and (damage := damage_of(job_run.journal)) is not None:
        result.error = damage
        print_error(damage.message, error=error)
    elif error is not None:
        report_bug(error)


def _print_report(job_run: JobRun, report: Report) -> None:
    try:
        if job_run.output_flags.as_json:
            show_json(report.as_json(), checked=True)
        elif report.state != "loading":
            sys.stdout.write(fold_for(sys.stdout, report_text(report)))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed it; the result of the job is the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read(journal: Path) -> Report | None:
    """Return the report, or None if the run ended before there was a job."""
    try:
        return read_report(journal)
    except InvalidRequest:
        return None


def _stop_reason(result: _RunResult) -> str:
    if isinstance(result.error, AuthenticationError):
        return "authentication"
    if result.error is not None:
        return "error" if isinstance(result.error, (RbimError, sqlite3.Error, OSError)) else "fault"
    return "interrupted" if result.run is None else result.run.why or "interrupted"


def _code(result: _RunResult, report: Report | None) -> JobExit:
    reason = _stop_reason(result)
    if report is None:
        return EARLY_EXITS.get(reason, JobExit.INTERRUPTED)
    early = EARLY_EXITS.get(reason)
    if early is not None and not (early is JobExit.INTERRUPTED and report.complete):
        return early
    accounts = report.accounts
    if accounts.unknown:
        return JobExit.UNKNOWN
    return JobExit.INCOMPLETE if accounts.refused or accounts.failed or accounts.bad else JobExit.DONE


def _most_important(*codes: JobExit) -> JobExit:
    return min(codes, key=list(JobExit).index)


def _print_next_steps(job_run: JobRun, result: _RunResult, report: Report) -> None:
    """Print the commands for the accounts that were not done."""
    accounts, journal = report.accounts, job_run.journal
    if report.state == "loading":
        print_error("nothing was sent: run the same command again")
        return
    if not report.complete:
        reason = _stop_reason(result)
        left = _counted((accounts.not_sent, "not sent"), (accounts.unknown, "unknown"))
        cause = result.run.snapshot.cause if result.run is not None and reason in WITH_CAUSE else ""
        said = f"{STOP_REASONS.get(reason, reason)}{f': {cause}' if cause else ''}"
        print_error(f"{said}; accounts left: {left}. To resume:", _continued("resume", journal))
        return
    if accounts.failed or accounts.unknown:
        left = _counted((accounts.failed, "failed"), (accounts.unknown, "unknown"))
        print_error(f"accounts left: {left}. To send them again:", _continued("retry", journal))
    if (accounts.refused or accounts.failed or accounts.unknown) and not job_run.files.has_rows:
        kind = report.source.get("format", {}).get("kind")
        suffix = Path(report.source_name.removesuffix(".gz")).suffix or SUFFIXES.get(kind, "")
        rest = journal.with_name(f"{journal.name.removesuffix('.journal')}.not-done{suffix}")
        left = _counted((accounts.refused, "refused"), (accounts.failed, "failed"), (accounts.unknown, "unknown"))
        print_error(
            f"not done: {left}. To list them with the reasons:", command_line("job", "report", journal, "--not-done", rest)
        )


def _counted(*counts: tuple[int, str]) -> str:
    return ", ".join(f"{number:,} {name}" for number, name in counts if number) or "none"


def _continued(verb: str, journal: Path) -> str:
    """Return the command that continues the job, with the flags of this command that choose the platform."""
    return command_line("job", verb, journal, *given_flags())


def _another_journal(journal: Path) -> str:
    """Return the flag for a journal beside this one that does not exist yet."""
    stem = journal.name.removesuffix(".journal")
    names = (journal.with_name(f"{stem}.{number}.journal") for number in count(2))
    return quoted_words("--journal", str(next(name for name in names if not name.exists())))


def kept_via(journal: Path) -> str | None:
    """Return the address of the workers over which the job in a journal was sent, or None."""
    if not journal.is_file():
        return None
    try:
        via: str | None = job_facts(journal).settings.get(VIA)
    except InvalidRequest:  # the run says what is wrong with it
        return None
    return via
