"""How ``rbim job resume`` and ``rbim job retry`` begin: the journal becomes the job again."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from rbim.bulk.job import job_facts, open_job
from rbim.cli.context import make_client
from rbim.cli.errors import complain, report
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.begin import NoSender
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.run import JobRun, carry_out
from rbim.client.limits import Limits
from rbim.errors import RbimError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rbim.bulk.job import Job
    from rbim.bulk.run import Run
    from rbim.cli.jobs.flags import OutputFlags, PaceFlags, ResultFlags

__all__ = ["go_on"]


def go_on(
    journal: Path, verb: str, run: Callable[[Job[Any]], Run], flags: tuple[PaceFlags, OutputFlags, ResultFlags]
) -> int:
    """Run what is left of the job and return the exit code."""
    pacing, showing, leaving = flags
    command = f"rbim job {verb}"
    try:
        kept = open_job(NoSender(), journal)
        settings = pacing.settings(kept.settings.rates)
        client = make_client(limits=Limits(concurrency=settings.get("concurrency", kept.settings.concurrency)))
        job = open_job(client, journal, **settings)
        source = job_facts(job.journal).source.get("path")
        files = Files(job.journal, rows=leaving.not_done, plot=leaving.plot, kept=source)
    except RbimError as error:
        return report(error, command)
    except sqlite3.Error as error:
        complain(f"{journal}: {error}")
        return JobExit.USAGE
    return carry_out(
        JobRun(
            command=command,
            journal=job.journal,
            client=client,
            begin=lambda: run(job),
            showing=showing,
            files=files,
        )
    )
