"""A run of a job from the command line: client, signals, progress, and the messages at the end."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from stat import S_ISCHR
from typing import TYPE_CHECKING, NamedTuple

import anyio
from attrs import define

from rbim._support.task_errors import TaskErrors
from rbim.bulk.journal.facts import damage_of
from rbim.bulk.report.reading import first_not_done, read_report
from rbim.bulk.report.text import report_text
from rbim.bulk.run import ANOTHER_JOB
from rbim.cli.command_lines import command_line, quoted_words
from rbim.cli.errors import print_error, report_bug, report_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.folding import fold_for
from rbim.cli.global_flags import given_flags
from rbim.cli.jobs.journal_errors import with_flags
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
    from rbim.cli.jobs.flags import ResultFlags
    from rbim.cli.jobs.input import Input
    from rbim.client.client import AsyncClient
    from rbim.dialect import Dialect

__all__ = ["JobRun", "execute"]

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # the last one: the terminal was closed; Windows has none
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

INPUT_ERRORS = {"source", "max_bad"}  # fields of errors that end the reading of the input
NO_JOB = (
    "Nothing was sent. {journal} holds no job yet (`rbim job list`: loading, 0 rows): run the same command again, or delete "
    "it."
)

SUFFIXES = {"csv": (".csv", ".tsv", ".txt"), "jsonl": (".jsonl", ".ndjson", ".json")}


class JobRun(NamedTuple):
    """A run to execute: ``begin`` makes it; ``rows`` is its input, if it reads one. ``client`` is open while it runs."""

    command: str
    journal: Path
    client: AsyncClient
    dialect: Dialect
    begin: Callable[[], Run]
    flags: ResultFlags
    files: Files
    rows: Input | None = None


class _NextStep(NamedTuple):
    """A message at the end of a command, and the command to copy, if there is one."""

    text: str
    command: str = ""


@define(eq=False)
class _RunResult:
    """The run, and the error that ended it, if any."""

    run: Run | None = None
    error: BaseException | None = None


def execute(job_run: JobRun) -> int:
    """Run the job, print its report and the next steps, and return the exit code. Raises InvalidRequest."""
    if not job_run.flags.quiet:
        sys.stderr.write(f"journal: {visible(str(job_run.journal))}\n")
        sys.stderr.flush()
    code = _run_and_finish(job_run)
    return code if job_run.rows is None else job_run.rows.leave(code)


def _run_and_finish(job_run: JobRun) -> int:
    result = _RunResult()
    try:
        anyio.run(_run, job_run, result)
    except KeyboardInterrupt:  # only without a receiver of signals
        pass
    except Exception as error:
        result.error = error
    try:
        return _finish(job_run, result)
    except KeyboardInterrupt:
        print_error("interrupted. To resume, if accounts are left:", _continued("resume", job_run.journal))
        return JobExit.INTERRUPTED


# ------------------------------------------------------------------------------ the run


async def _run(job_run: JobRun, result: _RunResult) -> None:
    result.run = run = job_run.begin()  # an error of it must not become one of a group
    tasks = anyio.create_task_group()
    failures = TaskErrors(tasks)
    with ProgressDisplay(job_run.rows, quiet=job_run.flags.quiet) as progress:
        async with tasks:
            await tasks.start(_handle_signals, run, progress)
            with failures:
                async with job_run.client, run:
                    async for snapshot in run:
                        progress.update(snapshot)
            tasks.cancel_scope.cancel()
    if failures.errors:
        failures.raise_first()


async def _handle_signals(run: Run, progress: ProgressDisplay, *, task_status: TaskStatus[None]) -> None:
    """Stop the run at the first signal, interrupt it at the second, end the process at the third."""
    with ExitStack() as stack:
        try:
            numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
            heeded = [each for each in numbers if signal.getsignal(each) != signal.SIG_IGN]  # nohup ignores SIGHUP
            signals = stack.enter_context(anyio.open_signal_receiver(*heeded))
        except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
            task_status.started()
            return
        task_status.started()
        if await anext(signals) == getattr(signal, "SIGHUP", None):
            _leave_terminal()
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


def _leave_terminal() -> None:
    """Print to nowhere from now on: each write to a terminal that was closed would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with suppress(OSError):
            if S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
    os.close(nowhere)


# ------------------------------------------------------------------------------ its end


