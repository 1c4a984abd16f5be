"""Error messages of the command line on standard error, their exit codes, and the check for an extra."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from rbim._support.text import missing_extra, printable, visible
from rbim.cli.exit_codes import Exit
from rbim.cli.folding import fold_for
from rbim.cli.global_flags import current_flags
from rbim.cli.json_output import record_error
from rbim.errors import AuthenticationError, IntermediaryError, InvalidRequest, Outcome, RbimError, TimestampExpired

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "HINTS",
    "MissingExtra",
    "discard_output",
    "print_error",
    "print_note",
    "report_bug",
    "report_error",
    "report_os_error",
    "require",
]


DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a disk: standard output is open but cannot be written."""

BY_OUTCOME = {Outcome.REFUSED: Exit.REFUSED, Outcome.NOT_SENT: Exit.NOT_SENT, Outcome.UNKNOWN: Exit.UNKNOWN}
HINTS = {
    Exit.NOT_SENT: (
        "Nothing reached the platform: the command may be repeated. `rbim doctor` checks the address, the connection and "
        "the certificate."
    ),
    Exit.UNKNOWN: "The platform may have acted: check its state before repeating the command.",
}
REPEATABLE = "The command only reads: it may be repeated."
REPORTING = "Please report it where you got rbim from, with the output of the same command with --debug."
COMMAND = "rbim "  # a hint that begins with it is a command, which is not folded: it can be copied
CLOCK = "Check the clock of this machine, and the zone of the dialect (`rbim dialect`)."
BETWEEN = "Nothing was done: check the base URL and the proxy; `rbim doctor` shows the way that requests take."
_NO_FLAGS: Mapping[str, str] = MappingProxyType({})
CREDENTIALS = (
    "Compare RBIM_APP_ID and RBIM_APP_TOKEN with those of the application (not the account) in the console; "
    "`rbim config show` shows where they come from."
)


def report_error(error: RbimError, command: str, *, flags: Mapping[str, str] = _NO_FLAGS, safe: bool = False) -> Exit:
    """Print the error of ``command`` and the next step on standard error; return the exit code.

    ``flags`` maps fields to flags; ``safe`` means that repeating the command changes nothing. Notes of the error
    (``add_note``) replace the usual hint. The last line is the section of the documentation; for a wrong value only with
    ``--debug``.
    """
    if isinstance(error, InvalidRequest):
        name, colon, rest = error.message.partition(": ")
        named = name == error.field and name in flags  # the field's name at the start becomes the flag
        message = f"{flags[name]}{colon}{rest}" if named else error.message
        code, hint = Exit.USAGE, f"See: {command} --help"
    else:
        code, message = BY_OUTCOME[error.outcome], str(error)
        if isinstance(error, AuthenticationError) and code is Exit.REFUSED and not _is_unreadable(error):
            hint = CLOCK if isinstance(error, TimestampExpired) else CREDENTIALS
        elif isinstance(error, IntermediaryError) and code is Exit.REFUSED:
            hint = BETWEEN
        else:
            hint = REPEATABLE if safe and code is Exit.UNKNOWN else HINTS.get(code, "")
    shown = code is not Exit.USAGE or current_flags().debug  # the help of the command explains a wrong value
    hints = [*getattr(error, "__notes__", [hint])]
    if "surrogate" in message and sys.getfilesystemencoding() != "utf-8":
        hints = ["This terminal's locale is not UTF-8: set PYTHONUTF8=1, or a locale such as LC_ALL=C.UTF-8."]
    print_error(message, *hints, error=error, docs=error.docs if shown else "")
    return code


def _is_unreadable(error: AuthenticationError) -> bool:
    """Return whether an emulator refused the request before it looked at the signature."""
    from rbim.codes import MALFORMED

    return error.code == MALFORMED


def print_error(message: str, *hints: str, error: BaseException | None = None, docs: str = "") -> None:
    """Write one line with the message, the lines of each hint, and the place in the documentation to standard error.

    With ``--debug`` the traceback of ``error`` (default: the exception being handled) comes first. With ``--json`` the first
    error of a command that fails is also the document on standard output.
    """
    error = error or sys.exc_info()[1]
    record_error(printable(message), [visible(line) for hint in hints if hint for line in hint.split("\n")], error)
    _print(message, *hints, f"See: rbim help {docs}" if docs else "", error=error)


def print_note(message: str, *hints: str) -> None:
    """Write a message that is no error of the command, such as a warning, to standard error."""
    _print(message, *hints, error=sys.exc_info()[1])


def _print(message: str, *hints: str, error: BaseException | None) -> None:
    lines: list[str] = []
    if error is not None and current_flags().debug:
        from traceback import format_exception

        lines = [visible(line) for line in "".join(format_exception(error)).splitlines()]
    lines += [fold_for(sys.stderr, f"rbim: {printable(message)}")]
    told = [visible(line) for hint in hints if hint for line in hint.split("\n")]
    lines += [line if line.startswith(COMMAND) else fold_for(sys.stderr, line) for line in told]
    try:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:  # such as a full disk: the exit code must still be returned
        pass


def report_bug(error: BaseException) -> Exit:
    """Print that the error is a bug in rbim and how to report it; return the exit code."""
    print_error(f"a bug in rbim: {type(error).__name__}: {error}", REPORTING, error=error)
    return Exit.FAULT


def report_os_error(error: OSError) -> Exit:
    """Print which file cannot be used, or that the output cannot be written; return the exit code.

    Any other OSError is reported as a bug.
    """
    if error.filename is not None:
        print_error(f"{error.filename}: {error.strerror}", error=error)
        return Exit.USAGE
    if error.errno not in DISK:
        return report_bug(error)
    print_error(f"cannot write the output: {error.strerror}", error=error)
    return discard_output()  # Python must not write the rest again when it exits


def discard_output() -> Exit:
    """Discard everything still to be written to standard output; return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.READER_LEFT


class MissingExtra(Exception):
    """A package that a command needs is not installed; the message names the pip command."""


def require(extras: str, *modules: str) -> None:
    """Raise MissingExtra if a module cannot be imported; ``extras`` are the names for ``pip install "rbim[extras]"``."""
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise MissingExtra(missing_extra("this command", module, extras)) from None
