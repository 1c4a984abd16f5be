"""Rows that are one line each: JSON objects, and accounts as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rbim._support.json import NotJson, loads
from rbim.bulk.input.rows import BadRow, Row, bad_row, checked, cleaned, same_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rbim.bulk.input.format import Format
    from rbim.bulk.input.lines import Lines

__all__ = ["json_rows", "text_rows"]


def _rows(parts: Iterator[Lines], read: Callable[[str], Row | str]) -> Iterator[Row | BadRow]:
    for before, lines, faults in parts:
        for place, line in enumerate(lines):
            if faults and place in faults:
                yield BadRow(before + place + 1, *faults[place])
                continue
            text = cleaned(line)
            if not text:
                continue
            row = read(text)
            yield bad_row(before + place + 1, row, line) if isinstance(row, str) else row


def text_rows(parts: Iterator[Lines], shape: Format) -> Iterator[Row | BadRow]:
    """Read one account a line: what stands before the first tab."""
    group = shape.group

    def read(line: str) -> Row | str:
        return checked(None, line.partition("\t")[0], None, group)

    return _rows(parts, read)


def json_rows(parts: Iterator[Lines], shape: Format) -> Iterator[Row | BadRow]:
    """Read one JSON object a line. Keys are found as they are spelled, or else whatever their case is."""
    keys = (shape.group_column, shape.account_column, shape.user_name_column or "")
    given = shape.group

    def read(line: str) -> Row | str:
        try:
            document: Any = loads(line.encode())
        except (NotJson, UnicodeError) as error:
            return f"no JSON: {error}"
        if not isinstance(document, dict):
            return "no JSON object"
        fields = cast("dict[str, Any]", document)
        group, account, user_name = (_value(fields, key) for key in keys)
        row = checked(group, account, user_name, given)
        if account is None:
            return f"no {shape.account_column!r} among {', '.join(map(repr, fields)) or 'no keys'}"
        if group is None and given is None:
            return f"no {shape.group_column!r} among {', '.join(map(repr, fields))}"
        return row

    return _rows(parts, read)


def _value(fields: dict[str, Any], key: str) -> Any:
    if key in fields:
        return fields[key]
    name = same_name(key)
    return next((value for each, value in fields.items() if same_name(each) == name), None)
