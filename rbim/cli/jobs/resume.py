"""The start of ``rbim job resume`` and ``rbim job retry``: the job is opened from its journal."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from rbim.bulk.job import open_job
from rbim.bulk.journal.facts import job_facts
from rbim.cli.context import make_client
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.begin import NoSender
from rbim.cli.jobs.dialect import with_flags
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.run import JobRun, execute
from rbim.client.limits import Limits
from rbim.errors import RbimError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rbim.bulk.job import Job
    from rbim.bulk.run import Run
    from rbim.cli.jobs.flags import OutputFlags, PaceFlags, ResultFlags

__all__ = ["continue_job"]


def continue_job(
    journal: Path, verb: str, run: Callable[[Job[Any]], Run], flags: tuple[PaceFlags, OutputFlags, ResultFlags]
) -> int:
    """Run the rest of the job and return the exit code."""
    pace_flags, output_flags, result_flags = flags
    command = f"rbim job {verb}"
    dialect = None
    try:
        stored = open_job(NoSender(), journal)
        settings = pace_flags.settings(stored.settings.rates)
        client = make_client(limits=Limits(concurrency=settings.get("concurrency", stored.settings.concurrency)))
        dialect = client.dialect
        job = open_job(client, journal, **settings)
        source = job_facts(job.journal).source.get("path")
        files = Files(job.journal, rows=result_flags.not_done, plot=result_flags.plot, source=source)
    except RbimError as error:
        return report_error(with_flags(error, journal, dialect), command)
    except sqlite3.Error as error:
        print_error(f"{journal}: {error}")
        return JobExit.USAGE
    return execute(
        JobRun(
            command=command,
            journal=job.journal,
            client=client,
            begin=lambda: run(job),
            output_flags=output_flags,
            files=files,
        )
    )
