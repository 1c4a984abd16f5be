"""``rbim job``: what has become of a job, and going on with it, from its journal alone. Heavy imports wait."""

from __future__ import annotations

from pathlib import Path  # cyclopts reads it
from typing import Annotated, Literal

from cyclopts import App, Parameter

from rbim.cli.global_flags import EVERYWHERE
from rbim.cli.jobs.flags import EXITS, OnUnknown, OutputFlags, PaceFlags, ResultFlags

__all__ = ["job", "report", "resume", "retry", "status"]

HELP = """\
Jobs that `rbim invite` and `rbim remove` have begun: how far one is, and going on with it. The journal alone is needed, and
the environment that describes the application.
"""
LOOKING = f"Exit code 0 whenever the journal can be read, else 2.\n\n{EVERYWHERE}"

Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]

Output = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]

PACING, SHOWING, LEAVING = PaceFlags(), OutputFlags(), ResultFlags()

job = App(name="job", help=HELP, help_format="markdown")


@job.command(sort_key=0, help_epilogue=LOOKING)
def status(journal: Path, /, *, as_json: Json = False) -> int:
    """Say how far a job is, and whether a process runs it right now.

    Parameters
    ----------
    journal
        The job's journal.
    as_json
        Print one JSON object.
    """
    from rbim.cli.jobs.report import tell_status

    return tell_status(journal, as_json=as_json)


@job.command(sort_key=1, help_epilogue=EXITS)
def resume(
    journal: Path,
    /,
    *,
    on_unknown: OnUnknown = "auto",
    pacing: PaceFlags = PACING,
    showing: OutputFlags = SHOWING,
    leaving: ResultFlags = LEAVING,
) -> int:
    """Send what has not been sent yet. Flags that are not given are as they were in the last run.

    Parameters
    ----------
    journal
        The job's journal.
    on_unknown
        What the last run has left open is sent again, or reported as unknown; auto sends invitations without confirmation
        again that are younger than an hour.
    """
    from rbim.cli.jobs.resume import go_on

    return go_on(journal, "resume", lambda made: made.resume(on_unknown), (pacing, showing, leaving))


@job.command(sort_key=2, help_epilogue=EXITS)
def retry(
    journal: Path,
    /,
    *,
    only: Literal["failed", "unknown"] | None = None,
    pacing: PaceFlags = PACING,
    showing: OutputFlags = SHOWING,
    leaving: ResultFlags = LEAVING,
) -> int:
    """Send accounts again that have failed, and those of which it is unknown. Those that were refused stay so.

    Flags that are not given are as they were in the last run.

    Parameters
    ----------
    journal
        The job's journal.
    only
        Only those that have failed, or only those of which it is unknown.
    """
    from rbim.cli.jobs.resume import go_on

    return go_on(
        journal,
        "retry",
        lambda made: made.retry(failed=only != "unknown", unknown=only != "failed"),
        (pacing, showing, leaving),
    )


@job.command(sort_key=3, help_epilogue=LOOKING)
def report(
    journal: Path,
    /,
    *,
    as_json: Json = False,
    csv: Output = None,
    not_done: Output = None,
    plot: Path | None = None,
) -> int:
    """Say what has become of a job, also while it runs.

    Parameters
    ----------
    journal
        The job's journal.
    as_json
        Print one JSON object.
    csv
        Write every row of the input with what has become of it to this file; `-` is standard output, in place of the report.
    not_done
        Write the rows that were not done to this file, as the input has them and with the reason, ready to be fed back; `-`
        is standard output, in place of the report.
    plot
        Draw the course of the job into this file, .png or .svg.
    """
    from rbim.cli.jobs.report import tell_report

    return tell_report(journal, as_json=as_json, csv=csv, rows=not_done, plot=plot)
