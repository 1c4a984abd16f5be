"""A job's run from the command line: a client, signals, what is shown meanwhile, and what is said at the end."""

from __future__ import annotations

import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from attrs import define, frozen

from rbim._support.task_errors import TaskErrors
from rbim.bulk.report.reading import read_report
from rbim.bulk.report.text import report_text
from rbim.cli.errors import complain, fault, report as complain_of
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.progress import ProgressDisplay
from rbim.cli.output import show_json
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

__all__ = ["JobRun", "carry_out", "command_line"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EARLY = {
    "stopped": JobExit.INTERRUPTED,
    "interrupted": JobExit.INTERRUPTED,
    "fuse": JobExit.GAVE_UP,
    "no answer": JobExit.GAVE_UP,
    "error": JobExit.GAVE_UP,
    "fault": JobExit.FAULT,
    "authentication": JobExit.REFUSED,
}
WORDS = {
    "error": "ended early",
    "fault": "ended early",
    "authentication": "the credentials were refused",
    "fuse": "too many requests failed (--max-failures)",
    "no answer": "no answer came for too long (--patience)",
}

SUFFIXES = {"csv": ".csv", "jsonl": ".jsonl", "text": ".txt"}


@frozen(kw_only=True)
class JobRun:
    """What is to be run: ``begin`` makes the run; ``rows`` is its input, where it has one."""

    command: str
    journal: Path
    client: AsyncClient
    begin: Callable[[], Run]
    showing: OutputFlags
    files: Files
    rows: Input | None = None


@define(eq=False)
class _RunResult:
    """How a run went."""

    run: Run | None = None
    error: BaseException | None = None


def carry_out(doing: JobRun) -> int:
    """Run to the end, say what came of it, and return the exit code."""
    if not doing.showing.quiet:
        sys.stderr.write(f"journal: {doing.journal}\n")
        sys.stderr.flush()
    course = _RunResult()
    try:
        anyio.run(_run, doing, course)
    except KeyboardInterrupt:  # where there is no receiver of signals
        pass
    except Exception as error:
        course.error = error
    try:
        code = _conclude(doing, course)
    except KeyboardInterrupt:
        complain("interrupted. To go on, if anything is left:", command_line("job", "resume", doing.journal))
        code = JobExit.INTERRUPTED
    return code if doing.rows is None else doing.rows.leave(code)


# ------------------------------------------------------------------------------ the run


async def _run(doing: JobRun, course: _RunResult) -> None:
    tasks = anyio.create_task_group()
    failures = TaskErrors(tasks)
    with ProgressDisplay(doing.showing, doing.rows) as progress:
        async with tasks:
            course.run = run = doing.begin()
            await tasks.start(_heed, run, progress)
            with failures:
                async with doing.client, run:
                    async for snapshot in run:
                        progress.update(snapshot)
            tasks.cancel_scope.cancel()
    if failures.errors:
        failures.raise_first()


async def _heed(run: Run, progress: ProgressDisplay, *, task_status: TaskStatus[None]) -> None:
    """Let the run end at the first signal, end it at the second, and the process at the third."""
    with ExitStack() as stack:
        try:
            signals = stack.enter_context(anyio.open_signal_receiver(*SIGNALS))
        except (NotImplementedError, RuntimeError, ValueError):  # Windows; or this is no main thread
            task_status.started()
            return
        task_status.started()
        await anext(signals)
        flying = run.snapshot.in_flight
        what = f"{flying:,} requests in flight; Ctrl-C again to end at once" if flying else "nothing is in flight"
        progress.say(f"stopping: {what}")
        run.stop()
        await anext(signals)
        progress.say("ending at once: what is in flight may take effect")
        run.interrupt()
        await anext(signals)
        os._exit(JobExit.INTERRUPTED)  # whatever waits for whomever; the journal bears it


# ------------------------------------------------------------------------------ its end


def _conclude(doing: JobRun, course: _RunResult) -> int:
    error = course.error
    if isinstance(error, InvalidRequest):
        return complain_of(error, doing.command)
    if isinstance(error, RbimError):
        complain_of(error, doing.command)
    elif isinstance(error, (sqlite3.Error, OSError)):
        complain(f"{doing.journal}: {error}", error=error)
    elif error is not None:
        fault(error)
    report = _read(doing.journal)
    code = _code(course, report)
    if report is None and course.run is not None and course.run.began:
        complain(f"{doing.journal}: the journal is gone, and with it what was sent")
        return JobExit.GAVE_UP
    if report is None:
        complain("nothing was sent: run the same command again")
        return code
    _tell(doing, report)
    if report.state != "loading" and not report.accounts.total:
        complain("there were no rows in the input")
    _tell_rest(doing, course, report)
    try:
        doing.files.write(report)
    except InvalidRequest as failed:
        complain(failed.message)
        return _first(code, JobExit.USAGE)
    return code


def _tell(doing: JobRun, report: Report) -> None:
    try:
        if doing.showing.as_json:
            show_json(report.as_json())
        elif report.state != "loading":
            sys.stdout.write(report_text(report))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has left; what became of the job is the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read(journal: Path) -> Report | None:
    """Return the report; None where the run ended before there was a job."""
    try:
        return read_report(journal)
    except InvalidRequest:
        return None


def _why(course: _RunResult) -> str:
    if isinstance(course.error, AuthenticationError):
        return "authentication"
    if course.error is not None:
        return "error" if isinstance(course.error, (RbimError, sqlite3.Error, OSError)) else "fault"
    return "interrupted" if course.run is None else course.run.why or "interrupted"


def _code(course: _RunResult, report: Report | None) -> JobExit:
    why = _why(course)
    if report is None:
        return EARLY.get(why, JobExit.INTERRUPTED)
    early = EARLY.get(why)
    if early is not None and not (early is JobExit.INTERRUPTED and report.complete):
        return early
    accounts = report.accounts
    if accounts.unknown:
        return JobExit.UNKNOWN
    return JobExit.INCOMPLETE if accounts.refused or accounts.failed or accounts.bad else JobExit.DONE


def _first(*codes: JobExit) -> JobExit:
    return min(codes, key=list(JobExit).index)


def _tell_rest(doing: JobRun, course: _RunResult, report: Report) -> None:
    """Say how to go on with what was not done."""
    accounts, job = report.accounts, doing.journal
    if report.state == "loading":
        complain("nothing was sent: run the same command again")
        return
    if not report.complete:
        why = _why(course)
        left = _counted((accounts.not_sent, "not sent"), (accounts.unknown, "unknown"))
        complain(f"{WORDS.get(why, why)}; accounts left: {left}. To go on:", command_line("job", "resume", job))
        return
    if accounts.failed or accounts.unknown:
        left = _counted((accounts.failed, "failed"), (accounts.unknown, "unknown"))
        complain(f"accounts left: {left}. To send them again:", command_line("job", "retry", job))
    if (accounts.refused or accounts.failed or accounts.unknown) and not doing.files.has_rows:
        suffix = Path(report.source_name).suffix or SUFFIXES.get(report.source.get("format", {}).get("kind"), "")
        rest = job.with_name(f"{job.name.removesuffix('.journal')}.not-done{suffix}")
        left = _counted((accounts.refused, "refused"), (accounts.failed, "failed"), (accounts.unknown, "unknown"))
        complain(f"not done: {left}. To write down who and why:", command_line("job", "report", job, "--not-done", rest))


def _counted(*counts: tuple[int, str]) -> str:
    return ", ".join(f"{number:,} {what}" for number, what in counts if number) or "none"


def command_line(*tokens: object) -> str:
    """Return a command of rbim as it is typed into a shell."""
    words = ["rbim", *map(str, tokens)]
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
