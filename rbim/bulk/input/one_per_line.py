"""Input with one row in each line: JSON objects, or accounts as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rbim._support.json import NotJson, loads
from rbim.bulk.input.rows import BadRow, Row, bad_row, cleaned, column_key, parse_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rbim.bulk.input.format import Format
    from rbim.bulk.input.lines import Lines

__all__ = ["json_rows", "text_rows"]


def _rows(parts: Iterator[Lines], read: Callable[[str], Row | str]) -> Iterator[Row | BadRow]:
    for before, lines, faults in parts:
        for index, line in enumerate(lines):
            if faults and index in faults:
                yield BadRow(before + index + 1, faults[index].reason, faults[index].raw)
                continue
            text = cleaned(line)
            if not text:
                continue
            row = read(text)
            yield bad_row(before + index + 1, row, line) if isinstance(row, str) else row


def text_rows(parts: Iterator[Lines], file_format: Format, *, allow_damaged: bool) -> Iterator[Row | BadRow]:
    """Read one account per line: the text before the first tab."""
    group = file_format.group

    def read(line: str) -> Row | str:
        return parse_row(None, line.partition("\t")[0], None, group, allow_damaged=allow_damaged)

    return _rows(parts, read)


def json_rows(parts: Iterator[Lines], file_format: Format, *, allow_damaged: bool) -> Iterator[Row | BadRow]:
    """Read one JSON object per line. Keys match exactly, or else without regard to case."""
    keys = (file_format.group_column, file_format.account_column, file_format.user_name_column or "")
    default_group = file_format.group

    def read(line: str) -> Row | str:
        try:
            document: Any = loads(line.encode())
        except (NotJson, UnicodeError) as error:
            return f"invalid JSON: {error}"
        if not isinstance(document, dict):
            return "not a JSON object"
        fields = cast("dict[str, Any]", document)
        group, account, user_name = (_value(fields, key) for key in keys)
        row = parse_row(group, account, user_name, default_group, allow_damaged=allow_damaged)
        if account is None:
            return f"no {file_format.account_column!r} among {', '.join(map(repr, fields)) or 'no keys'}"
        if group is None and default_group is None:
            return f"no {file_format.group_column!r} among {', '.join(map(repr, fields))}"
        return row

    return _rows(parts, read)


def _value(fields: dict[str, Any], key: str) -> Any:
    if key in fields:
        return fields[key]
    name = column_key(key)
    return next((value for each, value in fields.items() if column_key(each) == name), None)
