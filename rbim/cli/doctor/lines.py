"""A check as lines of text, folded at the width of the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rbim.cli.doctor.check import State
from rbim.cli.folding import fold, terminal_columns
from rbim.cli.output import console
from rbim.cli.printable import printable

if TYPE_CHECKING:
    from rbim.cli.doctor.check import Check

__all__ = ["print_check"]

STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red", State.SKIP: "dim"}
STATE, NAME = 6, 15  # columns
LEFT = " " * (STATE + NAME)


def print_check(check: Check) -> None:
    """Write a check to standard output at once."""
    from rich.text import Text

    columns = terminal_columns(sys.stdout)
    texts = [printable(check.text), *([f"-> {printable(check.advice)}"] if check.advice else [])]
    lines = "\n".join(text if columns is None else fold(text, columns - len(LEFT), "") for text in texts).split("\n")
    shown = Text().append(f"{check.state:{STATE}}", style=STYLES[check.state]).append(f"{check.name:{NAME}}", style="bold")
    console().print(shown.append(f"\n{LEFT}".join(lines)), soft_wrap=True)
    sys.stdout.flush()
