"""How ``rbim invite`` and ``rbim remove`` begin: what was asked for becomes a job, or an estimate of one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from attrs import frozen

from rbim.cli.confirm import at_terminal, confirmed
from rbim.cli.context import configuration, make_client, pacing
from rbim.cli.errors import complain, report
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.input import STANDARD, journal_beside, line_of, open_input
from rbim.cli.jobs.progress import time_left
from rbim.cli.jobs.run import JobRun, carry_out
from rbim.cli.output import show_json
from rbim.client.limits import Limits
from rbim.errors import RbimError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from rbim.bulk.job import Job
    from rbim.cli.jobs.flags import InputFlags, OnUnknown, OutputFlags, PaceFlags, ResultFlags
    from rbim.cli.jobs.input import Input
    from rbim.operations.base import Operation

__all__ = ["JobCommand", "NoSender", "begin"]


@frozen(kw_only=True)
class JobCommand:
    """A command as it was given; ``make`` makes the job from a sender and settings; ``asks`` says that it asks first."""

    verb: str
    make: Callable[..., Job[Any]]
    file: str
    user_name: str | None
    chunk: int | None
    journal: Path | None
    on_unknown: OnUnknown
    dry_run: bool
    asks: bool = False
    reading: InputFlags
    pacing: PaceFlags
    showing: OutputFlags
    leaving: ResultFlags


class NoSender:
    """The sender of a job that is looked at and not run."""

    async def send(self, op: Operation[Any]) -> NoReturn:
        """Send nothing."""
        raise AssertionError(op)


def begin(asked: JobCommand) -> int:
    """Carry it out and return the exit code."""
    command = f"rbim {asked.verb}"
    try:
        config = configuration()
        user_name = asked.user_name or config["user_name"]  # kept in the journal: resuming has the same
        settings = {**pacing(config), **asked.pacing.settings(config["rates"]), "chunk": asked.chunk, "user_name": user_name}
        journal = asked.journal or journal_beside(asked.file, asked.verb)
        job = asked.make(NoSender(), journal=journal, **settings)
        client = None if asked.dry_run else make_client(config, limits=Limits(concurrency=job.settings.concurrency))
        with open_input(asked.file, asked.reading.options()) as rows:
            if client is None:
                return rows.leave(_estimate(job, rows, as_json=asked.showing.as_json))
            files = Files(
                job.journal,
                rows=asked.leaving.not_done,
                plot=asked.leaving.plot,
                kept=None if asked.file == STANDARD else asked.file,
            )
            if asked.asks and not confirmed(_order(asked, job), f"{command} --yes"):
                return rows.leave(JobExit.USAGE)
            job = asked.make(client, journal=journal, **settings)
            return carry_out(
                JobRun(
                    command=command,
                    journal=job.journal,
                    client=client,
                    begin=lambda: job.run(rows, asked.on_unknown),
                    showing=asked.showing,
                    files=files,
                    rows=rows,
                )
            )
    except RbimError as error:
        return report(error, command)
    except KeyboardInterrupt:
        complain("nothing was sent: run the same command again")
        return JobExit.INTERRUPTED


def _order(asked: JobCommand, job: Job[Any]) -> str:
    """Return what is to be done, in the words of an order: with figures where somebody is asked and they can be had."""
    if not (at_terminal() and Path(asked.file).is_file()):  # what is no file can be read but once
        return f"{asked.verb} every account in {asked.file}"
    with open_input(asked.file, asked.reading.options()) as rows:
        found = anyio.run(job.estimate, rows)
    accounts, groups = found.rows - found.bad - found.duplicates, found.groups
    return f"{asked.verb} {accounts:,} account{'s' * (accounts != 1)} from {groups:,} group{'s' * (groups != 1)}"


def _estimate(job: Job[Any], rows: Input, *, as_json: bool) -> int:
    """Say what the job would be."""
    try:
        found = anyio.run(job.estimate, rows)
    except KeyboardInterrupt:
        return JobExit.INTERRUPTED
    usable = found.rows - found.bad - found.duplicates
    if as_json:
        show_json(
            {
                "rows": found.rows,
                "usable": usable,
                "bad": found.bad,
                "duplicate": found.duplicates,
                "groups": found.groups,
                "requests": found.requests,
                "chunk": job.work.chunk,
                "seconds": found.seconds,
                "bad_rows": [row._asdict() for row in rows.bad],
            }
        )
    else:
        lasts = "no rate given: as fast as the platform allows"
        if found.seconds is not None:
            lasts = f"at least {time_left(found.seconds)} at the rates given"
        elif job.settings.rates:
            lasts = "as fast as the platform and each group's rate allow"
        lines = [
            f"{found.rows:,} rows: {usable:,} usable, {found.bad:,} that cannot be used, {found.duplicates:,} duplicates",
            *(f"  {line_of(row)}" for row in rows.bad),
            *([f"  and {found.bad - len(rows.bad):,} more"] if found.bad > len(rows.bad) else []),
            f"{found.groups:,} group{'s' * (found.groups != 1)}",
            f"{found.requests:,} requests of at most {job.work.chunk:,} accounts; {lasts}",
            "nothing was sent",
        ]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return JobExit.INCOMPLETE if found.bad else JobExit.DONE
