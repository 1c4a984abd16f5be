"""``rbim invite`` and ``rbim remove``: a job from a file of rows. Heavy imports wait."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import Annotated

from cyclopts import Parameter

from rbim.cli.confirm import Yes  # noqa: TC001  # cyclopts reads it
from rbim.cli.jobs.flags import Flag, InputFlags, OnUnknown, OutputFlags, PaceFlags, ResultFlags

__all__ = ["invite", "remove"]

File = Annotated[str, Parameter(allow_leading_hyphen=True)]
Confirmation = Annotated[bool, Parameter(name=("--confirm", "--needs-confirmation"), negative=(), show_default=False)]

READING, PACING, SHOWING, LEAVING = InputFlags(), PaceFlags(), OutputFlags(), ResultFlags()


def invite(  # noqa: PLR0913  # flags, each with a default
    file: File,
    /,
    *,
    reading: InputFlags = READING,
    needs_confirmation: Confirmation = False,
    declared: str | None = None,
    user_name: str | None = None,
    chunk: int | None = None,
    pacing: PaceFlags = PACING,
    journal: Path | None = None,
    on_unknown: OnUnknown = "auto",
    dry_run: Flag = False,
    showing: OutputFlags = SHOWING,
    leaving: ResultFlags = LEAVING,
) -> int:
    """Invite any number of accounts into any number of groups.

    All rows go into a journal first. Then requests are sent, each recorded before and after, so that the job can be resumed
    whatever happens: `rbim job resume JOURNAL`, or the same command again. Ctrl-C lets requests in flight end; once more,
    and they are abandoned.

    Parameters
    ----------
    file
        CSV with the columns group and account (user_name, too, where rows have acting accounts of their own), JSON lines
        with these keys, or a text with an account a line (--group). `-` reads standard input.
    needs_confirmation
        Each invitee must agree.
    declared
        The reason of the invitation, at most 50 characters.
    user_name
        The account that invites where a row names none: RBIM_USER_NAME unless told.
    chunk
        Accounts in one request: as many as the platform takes unless told.
    journal
        FILE.invite.journal unless told; for standard input, a file in the working directory.
    on_unknown
        What an earlier run has left open is sent again, or reported as unknown; auto sends again what is younger than an
        hour and needs no confirmation.
    dry_run
        Only say what would be sent. It needs no credentials, and makes no journal.
    """
    from functools import partial

    from rbim.bulk.job import InviteJob
    from rbim.cli.jobs.begin import JobCommand, begin

    return begin(
        JobCommand(
            verb="invite",
            make=partial(InviteJob, needs_confirmation=needs_confirmation, declared=declared),
            file=file,
            user_name=user_name,
            chunk=chunk,
            journal=journal,
            on_unknown=on_unknown,
            dry_run=dry_run,
            reading=reading,
            pacing=pacing,
            showing=showing,
            leaving=leaving,
        )
    )


def remove(  # noqa: PLR0913  # flags, each with a default
    file: File,
    /,
    *,
    reading: InputFlags = READING,
    user_name: str | None = None,
    chunk: int | None = None,
    pacing: PaceFlags = PACING,
    journal: Path | None = None,
    on_unknown: OnUnknown = "auto",
    dry_run: Flag = False,
    yes: Yes = False,
    showing: OutputFlags = SHOWING,
    leaving: ResultFlags = LEAVING,
) -> int:
    """Remove any number of members from any number of groups.

    It works as `rbim invite` does, with a journal of its own. Before anything is removed it asks; where nobody can be asked,
    it needs --yes.

    Parameters
    ----------
    file
        CSV with the columns group and account (user_name, too, where rows have acting accounts of their own), JSON lines
        with these keys, or a text with an account a line (--group). `-` reads standard input.
    user_name
        The account that removes where a row names none: RBIM_USER_NAME unless told.
    chunk
        Accounts in one request: as many as the platform takes in an invitation unless told.
    journal
        FILE.remove.journal unless told; for standard input, a file in the working directory.
    on_unknown
        What an earlier run has left open is sent again, or reported as unknown, which auto does as well: somebody may have
        been added again meanwhile.
    dry_run
        Only say what would be sent. It needs no credentials, and makes no journal.
    """
    from rbim.bulk.job import RemoveJob
    from rbim.cli.jobs.begin import JobCommand, begin

    return begin(
        JobCommand(
            verb="remove",
            make=RemoveJob,
            file=file,
            user_name=user_name,
            chunk=chunk,
            journal=journal,
            on_unknown=on_unknown,
            dry_run=dry_run,
            asks=not yes,
            reading=reading,
            pacing=pacing,
            showing=showing,
            leaving=leaving,
        )
    )
