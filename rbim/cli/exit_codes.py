"""The exit codes of the command line, and what they mean."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Exit", "JobExit"]


class _Meaning(IntEnum):
    """Exit codes that say what they mean."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Make a code of its number and its meaning."""
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made


class Exit(_Meaning):
    """The exit codes of every ``rbim`` command. Jobs give some of them a meaning of their own: see JobExit."""

    DONE = 0, "done"
    REFUSED = 1, "refused by the platform"
    USAGE = 2, "wrong input or configuration, or not confirmed: nothing was sent"
    NOT_SENT = 3, "no answer, and the platform cannot have seen the request: repeating is safe"
    UNKNOWN = 5, "no usable answer, and the platform may have acted: look before repeating"
    FAULT = 70, "a fault of rbim"
    INTERRUPTED = 130, "ended by Ctrl-C"
    READER_LEFT = 141, "the output cannot be written, or nobody reads it any more"


class JobExit(_Meaning):
    """The exit codes of a job: ``rbim invite``, ``rbim remove``, ``rbim job resume`` and ``rbim job retry``.

    Where several apply, that is said first which stands first here.
    """

    FAULT = 70, "a fault of rbim"
    INTERRUPTED = 130, "ended early by Ctrl-C or SIGTERM"
    GAVE_UP = 4, "ended early: too many requests failed, no answer came, or the journal cannot be written"
    REFUSED = 1, "ended early: the platform refused the credentials"
    USAGE = 2, "wrong input or configuration, or not confirmed"
    UNKNOWN = 5, "it is not known of some accounts whether they were reached"
    INCOMPLETE = 3, "some accounts were refused or failed, or rows cannot be used"
    DONE = 0, "everything was done"
