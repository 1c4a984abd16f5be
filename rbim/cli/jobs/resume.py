"""The start of ``rbim job resume`` and ``rbim job retry``: the job is opened from its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbim.bulk.job import open_job
from rbim.bulk.journal.facts import job_facts
from rbim.bulk.report.reading import read_report
from rbim.cli.context import configuration, make_client, take_shared_rates
from rbim.cli.jobs.begin import NoSender
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.journal_errors import explaining
from rbim.cli.jobs.run import JobRun, execute
from rbim.client.limits import Limits
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from rbim.bulk.job import Job
    from rbim.bulk.run import Run
    from rbim.cli.jobs.flags import PaceFlags, ResultFlags

__all__ = ["continue_job", "retried"]

STATES = ("failed", "unknown", "refused")  # the states of accounts that a retry can send again


def continue_job(
    journal: Path, verb: str, run: Callable[[Job[Any]], Run], pace_flags: PaceFlags, result_flags: ResultFlags
) -> int:
    """Run the rest of the job and return the exit code. Raises InvalidRequest."""
    journal = journal.absolute()
    with explaining(journal, verb):
        stored = open_job(NoSender(), journal)
        config = configuration()
        settings = pace_flags.settings([*stored.settings.rates, *(rate for rate in config["rates"] if rate.shared)])
        shared = take_shared_rates(settings, config["rates"])
        limits = Limits(concurrency=settings.get("concurrency", stored.settings.concurrency), rates=shared)
        client = make_client(config, limits=limits)
        job = open_job(client, journal, **settings, dialect=config.dialect)
        files = Files(journal, source=job_facts(journal).source.get("path"), not_done=result_flags.not_done)
        return execute(JobRun(journal, client, lambda: run(job), result_flags, files))


def retried(job: Job[Any], states: Collection[str], reasons: Sequence[str], groups: Sequence[str]) -> Run:
    """Return a run that sends the accounts in these states again. Raises InvalidRequest if there are none.

    The run itself raises it if accounts wait to be sent, or if none has one of the reasons and groups.
    """
    report = read_report(job.journal)
    counts = {state: getattr(report.accounts, state) for state in STATES}
    if report.complete and not any(counts[state] for state in states):
        selected = " or ".join(state for state in STATES if state in states)
        wrong = InvalidRequest(f"{job.journal}: no account to retry: none is {selected}", field="journal")
        if others := [f"{number:,} {state} (--only {state})" for state, number in counts.items() if number]:
            wrong.add_note(f"Accounts that were not done: {', '.join(others)}")
        raise wrong
    return job.retry(
        failed="failed" in states, unknown="unknown" in states, refused="refused" in states, reasons=reasons, groups=groups
    )
