"""How answers are shown: aligned for people, one JSON document for pipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date, time
from enum import Enum
from typing import Any, cast

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rbim.cli.exits import printable
from rbim.operation import Answer

__all__ = ["console", "document_of", "show", "show_json", "table"]

ENDLESS = 10_000  # characters in a line where no terminal is: nothing is folded


def console(*, stderr: bool = False) -> Console:
    """Return a console for standard output or error, as wide as the terminal or as any line."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else ENDLESS, highlight=False)


def table(*headings: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table; headings that are also in ``numbers`` are aligned to the right. Long texts are folded."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        right = heading in numbers
        made.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return made


def show_json(document: Any) -> None:  # JSON
    """Write one line of JSON to standard output; characters that it cannot carry are escaped."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    sys.stdout.write(json.dumps(document, ensure_ascii=not unicode) + "\n")


def document_of(value: Any) -> Any:  # an answer or a field of one in, JSON out
    """Return an answer as JSON: its fields by name, enums as their value, dates in ISO format, ``extra`` where there is any."""
    if attrs.has(type(value)):
        pairs = ((a.name, getattr(value, a.name)) for a in attrs.fields(type(value)))
        return {name: document_of(each) for name, each in pairs if name != "extra" or each}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): document_of(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [document_of(each) for each in cast("Sequence[Any]", value)]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def show(answer: Any) -> None:  # an answer
    """Show an answer to a person: fields beside their values, rows of fields as tables below them."""
    out = console()
    fields = _fields(answer)
    rows = {name: value for name, value in fields.items() if _is_rows(value)}
    plain = {name: value for name, value in fields.items() if name not in rows}
    if plain:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in plain.items():
            grid.add_row(Text(name, style="bold"), _text(value))
        out.print(grid)
    for name, value in rows.items():
        out.print(Text(f"{name}: {len(value)}", style="bold"))
        if value:
            out.print(_rows(value))
    if not fields:
        out.print("done")


def _fields(answer: Any) -> dict[str, Any]:
    """Return what is to be seen of an answer: raw texts only where nothing could be read from them."""
    if not attrs.has(type(answer)):
        return {"answer": answer}
    values = {a.name: getattr(answer, a.name) for a in attrs.fields(type(answer))}
    extra = values.pop("extra", {})
    read = {name for name, value in values.items() if value is not None and f"{name}_text" in values}
    return {name: value for name, value in values.items() if name.removesuffix("_text") not in read - {name}} | dict(extra)


def _is_rows(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(row, Answer) for row in cast("tuple[Any, ...]", value))


def _rows(rows: tuple[Answer, ...]) -> Table:
    fields = [_fields(row) for row in rows]
    names = dict.fromkeys(name for row in fields for name in row)
    made = table(*names)
    for row in fields:
        made.add_row(*(_text(row.get(name)) for name in names))
    return made


def _text(value: Any) -> Text:
    if isinstance(value, Enum):
        return Text(f"{value.name.lower()} ({value.value})")
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, (Mapping, list, tuple)):
        return Text(printable(json.dumps(document_of(value), ensure_ascii=False)))
    return Text(printable(str(value)))
