"""What is asked before something is taken away for good: at a terminal by a question, elsewhere by ``--yes``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from rbim.cli.errors import complain
from rbim.cli.printable import printable

if TYPE_CHECKING:
    from typing import IO

__all__ = ["AGREED", "Yes", "at_terminal", "confirmed"]

AGREED = frozenset({"y", "yes"})
"""Answers, in any case, that let it happen; every other one does not."""

HELP = "Do it without asking; needed where nobody can be asked."

Yes = Annotated[bool, Parameter(name="--yes", negative=(), show_default=False, help=HELP)]


def at_terminal() -> bool:
    """Tell whether there is somebody to ask."""
    return all(stream is not None and stream.isatty() for stream in cast("list[IO[str] | None]", [sys.stdin, sys.stderr]))


def confirmed(what: str, unasked: str) -> bool:
    """Ask whether ``what``, the words of an order, may happen; say that nothing was sent where it may not.

    ``unasked`` is the command that does it without asking.
    """
    if not at_terminal():
        complain(f"nothing was sent: this would {what}, for good", f"Where nobody can be asked it is {unasked}")
        return False
    sys.stderr.write(f"This will {printable(what)}, for good. Go on? [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D leaves the cursor where it is
        sys.stderr.write("\n")
    if answer.strip().lower() in AGREED:
        return True
    complain("not confirmed: nothing was sent")
    return False
