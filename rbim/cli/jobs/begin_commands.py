"""``rbim invite`` and ``rbim remove``: a job from a file of rows. Heavy imports happen when they are called."""

from __future__ import annotations

from pathlib import Path  # cyclopts reads it
from typing import Annotated

from cyclopts import Parameter

from rbim.cli.confirm import Yes  # noqa: TC001  # cyclopts reads it
from rbim.cli.flag_types import FileName, Flag
from rbim.cli.jobs.flags import Count, InputFlags, PaceFlags, ResultFlags

__all__ = ["invite", "remove"]

File = Annotated[FileName, Parameter(allow_leading_hyphen=True)]
INPUT, PACE, RESUME = Parameter(group="Input"), Parameter(group="Pace"), Parameter(group="Resume")
Confirmation = Annotated[Flag, Parameter(name=("--confirm", "--needs-confirmation")), INPUT]
Limit = Annotated[Count | None, PACE]
Journal = Annotated[Path | None, RESUME]
DryRun = Annotated[Flag, INPUT]

INPUT_FLAGS, PACE_FLAGS, RESULT_FLAGS = InputFlags(), PaceFlags(), ResultFlags()


def invite(  # noqa: PLR0913  # flags, each with a default
    file: File,
    /,
    *,
    input_flags: InputFlags = INPUT_FLAGS,
    needs_confirmation: Confirmation = False,
    declared: Annotated[str | None, INPUT] = None,
    chunk: Limit = None,
    pace_flags: PaceFlags = PACE_FLAGS,
    journal: Journal = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    check_groups: DryRun = False,
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
    chunk
        Accounts per request (default: the maximum of the platform).
    journal
        The journal (default: FILE.invite.journal; for standard input, a new file in the working directory).
    limit
        Send at most this many accounts now, as a trial: the first ones in the order of sending, a chunk of each group in
        turn. `rbim job resume` sends the rest.
    dry_run
        Only print what would be sent; needs no credentials and writes no journal. It warns of groups with more accounts
        than any group can hold.
    check_groups
        With --dry-run: ask the platform once for each group, and warn of those that are missing, full or too small.
    """
    from functools import partial

    from rbim.bulk.job import InviteJob
    from rbim.cli.jobs.begin import JobCommand, begin

    return begin(
        JobCommand(
            verb="invite",
            adds=True,
            check_groups=check_groups,
            make=partial(InviteJob, needs_confirmation=needs_confirmation, declared=declared),
            file=file,
            chunk=chunk,
            journal=journal,
            limit=limit,
            dry_run=dry_run,
            input_flags=input_flags,
            pace_flags=pace_flags,
            result_flags=result_flags,
        )
    )


def remove(  # noqa: PLR0913  # flags, each with a default
    file: File,
    /,
    *,
    input_flags: InputFlags = INPUT_FLAGS,
    chunk: Limit = None,
    pace_flags: PaceFlags = PACE_FLAGS,
    journal: Journal = None,
    limit: Limit = None,
    dry_run: DryRun = False,
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
    chunk
        Accounts per request (default: the maximum of the platform for an invitation).
    journal
        The journal (default: FILE.remove.journal; for standard input, a new file in the working directory).
    limit
        Send at most this many accounts now, as a trial: the first ones in the order of sending, a chunk of each group in
        turn. `rbim job resume` sends the rest.
    dry_run
        Only print what would be sent; needs no credentials and writes no journal.
    """
    from rbim.bulk.job import RemoveJob
    from rbim.cli.jobs.begin import JobCommand, begin

    return begin(
        JobCommand(
            verb="remove",
            check_groups=False,
            make=RemoveJob,
            file=file,
            chunk=chunk,
            journal=journal,
            limit=limit,
            dry_run=dry_run,
            asks_first=not yes,
            input_flags=input_flags,
            pace_flags=pace_flags,
            result_flags=result_flags,
        )
    )
