"""The layout of a command's help: the same sections as `rbim --help`, and examples. rich is imported to draw it."""

from __future__ import annotations

import re
from itertools import takewhile
from textwrap import indent
from typing import TYPE_CHECKING, Any

from rbim.cli.help.examples import examples_of, folded

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

__all__ = ["HelpPage"]

INDENT = "  "
WIDEST = 100  # characters in a line, as in `rbim --help`
NAMES = 30  # characters at most in the column of names, unless one word is longer
SPELLED = {"Parameters": "Flags", "[OPTIONS]": "[FLAGS]"}
POSITIONAL = {
    "completion": "[SHELL]",
    "callback send": "[MSG-TYPE]",
}
"""Optional positional arguments by command; for every other command, a file with fields."""

COMMAND = re.compile("[a-z][a-z-]*")


class HelpPage:
    """A help formatter for cyclopts: plain sections, with examples below the last."""

    def __init__(self) -> None:
        self._command = self._after = ""
        self._has_flags = False

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:  # noqa: ARG002  # cyclopts names them
        """Write the usage line, and remember the command of this page."""
        from rich.text import Text

        words = str(usage).removeprefix("Usage: ").split()
        self._command, self._after = " ".join(takewhile(COMMAND.fullmatch, words[1:])), ""
        self._has_flags = "[OPTIONS]" in words
        line = " ".join(SPELLED.get(word, word) for word in words)
        line = line.replace("[ARGS]", POSITIONAL.get(self._command, "[FILE]")).replace("[ARGS...]", "[NUMBERS...]")
        console.print(Text(f"Usage: {line}", style="bold"), width=_width(console))

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:  # noqa: ARG002  # cyclopts names them
        """Write the description of the command."""
        console.print()
        console.print(description, width=_width(console))  # cyclopts writes an empty line after it

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:  # noqa: ARG002  # cyclopts names them
        """Write one section."""
        if not panel.entries:
            return
        from cyclopts.help.specs import DescriptionRenderer
        from rich.table import Table
        from rich.text import Text

        title = str(panel.title)
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(max_width=NAMES, overflow="fold")
        grid.add_column(overflow="fold")
        for entry in sorted(panel.entries, key=lambda entry: panel.format == "parameter" and not entry.required):
            grid.add_row(Text(f"{INDENT}{_label(entry)}", style="bold"), DescriptionRenderer()(entry))
        console.print(Text(f"{self._after}{SPELLED.get(title, title)}:", style="bold"))
        self._after = "\n"
        console.print(grid, width=_width(console))
        if title != "Arguments" and (title != "Commands" or not self._has_flags):  # what comes after them is the last
            self._print_examples(console)

    def _print_examples(self, console: Console) -> None:
        from rich.text import Text

        lines = examples_of(self._command)
        if lines:
            console.print()
            console.print(Text("Examples:", style="bold"))
        for line in lines:
            shown = indent(folded(line, _width(console) - len(INDENT)), INDENT)
            console.print(Text(shown), soft_wrap=True)  # not folded, so that it can be copied


def _label(entry: HelpEntry) -> str:
    """Return the names of an entry: `GROUP-ID`, `--name STR`, `--[no-]isrecord`."""
    positive = [*entry.positive_names, *entry.positive_shorts]
    if entry.negative_names and entry.negative_names[0] == f"--no-{entry.positive_names[0][2:]}":
        return f"--[no-]{entry.positive_names[0][2:]}"
    if entry.positional_label:
        return ", ".join([entry.positional_label, *positive])
    return f"{', '.join(positive)}{f' {entry.metavar}' if entry.metavar else ''}"


def _width(console: Console) -> int:
    return min(console.width, WIDEST)