def _finish(job_run: JobRun, result: _RunResult) -> int:
    if isinstance(result.error, InvalidRequest):
        error = with_flags(result.error, job_run.journal, job_run.dialect)
        if error.field == ANOTHER_JOB:
            error.add_note(f"To finish that job:\n{_continued('resume', job_run.journal)}")
            stem = job_run.journal.name.removesuffix(".journal")
            names = (job_run.journal.with_name(f"{stem}.{number}.journal") for number in count(2))
            unused = quoted_words("--journal", str(next(name for name in names if not name.exists())))
            error.add_note(f"To begin another job, the same command with: {unused}")
        if error.field == "journal" and job_run.rows is not None and isinstance(error.__cause__, OSError):
            error.add_note("The journal stands beside the input; --journal PATH names another place.")
        if error.field in INPUT_ERRORS and (report := _read(job_run.journal)) is not None and report.state == "loading":
            error.add_note(NO_JOB.format(journal=job_run.journal))
        return report_error(error, job_run.command)
    _print_failure(job_run, result)
    report = _read(job_run.journal)
    code = _code(result, report)
    steps = _next_steps(job_run, result, report)
    if report is None:
        _print_steps(steps)
        return JobExit.GAVE_UP if result.run is not None and result.run.began else code
    writing: tuple[Callable[[], None], ...] = (
        lambda: _print_report(job_run, report),
        lambda: _print_steps(steps),
        lambda: job_run.files.write(report),
    )
    for write in writing:
        try:
            write()
        except InvalidRequest as failed:  # a file that cannot be written
            print_error(failed.message)
            code = min(code, JobExit.USAGE, key=list(JobExit).index)
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
        if job_run.flags.as_json:
            show_json(report)
        elif report.state != "loading":
            sys.stdout.write(fold_for(sys.stdout, report_text(report, first_not_done(job_run.journal, report))))
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


def _print_steps(steps: list[_NextStep]) -> None:
    for step in steps:
        print_error(step.text, step.command)


def _next_steps(job_run: JobRun, result: _RunResult, report: Report | None) -> list[_NextStep]:
    """Return the messages about what was not done, with the commands for it."""
    journal = job_run.journal
    if report is None and result.run is not None and result.run.began:
        state = "cannot be read any more" if journal.exists() else "was deleted during the run"
        return [_NextStep(f"{journal}: the journal {state}: there is no record of what was sent")]
    if report is None or report.state == "loading":
        return [_NextStep("nothing was sent: run the same command again")]
    accounts = report.accounts
    if not report.complete:
        reason = _stop_reason(result)
        left = ((accounts.not_sent, "not sent"), (accounts.unknown, "unknown"))
        cause = result.run.snapshot.cause if result.run is not None and reason in WITH_CAUSE else ""
        said = f"{STOP_REASONS.get(reason, reason)}{f': {cause}' if cause else ''}"
        text = f"{said}; accounts left: {_counted(*left)}. To resume:"
        return [_NextStep(text, _continued("resume", journal))]
    steps: list[_NextStep] = []
    refused, again = (accounts.refused, "refused"), ((accounts.failed, "failed"), (accounts.unknown, "unknown"))
    if accounts.failed or accounts.unknown:
        text = f"accounts left: {_counted(*again)}. To send them again:"
        steps.append(_NextStep(text, _continued("retry", journal)))
    if (accounts.refused or accounts.failed or accounts.unknown) and "--not-done" not in job_run.files.by_flag:
        kind = report.source.get("format", {}).get("kind")
        usual = SUFFIXES.get(kind, ("",))
        suffix = Path(report.source_name.removesuffix(".gz")).suffix
        suffix = suffix if suffix.lower() in usual else usual[0]  # what is left of a workbook is CSV
        rest = journal.with_name(f"{journal.name.removesuffix('.journal')}.not-done{suffix}")
        text = f"not done: {_counted(refused, *again)}. To list them with the reasons:"
        steps.append(_NextStep(text, command_line("job", "report", journal, "--not-done", rest)))
    return steps


def _counted(*counts: tuple[int, str]) -> str:
    return ", ".join(f"{number:,} {name}" for number, name in counts if number) or "none"


def _continued(verb: str, journal: Path) -> str:
    """Return the command that continues the job, with the flags of this command that choose the platform."""
    return command_line("job", verb, journal, *given_flags())
