"""The output of answers: aligned text for people, one JSON document for programs. rich is imported when it draws."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import attrs

from rbim._support.json_values import json_values
from rbim._support.text import printable
from rbim.cli.errors import print_note
from rbim.cli.exit_codes import Exit
from rbim.cli.json_output import json_line
from rbim.operations.base import Answer
from rbim.operations.groups import Success

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["console", "exit_of", "print_rows", "show"]

UNFOLDED = 10_000  # characters in a line without a terminal, so that nothing is folded
FOLDED = 16  # characters to which a column of a table may be folded
EMPTY = {"-", "0"}  # not shown in a block


def console(*, stderr: bool = False) -> Console:
    """Return a console for standard output or error, as wide as the terminal; without one, lines are not folded."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else UNFOLDED, highlight=False)


def print_rows(
    rows: Sequence[Mapping[str, object]], *, numbers: Sequence[str] = (), whole: Sequence[str] = (), cut: str = ""
) -> None:
    """Print rows as a table; if the terminal is too narrow for it, as blocks of lines, one for each row.

    ``numbers`` are aligned right; they and the columns ``whole`` are never folded, others to no less than FOLDED columns.
    The column ``cut``, the last one, is cut with a mark to one line.
    """
    from rich.box import SIMPLE_HEAD
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    out = console()
    texts = [{printable(name): _text(value) for name, value in row.items()} for row in rows]
    names = list(dict.fromkeys(name for row in texts for name in row))  # of an answer, with its unknown fields
    widths = {name: max(Text(name).cell_len, *(row[name].cell_len for row in texts if name in row)) for name in names}
    least = {name: width if name in {*numbers, *whole} else min(width, FOLDED) for name, width in widths.items()}
    if sum(least.values()) + 2 * (len(names) - 1) > out.width:
        for row in texts:
            (_, title), *others = row.items()
            shown = [Text.assemble(f"{name}: ", value) for name, value in others if value.plain not in EMPTY]
            for line in (title, *(Padding(each, (0, 0, 0, 2), expand=False) for each in shown)):
                out.print(line, overflow="fold")
        return
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in names:
        right = name in numbers
        made.add_column(
            Text(name),
            justify="right" if right else "left",
            no_wrap=right or name in {*whole, cut},
            overflow="ellipsis" if name == cut else "fold",
            min_width=least[name],
        )
    for row in texts:
        made.add_row(*(row.get(name, _text(None)) for name in names))
    out.print(made)


def show(answer: object) -> None:
    """Print an answer as text: fields beside their values, then lists of rows as tables."""
    fields = _seen(answer)
    if not fields:
        sys.stdout.write("done\n")
        return
    from rich.table import Table
    from rich.text import Text

    out = console()
    rows = {name: value for name, value in fields.items() if _is_rows(value)}
    plain = {name: value for name, value in fields.items() if name not in rows}
    if plain:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in plain.items():
            grid.add_row(Text(printable(name), style="bold"), _text(value))
        out.print(grid)
    for name, value in rows.items():
        out.print(Text(printable(f"{name}: {len(value)}"), style="bold"))
        if value:
            print_rows([_seen(row) for row in value])


def exit_of(answer: object) -> Exit:
    """Return the exit code for an answer; if it leaves accounts unknown, say so on standard error."""
    unknown = cast("tuple[str, ...]", getattr(answer, "unknown", ()))
    if unknown:
        problem = (
            f"unknown: {len(unknown)} of the accounts may have been refused, because the answer does not say clearly which"
        )
    elif isinstance(answer, Success) and answer.failures:
        problem = f"unknown: the answer has the success code, and {', '.join(answer.failures)}"
    else:
        return Exit.DONE
    print_note(problem, "check the members of the group before you repeat it")
    return Exit.UNKNOWN


def _fields(value: object) -> dict[str, Any] | None:
    """Return the fields of an attrs object by name; None for anything else."""
    kind = type(value)
    return {a.name: getattr(value, a.name) for a in attrs.fields(kind)} if attrs.has(kind) else None


def _seen(answer: object) -> dict[str, Any]:
    """Return the fields to show: a raw text only if it could not be parsed."""
    fields = _fields(answer)
    if fields is None:
        return {"answer": answer}
    extra = fields.pop("extra", {})
    read = {f"{name}_text" for name, value in fields.items() if value is not None}
    return {name: value for name, value in fields.items() if name not in read} | dict(extra)


def _is_rows(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(row, Answer) for row in cast("Any", value))


def _text(value: object) -> Text:
    from rich.text import Text

    if isinstance(value, Enum):
        return Text(f"{value.name.lower()} ({value.value})")
    if isinstance(value, Text):
        return value
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, (Mapping, list, tuple)):
        return Text(json_line(json_values(cast("Any", value))))
    return Text(printable(str(value)))
