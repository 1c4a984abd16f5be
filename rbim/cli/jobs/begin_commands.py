"""``rbim invite`` and ``rbim remove``: a job from a file of rows. Heavy imports happen when they are called."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rbim.cli.confirm import Yes  # noqa: TC001  # cyclopts reads it
from rbim.cli.flag_types import Flag
from rbim.cli.jobs.flags import INPUT, InputFlags, PaceFlags, ResultFlags, StartFlags

__all__ = ["invite", "remove"]

File = Annotated[str, Parameter(allow_leading_hyphen=True)]
Confirmation = Annotated[Flag, Parameter(name=("--confirm", "--needs-confirmation")), INPUT]

INPUT_FLAGS, PACE_FLAGS, RESULT_FLAGS, START_FLAGS = InputFlags(), PaceFlags(), ResultFlags(), StartFlags()


def invite(  # noqa: PLR0913  # flags, each with a default
    file: File,
    /,
    *,
    input_flags: InputFlags = INPUT_FLAGS,
    needs_confirmation: Confirmation = False,
    declared: Annotated[str | None, INPUT] = None,
    pace_flags: PaceFlags = PACE_FLAGS,
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
    pace_flags: PaceFlags = PACE_FLAGS,
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
