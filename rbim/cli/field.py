r"""``--field PATH``: select values of a JSON document, with a small part of the language of ``jq``.

::

    path = "." | step, {step}
    step = ["."], "[]" | ["."], "[", index, "]" | ["."], '["', key, '"]' | ".", name

``.name`` and ``["any key"]`` take a value of an object, ``[0]`` and ``[-1]`` an entry of a list, and ``[]`` every entry.
``.`` is the whole document. The first point may be left out. A key is written as in JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from rbim._support.text import quoted_key
from rbim.cli.printable import json_line
from rbim.errors import InvalidRequest

__all__ = ["ANYTHING", "Step", "check", "parse", "select", "text_lines"]

Step = str | int | None
"""A key of an object, an index of a list, or None for every entry."""

ANYTHING = object()
"""In the shape of a document: a value of which nothing is known."""

FLAG = "--field"
_STEP = re.compile(
    r"""
    \.? \[ (?P<index> -?[0-9]{1,9} ) \]
    | \.? (?P<every> \[\] )
    | \.? \[ (?P<key> "(?: [^"\\] | \\. )*" ) \]
    | \. (?P<name> [^.\[\]"\s]+ )
    """,
    re.VERBOSE,
)
SHOWN = 40  # fields that an error names


def parse(text: str) -> tuple[Step, ...]:
    """Return the steps of a path. Raises InvalidRequest."""
    rest = text if text.startswith((".", "[")) else f".{text}"
    steps: list[Step] = []
    at = 1 if text == "." else 0
    while at < len(rest):
        found = _STEP.match(rest, at)
        if found is None:
            raise InvalidRequest(
                f'{FLAG}: {quoted_key(text)!r} is not a path: use .name, [0], [] or ["key"], such as .groups[].name',
                field=FLAG,
            )
        steps.append(_step(found))
        at = found.end()
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    if found["every"] is not None:
        return None
    if found["index"] is not None:
        return int(found["index"])
    try:
        return found["name"] or cast("str", json.loads(found["key"]))
    except ValueError:
        raise InvalidRequest(f"{FLAG}: {found['key']} is not a text as in JSON", field=FLAG) from None


def select(steps: tuple[Step, ...], document: Any, *, lenient: bool = False) -> list[Any]:  # JSON
    """Return the selected values. A missing entry of a list is None, and if ``lenient``, so is every missing value.

    Raises InvalidRequest that names the fields there are.
    """
    values: list[Any] = [document]
    for number, step in enumerate(steps):
        here = _spelled(steps[:number])
        values = [each for value in values for each in _taken(step, value, here, lenient=lenient)]
    return values


def check(steps: tuple[Step, ...], shape: Any) -> None:
    """Compare a path with the shape of a document: objects, lists with one entry that stands for all, None, and ANYTHING.

    Raises InvalidRequest that names the fields there are.
    """
    for number, step in enumerate(steps):
        if shape is ANYTHING:
            return
        taken = _taken(step, shape, _spelled(steps[:number]))
        shape = shape[0] if isinstance(step, int) else taken[0]


def _taken(step: Step, value: Any, here: str, *, lenient: bool = False) -> list[Any]:
    """Return what one step takes from a value. ``here`` is the path of the value."""
    if isinstance(step, str) and isinstance(value, dict) and step in value:
        return [value[step]]
    if not isinstance(step, str) and isinstance(value, list):
        entries = cast("Any", value)
        if step is None:
            return [*entries]
        return [entries[step] if -len(entries) <= step < len(entries) else None]
    if lenient:
        return [None]
    if isinstance(step, str) and isinstance(value, dict):
        raise _missing(step, here, cast("dict[str, Any]", value))
    raise _mismatch(step, value, here)


def _missing(step: str, here: str, value: dict[str, Any]) -> InvalidRequest:
    names = [_spelled((name,), here) for name in value]
    there = f"the fields are {', '.join(names[:SHOWN])}" if names else f"{here or 'the document'} is empty"
    return InvalidRequest(f"{FLAG}: there is no {_spelled((step,), here)}: {there}", field=FLAG)


def _mismatch(step: Step, value: Any, here: str) -> InvalidRequest:
    place = here or "the document"
    if isinstance(value, list):
        return InvalidRequest(
            f"{FLAG}: {place} is a list: use {here}[]{_spelled((step,))} for every entry, or {here}[0]{_spelled((step,))}",
            field=FLAG,
        )
    kind = "has no parts"
    if isinstance(value, dict):
        names = [*cast("dict[str, Any]", value)][:SHOWN]
        kind = f"is an object with {', '.join(_spelled((name,), here) for name in names)}"
    return InvalidRequest(f"{FLAG}: {place} {kind}, so there is no {_spelled((step,), here)}", field=FLAG)


def _spelled(steps: tuple[Step, ...], before: str = "") -> str:
    text = before
    for step in steps:
        if step is None:
            text += "[]"
        elif isinstance(step, int):
            text += f"[{step}]"
        else:
            name = f".{step}"
            text += name if _STEP.fullmatch(name) else f"[{json.dumps(step, ensure_ascii=False)}]"
    return text


def text_lines(values: list[Any], *, ascii_only: bool = False) -> list[str]:
    """Return selected values as lines: texts without quotes, an empty line for null, and each entry of a list on its own.

    A character that is not printable, such as a line end, is written as in JSON, so that one value is one line.
    """
    lines: list[str] = []
    for value in values:
        for entry in cast("Any", value) if isinstance(value, list) else [value]:
            if isinstance(entry, str):
                lines.append("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in entry))
            else:
                lines.append("" if entry is None else json_line(entry, ascii_only=ascii_only))
    return lines
