"""What the command line's exit codes say, and what it prints beside them."""

from __future__ import annotations

import errno
import os
import sys
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from rbim.cli.everywhere import told
from rbim.errors import AuthenticationError, InvalidRequest, Outcome, RbimError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

__all__ = ["HINTS", "Exit", "JobExit", "complain", "fault", "leave_quietly", "printable", "report", "unusable"]


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


DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Why an output that was there cannot be written."""

BY_OUTCOME = {Outcome.REFUSED: Exit.REFUSED, Outcome.NOT_SENT: Exit.NOT_SENT, Outcome.UNKNOWN: Exit.UNKNOWN}
HINTS = {
    Exit.NOT_SENT: "Nothing reached the platform: the command may be repeated.",
    Exit.UNKNOWN: "The platform may have acted: look before repeating the command.",
}
REPEATABLE = "The command only reads: it may be repeated."
REPORTING = "With --debug the same command shows where: please report it with that, where you have rbim from."
_NO_FLAGS: Mapping[str, str] = MappingProxyType({})
CREDENTIALS = (
    "Compare RBIM_APP_ID and RBIM_APP_TOKEN with the application's (not the account's) in the console; `rbim config show` "
    "says where they come from."
)


def report(error: RbimError, command: str, *, flags: Mapping[str, str] = _NO_FLAGS, freely: bool = False) -> Exit:
    """Say on standard error what went wrong with ``command`` and what to do about it; return the exit code.

    ``flags`` are what the command line calls the fields of errors; ``freely`` says that repeating changes nothing. Notes
    of the error (``add_note``) are said in place of the usual hint.
    """
    if isinstance(error, InvalidRequest):
        code, what, hint = Exit.USAGE, _in_flags(error, flags), f"See: {command} --help"
    else:
        code, what = BY_OUTCOME[error.outcome], str(error)
        refused = isinstance(error, AuthenticationError) and code is Exit.REFUSED
        hint = CREDENTIALS if refused else REPEATABLE if freely and code is Exit.UNKNOWN else HINTS.get(code, "")
    complain(what, *getattr(error, "__notes__", [hint]), error=error)
    return code


def _in_flags(error: InvalidRequest, flags: Mapping[str, str]) -> str:
    """Return the message, which begins with the field's name where it is about one field, with its flag there."""
    name, colon, rest = error.message.partition(": ")
    return f"{flags[name]}{colon}{rest}" if name == error.field and name in flags else error.message


def complain(what: str, *hints: str, error: BaseException | None = None) -> None:
    """Write one line of complaint, and lines of help, to standard error; before them, with ``--debug``, the traceback.

    That is the traceback of ``error``, or of what is being handled.
    """
    error = error or sys.exc_info()[1]
    lines: list[str] = []
    if error is not None and told().debug:
        from traceback import format_exception

        lines = [_shown(line) for line in "".join(format_exception(error)).splitlines()]
    lines += [f"rbim: {printable(what)}", *filter(None, hints)]
    try:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:  # a full disk, say: the exit code is still to tell what happened
        pass


def fault(error: BaseException) -> Exit:
    """Say that an error is nobody's but ours, and what to do about it; return the exit code."""
    complain(f"a fault of rbim: {type(error).__name__}: {error}", REPORTING, error=error)
    return Exit.FAULT


def unusable(error: OSError) -> Exit:
    """Say which file, or that the output, cannot be used; return the exit code. What else it may be is a fault."""
    if error.filename is not None:
        complain(f"{error.filename}: {error.strerror}", error=error)
        return Exit.USAGE
    if error.errno not in DISK:
        return fault(error)
    complain(f"the output cannot be written: {error.strerror}", error=error)
    return leave_quietly()  # what could not be written must not be tried again at the end


def printable(text: str) -> str:
    """Return the text as one line that does nothing to a terminal but show."""
    return _shown(" ".join(text.split()))


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def leave_quietly() -> Exit:
    """Write no more to standard output, whose reader has left; return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.READER_LEFT
