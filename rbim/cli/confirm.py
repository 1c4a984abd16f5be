"""The confirmation before something that cannot be undone: a question at a terminal, elsewhere ``--yes``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from rbim._support.text import printable
from rbim.cli.errors import print_error

if TYPE_CHECKING:
    from typing import IO

__all__ = ["Yes", "at_terminal", "confirmed"]


AGREED = frozenset({"y", "yes"})  # answers that confirm, in upper or lower case; any other answer refuses
HELP = "Skip the confirmation; required without a terminal."

Yes = Annotated[bool, Parameter(name="--yes", negative=(), show_default=False, help=HELP)]


def at_terminal() -> bool:
    """Return whether standard input and standard error are a terminal, so that a question can be asked."""
    return all(stream is not None and stream.isatty() for stream in cast("list[IO[str] | None]", [sys.stdin, sys.stderr]))


def confirmed(action: str, unasked: str, *, unchanged: str = "nothing was sent") -> bool:
    """Ask for a confirmation of ``action``, such as "permanently delete group g8", and return whether it was given.

    Without a terminal, or if it is refused, print that nothing was sent, or the text of ``unchanged``. ``unasked`` is the
    command with the flag that skips the question.
    """
    if not at_terminal():
        print_error(
            f"{unchanged}: this would {action}, and there is no terminal to confirm it",
            f"To skip the confirmation: {unasked}",
        )
        return False
    sys.stderr.write(f"This will {printable(action)}. Continue? [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D does not end the line
        sys.stderr.write("\n")
    if answer.strip().lower() in AGREED:
        return True
    print_error(f"not confirmed: {unchanged}")
    return False
