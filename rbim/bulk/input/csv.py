"""CSV input: finds the header and the delimiter; a quote that is not closed costs one line."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, NamedTuple

from rbim.bulk.input.lines import MAX_LINE, Lines
from rbim.bulk.input.rows import BadRow, Row, bad_row, cleaned, column_key, parse_row
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["DELIMITERS", "Header", "HeaderOptions", "csv_rows", "find_header"]

DELIMITERS = ",;\t|"
"""Delimiters that are tried if none is given."""

MAX_ROW_LINES = 100
"""Lines of one row, at most; beyond them a quote was not closed."""

# Row's own constructor calls this and takes twice the time
_make_row: Callable[[type[Row], tuple[str, str, str | None]], Row] = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

_WINDOW = 256
"""Lines that are read again after a mistake: more than a row may have, but not many more."""

_UNCLOSED = "a quote is not closed"


class HeaderOptions(NamedTuple):
    """Requested columns (None: the default name, if there is one), the group given, and the delimiters to try."""

    group: str | None
    group_column: str | None
    account_column: str | None
    user_name_column: str | None
    delimiters: str


class Header(NamedTuple):
    """Position of the columns: ``width`` is their number, ``lines`` the number of lines of the header; indexes count from
    0.

    ``default_group``: the group of rows without one. ``names``: the column names as they are spelled; empty without a
    header.
    """

    delimiter: str
    lines: int
    width: int
    account: int
    group: int | None
    user_name: int | None
    default_group: str | None
    names: list[str]


def find_header(lines: list[str], options: HeaderOptions) -> Header | None:
    """Read the header at the beginning of the lines; return None if it does not end in them.

    The delimiter with most of the requested columns wins, then the one with most cells. A single column with another name
    is a list of accounts without a header, if the group is given and no column requested. Raises InvalidRequest if a column
    is missing.
    """
    names = [column_key(options.account_column or "account"), column_key(options.group_column or "group")]
    best: tuple[int, int] = (-1, -1)
    found: tuple[str, int, list[str]] | None = None
    for delimiter in options.delimiters:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            cells = [cleaned(cell) for cell in next(reader)]
        except csv.Error:
            continue
        score = len({column_key(cell) for cell in cells} & set(names)), len(cells)
        if score > best:
            best, found = score, (delimiter, reader.line_num, cells)
    if found is None:
        return None
    delimiter, count, cells = found
    unnamed = (
        options.account_column is options.group_column is options.user_name_column is None and options.group is not None
    )
    if unnamed and len(cells) == 1 and column_key(cells[0]) != names[0]:
        return Header(delimiter, 0, 1, 0, None, None, options.group, [])
    account = _column_index(cells, options.account_column, "account", needed=True)
    group = _column_index(cells, options.group_column, "group", needed=options.group is None)
    user_name = _column_index(cells, options.user_name_column, "user_name", needed=False)
    return Header(delimiter, count, len(cells), account or 0, group, user_name, options.group, cells)


def _column_index(cells: list[str], requested: str | None, default: str, *, needed: bool) -> int | None:
    name = column_key(requested or default)
    indexes = [index for index, cell in enumerate(cells) if column_key(cell) == name]
    if len(indexes) == 1:
        return indexes[0]
    if not indexes and not needed and requested is None:
        return None
    option = f"--{default.replace('_', '-')}-column" + (" or --group" if default == "group" else "")
    how_many = f"{len(indexes)} columns" if indexes else "no column"
    raise InvalidRequest(
        f"header: {how_many} {requested or default!r} among {', '.join(map(repr, cells))}: name the column with {option}",
        field=f"{default}_column",
    )


def _within_bounds(record: list[str]) -> bool:
    return len(record) <= MAX_ROW_LINES and sum(map(len, record)) <= MAX_LINE


def csv_rows(parts: Iterator[Lines], header: Header) -> Iterator[Row | BadRow]:
    """Read the rows after the header.

    A quoted cell may have several lines. If a quote is not closed, its line becomes a bad row and reading continues with
    the next line, so that the rows after it are not lost.
    """
    left = Lines(0, [], {})
    for part in parts:
        left = yield from _rows(left.followed_by(part), header, last=False)
    yield from _rows(left, header, last=True)


def _rows(part: Lines, header: Header, *, last: bool) -> Generator[Row | BadRow, None, Lines]:
    """Yield the rows of these lines; return the lines of a row that has not ended."""
    lines = part.lines
    _, _, width, account_at, group_at, user_name_at, default_group, _ = header
    seen, group = "", default_group or ""
    begin = 0  # index of the line where the present row begins
    while begin < len(lines):
        base = begin
        window = lines[base : base + _WINDOW]
        reader = csv.reader(window, delimiter=header.delimiter, strict=True)
        try:
            for cells in reader:
                end = base + reader.line_num
                if end - begin == 1 and len(cells) == width and not part.faults:  # most rows end here
                    account = cells[account_at].strip()
                    if group_at is not None and cells[group_at] != seen:
                        seen = cells[group_at]
                        group = _plain_group(seen, default_group)
                    user_name = None if user_name_at is None else cells[user_name_at].strip() or None
                    if account and group and account.isprintable() and (user_name is None or user_name.isprintable()):
                        begin = end
                        yield _make_row(Row, (group, account, user_name))
                        continue
                if end - begin > 1 and not _within_bounds(lines[begin:end]):
                    yield bad_row(part.before + begin + 1, _UNCLOSED, lines[begin])
                    begin += 1
                    break
                rows = _parse_record(part, begin, end, cells, header)
                begin = end
                yield from rows
        except csv.Error as error:
            end = base + reader.line_num
            if end == base + len(window) and not (last and end == len(lines)) and _within_bounds(lines[begin:end]):
                if end == len(lines):
                    break  # the row may continue in the next part
                continue  # it may continue beyond the window; the next window begins with it
            unclosed = end - begin > 1 or "unexpected end" in str(error)
            yield bad_row(part.before + begin + 1, _UNCLOSED if unclosed else f"invalid CSV: {error}", lines[begin])
            begin += 1
    return part.skipping(begin)


def _plain_group(cell: str, default_group: str | None) -> str:
    """Return the group of a cell, or an empty string if it needs a full check."""
    group = cell.strip()
    return group if group.isprintable() and default_group in {None, group} else ""


def _parse_record(part: Lines, begin: int, end: int, cells: list[str], header: Header) -> list[Row | BadRow]:
    """Return the row of the lines from ``begin`` to ``end``: one row, one bad row, or none if they are blank."""
    line = part.before + begin + 1
    fault = next((part.faults[index] for index in range(begin, end) if index in part.faults), None)
    if fault is not None:
        return [BadRow(line, *fault)]
    text = "".join(part.lines[begin:end])
    if not cleaned(text):
        return []
    if len(cells) != header.width:
        return [bad_row(line, f"{len(cells)} cells, but the header has {header.width}", text)]
    group = None if header.group is None else cells[header.group]
    user_name = None if header.user_name is None else cells[header.user_name]
    row = parse_row(group, cells[header.account], user_name, header.default_group)
    return [bad_row(line, row, text) if isinstance(row, str) else row]
