"""The exit codes of the command line, and their meanings."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

__all__ = ["JOB_EXITS", "Exit", "JobExit"]


class _Meaning(IntEnum):
    """An exit code with its meaning."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Make a code from its number and its meaning."""
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made


class Exit(_Meaning):
    """The exit codes of every ``rbim`` command; for jobs some codes have other meanings, see JobExit."""

    DONE = 0, "done"
    REFUSED = 1, "refused by the platform"
    USAGE = 2, "invalid input or configuration, or not confirmed: nothing was sent"
    NOT_SENT = 3, "no response, and the request cannot have reached the platform: repeating is safe"
    UNKNOWN = 5, "no usable response, and the platform may have acted: check before repeating"
    FAULT = 70, "a bug in rbim"
    INTERRUPTED = 130, "stopped by Ctrl-C"
    READER_LEFT = 141, "the output cannot be written, or its reader has closed it"


class JobExit(_Meaning):
    """The exit codes of a job: ``rbim invite``, ``rbim remove``, ``rbim job resume`` and ``rbim job retry``.

    If several apply, the first in this order is returned.
    """

    FAULT = 70, "a bug in rbim"
    INTERRUPTED = 130, "stopped early by Ctrl-C, SIGTERM or a closed terminal"
    GAVE_UP = 4, "stopped early: too many failures, no connection, response or progress, or the journal cannot be written"
    REFUSED = 1, "stopped early: the platform refused the credentials"
    USAGE = 2, "invalid input or configuration, or not confirmed"
    UNKNOWN = 5, "the outcome of some accounts is unknown"
    INCOMPLETE = 3, "some accounts were refused or failed, or some rows are invalid"
    DONE = 0, "everything was done, or what --limit allows"


JOB_EXITS = f"Exit codes: {'; '.join(f'{int(code)} {code.meaning}' for code in sorted(JobExit))}."
"""The sentence about them in the help of the commands for jobs."""
