"""``rbim invite``, ``rbim remove`` and ``rbim job``. Heavy imports happen when they are called."""

from __future__ import annotations

import sys
from pathlib import Path  # cyclopts reads it
from typing import Annotated, Literal

from cyclopts import App, Parameter

from rbim._support.text import counted
from rbim.cli.confirm import Yes, confirmed
from rbim.cli.exit_codes import JOB_EXITS, JobExit
from rbim.cli.flag_types import Flag, Json, Repeated  # cyclopts reads it
from rbim.cli.global_flags import GLOBAL_FLAGS_HELP, same_with
from rbim.cli.jobs.flags import INPUT, Count, InputFlags, PaceFlags, RestFlags, ResultFlags, StartFlags
from rbim.cli.json_output import show_json
from rbim.errors import InvalidRequest

__all__ = ["forget", "invite", "job", "list_jobs", "remove", "report", "resume", "retry", "status"]

HERE = Path()

HELP = """\
List, show, resume, retry or forget jobs that were started with `rbim invite` or `rbim remove`. Only the journal is needed,
and to send requests the configuration of the application.
"""
EXITS = f"{JOB_EXITS}\n\n{GLOBAL_FLAGS_HELP}"
FORGET_EXITS = f"Exit code 0 if no accounts are left in the journal, else 2.\n\n{GLOBAL_FLAGS_HELP}"
LIST_EXITS = f"Exit code 0 if the folder can be read, else 2.\n\n{GLOBAL_FLAGS_HELP}"
READ_EXITS = f"Exit code 0 if the journal can be read, else 2.\n\n{GLOBAL_FLAGS_HELP}"

Output = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]

OnUnknown = Literal["auto", "resend", "report"]

File = Annotated[str, Parameter(allow_leading_hyphen=True)]
Confirmation = Annotated[Flag, Parameter(name=("--confirm", "--needs-confirmation")), INPUT]

INPUT_FLAGS, BEGIN_PACE_FLAGS, START_FLAGS = InputFlags(), PaceFlags(), StartFlags()
PACE_FLAGS, RESULT_FLAGS = RestFlags(), ResultFlags()

job = App(name="job", help=HELP, help_format="markdown")


def invite(  # noqa: PLR0913  # flags, each with a default
    file: File,
    /,
    *,
    input_flags: InputFlags = INPUT_FLAGS,
    needs_confirmation: Confirmation = False,
    declared: Annotated[str | None, INPUT] = None,
    pace_flags: PaceFlags = BEGIN_PACE_FLAGS,
    start_flags: StartFlags = START_FLAGS,
    check_groups: Annotated[Flag, INPUT] = False,
    result_flags: ResultFlags = RESULT_FLAGS,
) -> int:
    """Invite any number of accounts into any number of groups.

    All rows are first written to a journal. Each request is recorded before and after it is sent, so that the job can be
    resumed after any interruption: with `rbim job resume JOURNAL`, or with the same command again. Ctrl-C waits for the
    requests in flight; a second Ctrl-C abandons them.

    Parameters
    ----------
    file
        CSV with the columns group and account (and user_name, if rows have their own acting accounts), JSON lines with these
        keys, or a text with one account per line (needs --group). `-` reads standard input.
    needs_confirmation
        Each invitee must agree.
    declared
        The reason for the invitation, at most 50 characters.
    check_groups
        With --dry-run: ask the platform once for each group, and warn of those that are missing, full or too small.
    """
    from functools import partial

    from rbim.bulk.job import InviteJob
    from rbim.cli.jobs.begin import JobCommand, begin

    make = partial(InviteJob, needs_confirmation=needs_confirmation, declared=declared)
    command = JobCommand("invite", make, file, start_flags, input_flags, pace_flags, result_flags)
    return begin(command._replace(adds=True, check_groups=check_groups))


def remove(  # noqa: PLR0913  # flags, each with a default
    file: File,
    /,
    *,
    input_flags: InputFlags = INPUT_FLAGS,
    pace_flags: PaceFlags = BEGIN_PACE_FLAGS,
    start_flags: StartFlags = START_FLAGS,
    yes: Annotated[Yes, INPUT] = False,
    result_flags: ResultFlags = RESULT_FLAGS,
) -> int:
    """Remove any number of members from any number of groups.

    It works like `rbim invite`, with its own journal, but asks for confirmation before anything is removed; without a
    terminal it requires --yes.

    Parameters
    ----------
    file
        CSV with the columns group and account (and user_name, if rows have their own acting accounts), JSON lines with these
        keys, or a text with one account per line (needs --group). `-` reads standard input.
    """
    from rbim.bulk.job import RemoveJob
    from rbim.cli.jobs.begin import JobCommand, begin

    command = JobCommand("remove", RemoveJob, file, start_flags, input_flags, pace_flags, result_flags)
    return begin(command._replace(asks_first=not yes))


@job.command(name="list", sort_key=0, help_epilogue=LIST_EXITS)
def list_jobs(folder: Path = HERE, /, *, as_json: Json = False) -> None:
    """List the jobs whose journals are in a folder, the latest first, and whether a process is running them.

    Journals are found by their content, not by their names; folders inside are not searched.

    Parameters
    ----------
    folder
        The folder (default: the working directory).
    as_json
        Print one JSON array.
    """
    from rbim.cli.jobs.report import print_jobs

    print_jobs(folder, as_json=as_json)


