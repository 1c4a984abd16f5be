"""What the command line prints on standard error when something fails, and the exit code for it."""

from __future__ import annotations

import errno
import os
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

from rbim.cli.exit_codes import Exit
from rbim.cli.global_flags import current_flags
from rbim.cli.printable import printable, visible
from rbim.errors import AuthenticationError, InvalidRequest, Outcome, RbimError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HINTS", "complain", "fault", "leave_quietly", "report", "unusable"]


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


def report(error: RbimError, command: str, *, flags: Mapping[str, str] = _NO_FLAGS, safe: bool = False) -> Exit:
    """Say on standard error what went wrong with ``command`` and what to do about it; return the exit code.

    ``flags`` are what the command line calls the fields of errors; ``safe`` says that repeating changes nothing. Notes
    of the error (``add_note``) are said in place of the usual hint.
    """
    if isinstance(error, InvalidRequest):
        code, what, hint = Exit.USAGE, _in_flags(error, flags), f"See: {command} --help"
    else:
        code, what = BY_OUTCOME[error.outcome], str(error)
        refused = isinstance(error, AuthenticationError) and code is Exit.REFUSED
        hint = CREDENTIALS if refused else REPEATABLE if safe and code is Exit.UNKNOWN else HINTS.get(code, "")
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
    if error is not None and current_flags().debug:
        from traceback import format_exception

        lines = [visible(line) for line in "".join(format_exception(error)).splitlines()]
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


def leave_quietly() -> Exit:
    """Write no more to standard output, whose reader has left; return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.READER_LEFT
