"""A run of a job from the command line: client, signals, progress, and the messages at the end."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from stat import S_ISCHR
from typing import TYPE_CHECKING

import anyio
from attrs import define

from rbim._support.task_errors import TaskErrors
from rbim._support.text import listed, visible
from rbim.bulk.journal.facts import damage_of
from rbim.bulk.report.reading import read_report
from rbim.cli.errors import discard_output, print_error, report_bug, report_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.global_flags import command_line, given_flags
from rbim.cli.jobs.progress import ProgressDisplay
from rbim.cli.jobs.report import show_report
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

__all__ = ["JobRun", "execute"]

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # the last one: the terminal was closed; Windows has none
ENDS: dict[str, tuple[JobExit | None, str]] = {
    "stopped": (JobExit.INTERRUPTED, "stopped"),
    "interrupted": (JobExit.INTERRUPTED, "interrupted"),
    "limit": (None, "the limit of this run was reached (--limit)"),
    "fuse": (JobExit.GAVE_UP, "too many requests failed (--max-failures)"),
    "not connected": (JobExit.GAVE_UP, "no connection was possible"),
    "no answer": (JobExit.GAVE_UP, "no response for too long (--patience)"),
    "no progress": (JobExit.GAVE_UP, "no account was settled for too long (--patience)"),
    "error": (JobExit.GAVE_UP, "stopped early"),
    "fault": (JobExit.FAULT, "stopped early"),
    "authentication": (JobExit.REFUSED, "the platform refused the credentials"),
}
"""Reasons of an early end: their exit code, unless the accounts say it, and the message."""

WITH_CAUSE = {"not connected", "no answer", "no progress"}
"""Reasons of an early end that the last failure of a request explains."""

SUFFIXES = {"csv": (".csv", ".tsv", ".txt"), "jsonl": (".jsonl", ".ndjson", ".json")}


@define(eq=False)
class JobRun:
    """A run to execute: ``begin`` makes it; ``rows`` is its input, if it reads one. ``client`` is open while it runs.

    ``error`` ended it, if any.
    """

    journal: Path
    client: AsyncClient
    begin: Callable[[], Run]
    flags: ResultFlags
    files: Files
    rows: Input | None = None
    run: Run | None = None
    error: BaseException | None = None

    @property
    def why(self) -> str:
        """The reason of its end."""
        if isinstance(self.error, AuthenticationError):
            return "authentication"
        if self.error is not None:
            return "error" if isinstance(self.error, (RbimError, sqlite3.Error, OSError)) else "fault"
        return "interrupted" if self.run is None else self.run.why or "interrupted"


def execute(job_run: JobRun) -> int:
    """Run the job, print its report and the next steps, and return the exit code. Raises InvalidRequest."""
    if not job_run.flags.quiet:
        sys.stderr.write(f"journal: {visible(str(job_run.journal))}\n")
        sys.stderr.flush()
    try:
        anyio.run(_run, job_run)
    except InvalidRequest:
        raise
    except KeyboardInterrupt:  # only without a receiver of signals
        pass
    except Exception as error:
        job_run.error = error
    try:
        return _finish(job_run)
    except KeyboardInterrupt:
        print_error("interrupted. To resume, if accounts are left:", _continued("resume", job_run.journal))
        return JobExit.INTERRUPTED


# ------------------------------------------------------------------------------ the run


async def _run(job_run: JobRun) -> None:
    job_run.run = run = job_run.begin()  # an error of it must not become one of a group
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


def _finish(job_run: JobRun) -> int:
    _print_failure(job_run)
    try:
        report = read_report(job_run.journal)
    except InvalidRequest:  # there is no job, or no journal any more
        report = None
    code = _code(job_run, report)
    if report is None:
        _print_steps(job_run, None)
        return code
    writing: tuple[Callable[[], None], ...] = (
        lambda: _print_report(job_run, report),
        lambda: _print_steps(job_run, report),
        lambda: job_run.files.write(report),
    )
    for write in writing:
        try:
            write()
        except InvalidRequest as failed:  # a file that cannot be written
            print_error(failed.message)
            code = min(code, JobExit.USAGE, key=list(JobExit).index)
    return code


def _print_failure(job_run: JobRun) -> None:
    """Print the error that ended the run, if there is one."""
    error = job_run.error
    if isinstance(error, RbimError):
        report_error(error, "rbim")
    elif isinstance(error, (sqlite3.Error, OSError)):
        print_error(f"{job_run.journal}: {getattr(error, 'strerror', None) or error}", error=error)
    elif error is not None and (damage := damage_of(job_run.journal)) is not None:
        job_run.error = damage
        print_error(damage.message, error=error)
    elif error is not None:
        report_bug(error)


def _code(job_run: JobRun, report: Report | None) -> JobExit:
    early, _ = ENDS.get(job_run.why, (None, ""))
    if report is None:
        was_run = job_run.run is not None and job_run.run.began
        return JobExit.GAVE_UP if was_run else early or JobExit.INTERRUPTED
    if early is not None and not (early is JobExit.INTERRUPTED and report.complete):
        return early
    accounts = report.accounts
    if accounts.unknown:
        return JobExit.UNKNOWN
    return JobExit.INCOMPLETE if accounts.refused or accounts.failed or accounts.bad else JobExit.DONE


def _print_report(job_run: JobRun, report: Report) -> None:
    try:
        if job_run.flags.as_json or report.state != "loading":
            show_report(job_run.journal, report, as_json=job_run.flags.as_json)
        sys.stdout.flush()
    except OSError as error:
        discard_output()
        if not isinstance(error, BrokenPipeError):  # else the reader has closed it; the result of the job is the same
            raise InvalidRequest(f"cannot write the output: {error.strerror or error}", field="output") from error


def _print_steps(job_run: JobRun, report: Report | None) -> None:
    """Print what was not done, with the commands for it."""
    journal, run = job_run.journal, job_run.run
    if report is None and run is not None and run.began:
        state = "cannot be read any more" if journal.exists() else "was deleted during the run"
        print_error(f"{journal}: the journal {state}: there is no record of what was sent")
        return
    if report is None or report.state == "loading":
        print_error("nothing was sent: run the same command again")
        return
    accounts = report.accounts
    if not report.complete:
        _, said = ENDS.get(job_run.why, (None, job_run.why))
        if run is not None and job_run.why in WITH_CAUSE and run.snapshot.cause:
            said = f"{said}: {run.snapshot.cause}"
        left = listed([(accounts.not_sent, "not sent"), (accounts.unknown, "unknown")]) or "none"
        print_error(f"{said}; accounts left: {left}. To resume:", _continued("resume", journal))
        return
    refused, again = (accounts.refused, "refused"), ((accounts.failed, "failed"), (accounts.unknown, "unknown"))
    if accounts.failed or accounts.unknown:
        print_error(f"accounts left: {listed(again)}. To send them again:", _continued("retry", journal))
    if (accounts.refused or accounts.failed or accounts.unknown) and "--not-done" not in job_run.files.by_flag:
        usual = SUFFIXES.get(report.source.get("format", {}).get("kind"), ("",))
        suffix = Path(report.source_name.removesuffix(".gz")).suffix
        suffix = suffix if suffix.lower() in usual else usual[0]  # what is left of a workbook is CSV
        rest = journal.with_name(f"{journal.name.removesuffix('.journal')}.not-done{suffix}")
        command = command_line("job", "report", journal, "--not-done", rest)
        print_error(f"not done: {listed([refused, *again])}. To list them with the reasons:", command)


def _continued(verb: str, journal: Path) -> str:
    """Return the command that continues the job, with the flags of this command that choose the platform."""
    return command_line("job", verb, journal, *given_flags())