@job.command(sort_key=0, help_epilogue=READ_EXITS)
def status(journal: Path, /, *, as_json: Json = False) -> None:
    """Show how far a job is, and whether a process is running it.

    Parameters
    ----------
    journal
        The journal of the job.
    as_json
        Print one JSON object.
    """
    from rbim.cli.jobs.report import print_status

    print_status(journal, as_json=as_json)


@job.command(sort_key=1, help_epilogue=EXITS)
def resume(  # flags, each with a default
    journal: Path,
    /,
    *,
    on_unknown: OnUnknown = "auto",
    limit: Count | None = None,
    pace_flags: RestFlags = PACE_FLAGS,
    result_flags: ResultFlags = RESULT_FLAGS,
) -> int:
    """Send the accounts that have not been sent yet. Flags that are not given keep their values from the last run.

    Parameters
    ----------
    journal
        The journal of the job.
    on_unknown
        For requests whose result the last run left open: resend them, or report them as unknown; auto resends invitations
        that are younger than an hour and need no confirmation.
    limit
        Send at most this many accounts now; resume again to send the rest.
    """
    from rbim.cli.jobs.begin import continue_job

    return continue_job(journal, "resume", lambda made: made.resume(on_unknown, limit=limit), pace_flags, result_flags)


@job.command(sort_key=2, help_epilogue=EXITS)
def retry(  # noqa: PLR0913  # flags, each with a default
    journal: Path,
    /,
    *,
    only: Literal["failed", "unknown", "refused"] | None = None,
    refused: Flag = False,
    reason: Repeated = (),
    group: Repeated = (),
    pace_flags: RestFlags = PACE_FLAGS,
    result_flags: ResultFlags = RESULT_FLAGS,
) -> int:
    """Send failed and unknown accounts again, and on request those that the platform refused.

    If no account is selected, nothing is sent and the exit code is 2. Flags that are not given keep their values from the
    last run.

    Parameters
    ----------
    journal
        The journal of the job.
    only
        Only failed accounts, only those with an unknown outcome, or only refused ones.
    refused
        Also the accounts that the platform refused.
    reason
        Only accounts with this reason: its whole text, or its code, as in the report. May be given several times.
    group
        Only accounts of this group. May be given several times.
    """
    from rbim.cli.jobs.begin import continue_job, retried

    states = {"failed", "unknown"} if only is None else {only}
    states |= {"refused"} if refused else set()
    return continue_job(journal, "retry", lambda made: retried(made, states, reason, group), pace_flags, result_flags)


@job.command(sort_key=3, help_epilogue=READ_EXITS)
def report(  # noqa: PLR0913  # flags, each with a default
    journal: Path,
    /,
    *,
    as_json: Json = False,
    csv: Output = None,
    done: Output = None,
    refused: Output = None,
    not_done: Output = None,
    plot: Path | None = None,
) -> None:
    """Report the results of a job, also while it runs.

    Parameters
    ----------
    journal
        The journal of the job.
    as_json
        Print one JSON object.
    csv
        Write every row of the input with its result to this file; `-` writes to standard output instead of the report.
    done
        Write the rows that were done to this file, in the format of the input. `-` is standard output.
    refused
        Write the rows that the platform refused, with its reason, to this file, in the format of the input. `-` is standard
        output.
    not_done
        Write the rows that were not done, with the reason, to this file. It has the format of the input and can be used as
        input again. `-` writes to standard output instead of the report.
    plot
        Draw the throughput of the job over time into this file (.png or .svg).
    """
    from rbim.cli.jobs.report import print_report

    print_report(journal, as_json=as_json, csv=csv, done=done, refused=refused, not_done=not_done, plot=plot)


@job.command(sort_key=4, help_epilogue=FORGET_EXITS)
def forget(journal: Path, /, *, unfinished: Flag = False, yes: Yes = False, as_json: Json = False) -> int:
    """Erase all accounts and other personal data in a journal; the counts stay.

    Erased are accounts, acting accounts, groups, the texts of reasons, rows that cannot be used, and the name and path of
    the input. Afterwards the job can be reported, but not resumed or retried. The input and written reports are other
    files: delete them yourself. If it is interrupted, run it again.

    Parameters
    ----------
    journal
        The journal of the job.
    unfinished
        Erase the journal of a job that is not complete; its remaining accounts are never sent.
    as_json
        Print the journal and the time of the erasure as one JSON object.
    """
    import sqlite3

    from rbim.bulk.journal.forget import erasable, forget_job
    from rbim.cli.jobs.journal_errors import explaining

    journal = journal.absolute()
    with explaining(journal, "forget"):
        found = erasable(journal)
        if found.erased is None and not yes and (unfinished or not found.unfinished):  # otherwise it is refused anyway
            action = f"permanently erase {counted(found.accounts, 'account')} from {journal}"
            if found.waiting:
                action = f"{action}, of which {found.waiting:,} still wait to be sent"
            if not confirmed(action, same_with("--yes"), unchanged="nothing was erased"):
                return JobExit.USAGE
        try:
            erased = forget_job(journal, unfinished=unfinished)
        except sqlite3.Error as error:
            raise InvalidRequest(f"{journal}: {error}", field="journal") from error
    if as_json:
        show_json({"journal": str(journal), "erased": erased})
    else:
        sys.stdout.write(f"the accounts were erased on {erased:%Y-%m-%d %H:%M:%S} UTC; the counts stay\n")
    return JobExit.DONE
