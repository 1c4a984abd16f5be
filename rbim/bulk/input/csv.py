"""CSV input: finds the header and the delimiter; a quote that is not closed costs one line."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Literal, NamedTuple

from rbim.bulk.input.lines import MAX_LINE, Lines
from rbim.bulk.input.rows import BadRow, Columns, Row, bad_row, cleaned, column_key, may_be_damaged, parse_row
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from rbim.bulk.input.rows import Piece

__all__ = [
    "DELIMITERS",
    "USUAL",
    "Header",
    "HeaderOptions",
    "allow_long_cells",
    "column_index",
    "csv_rows",
    "find_header",
    "named_columns",
]

Role = Literal["group", "account", "user_name"]

_GROUP = ("群", "群组", "群号", "群号码", "群id", "群编号", "群账号", "群帐号", "群组号", "群组id", "群组编号")
_ACCOUNT = ("账号", "帐号", "账户", "帐户", "用户账号", "用户帐号", "成员账号", "成员帐号", "会员账号", "会员帐号")
_USER = ("用户", "用户号", "用户id", "成员", "手机", "手机号", "手机号码", "电话", "电话号码", "联系电话")
_ACTING = ("操作账号", "操作帐号", "执行账号", "执行帐号", "邀请人账号", "邀请人帐号")

USUAL = {"group": frozenset(_GROUP), "account": frozenset(_ACCOUNT + _USER), "user_name": frozenset(_ACTING)}
"""Chinese column names that are found without a flag, besides ``group``, ``account`` and ``user_name``."""


def named_columns(names: Sequence[str], requested: str | None, role: Role) -> list[int]:
    """Return the indexes of the columns that may have a role.

    They have the requested name; without one the default name, or else a usual one. Case, and space around a name, do not
    count; in a usual name no space, hyphen or underscore does.
    """
    found = [index for index, name in enumerate(names) if column_key(name) == column_key(requested or role)]
    if found or requested is not None:
        return found
    return [index for index, name in enumerate(names) if _usual_key(name) in USUAL[role]]


def _usual_key(name: str) -> str:
    return "".join(column_key(name).replace("_", " ").replace("-", " ").split())


def column_index(names: Sequence[str], requested: str | None, role: Role, *, needed: bool) -> int | None:
    """Return the index of the column for a role, None if there is none and none is needed. Raises InvalidRequest."""
    indexes = named_columns(names, requested, role)
    if len(indexes) == 1:
        return indexes[0]
    if not indexes and not needed and requested is None:
        return None
    flag = f"--{role.replace('_', '-')}-column"
    alone = " or --group" if role == "group" and not indexes else ""
    which = f"no column {requested or role!r}"
    if indexes:
        which = f"{len(indexes)} columns {requested or role!r}, namely {', '.join(repr(names[index]) for index in indexes)},"
    advice = f"name the column with {flag}{alone}"
    if len({column_key(names[index]) for index in indexes}) == 1:
        which, advice = f"{len(indexes)} columns have the name {names[indexes[0]]!r}", "rename or remove one of them"
    raise InvalidRequest(f"header: {which} among {', '.join(map(repr, names))}: {advice}", field=f"{role}_column")


DELIMITERS = ",;\t|"
"""Delimiters that are tried if none is given."""

MAX_ROW_LINES = 100
"""Lines of one row, at most; beyond them a quote was not closed."""

# Row's own constructor calls this and takes twice the time
_make_row: Callable[[type[Row], tuple[str, str, str | None]], Row] = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

_WINDOW = 256
"""Lines that are read again after a mistake: more than a row may have, but not many more."""

_UNCLOSED = "a quote is not closed"
_UNEXPECTED_END = "unexpected end"  # in the csv module's error for such a quote


class HeaderOptions(NamedTuple):
    """Requested columns (None: one of the default names), the group given, the delimiters to try, damaged cells allowed."""

    group: str | None
    group_column: str | None
    account_column: str | None
    user_name_column: str | None
    delimiters: str
    allow_damaged: bool


class Header(NamedTuple):
    """Position of the columns: ``width`` is their number, ``lines`` the number of lines of the header; indexes count from
    0.

    ``default_group``: the group of rows without one. ``names``: the column names as they are spelled; empty without a
    header. ``allow_damaged``: whether cells that look damaged are accepted.
    """

    delimiter: str
    lines: int
    width: int
    account: int
    group: int | None
    user_name: int | None
    default_group: str | None
    names: list[str]
    allow_damaged: bool


def find_header(lines: list[str], options: HeaderOptions, *, last: bool) -> Header | None:
    """Read the header at the beginning of the lines; return None if it does not end in them.

    Unless these lines are the ``last``, it is also None if it could have another delimiter and end later: a pipe that
    delivers the first line alone must not decide that.
    The delimiter with most of the requested columns wins, then the one with most cells. A single column with another name
    is a list of accounts without a header, if the group is given and no column requested. Raises InvalidRequest if a column
    is missing.
    """
    best: tuple[int, int] = (-1, -1)
    found: tuple[str, int, list[str]] | None = None
    for delimiter in options.delimiters:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            cells = [cleaned(cell) for cell in next(reader)]
        except csv.Error as error:
            if not last and _UNEXPECTED_END in str(error):
                return None
            continue
        named = (
            named_columns(cells, options.account_column, "account"),
            named_columns(cells, options.group_column, "group"),
        )
        score = sum(map(bool, named)), len(cells)
        if score > best:
            best, found = score, (delimiter, reader.line_num, cells)
    if found is None:
        return None
    delimiter, count, cells = found
    unnamed = (
        options.account_column is options.group_column is options.user_name_column is None and options.group is not None
    )
    if unnamed and len(cells) == 1 and not named_columns(cells, None, "account"):
        return Header(delimiter, 0, 1, 0, None, None, options.group, [], options.allow_damaged)
    account = column_index(cells, options.account_column, "account", needed=True)
    group = column_index(cells, options.group_column, "group", needed=options.group is None)
    user_name = column_index(cells, options.user_name_column, "user_name", needed=False)
    return Header(delimiter, count, len(cells), account or 0, group, user_name, options.group, cells, options.allow_damaged)


def allow_long_cells() -> None:
    """Let the csv module read cells as long as a line may be. Its limit is the process's: it is raised, never lowered."""
    if csv.field_size_limit() < MAX_LINE:
        csv.field_size_limit(MAX_LINE)


def _within_bounds(record: list[str]) -> bool:
    return len(record) <= MAX_ROW_LINES and sum(map(len, record)) <= MAX_LINE


def csv_rows(parts: Iterator[Lines], header: Header) -> Iterator[Piece]:
    """Read the rows after the header, many at a time; single rows must be read before the next ones are.

    A quoted cell may have several lines. If a quote is not closed, its line becomes a bad row and reading continues with
    the next line, so that the rows after it are not lost.
    """
    left = Lines(0, [], {})

    def rows(part: Lines, *, last: bool) -> Iterator[Row | BadRow]:
        nonlocal left
        left = yield from _rows(part, header, last=last)

    for each in parts:
        part = left.followed_by(each)
        plain = _plain_columns(part, header)
        if plain is not None:
            left = part.skipping(len(part.lines))
        yield rows(part, last=False) if plain is None else plain
    yield rows(left, last=True)


def _rows(part: Lines, header: Header, *, last: bool) -> Generator[Row | BadRow, None, Lines]:
    """Yield the rows of these lines; return the lines of a row that has not ended."""
    lines = part.lines
    width, account_at, group_at, user_name_at, default_group = header[2:7]
    plain = not part.faults and (header.allow_damaged or not may_be_damaged(lines))
    seen, group = "", default_group or ""
    begin = 0  # index of the line where the present row begins
    while begin < len(lines):
        base = begin
        window = lines[base : base + _WINDOW]
        reader = csv.reader(window, delimiter=header.delimiter, strict=True)
        try:
            for cells in reader:
                end = base + reader.line_num
                if plain and end - begin == 1 and len(cells) == width:  # most rows end here
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
            unclosed = end - begin > 1 or _UNEXPECTED_END in str(error)
            yield bad_row(part.before + begin + 1, _UNCLOSED if unclosed else f"invalid CSV: {error}", lines[begin])
            begin += 1
    return part.skipping(begin)


def _plain_columns(part: Lines, header: Header) -> Columns | None:
    """Return the rows of lines that need no further look, all at once; None if any of them does.

    Such lines have no quotes, blanks or characters that cannot be printed, as many cells as the header, and no empty account
    or group.
    """
    text = "".join(part.lines).replace("\r\n", "\n")
    if part.faults or '"' in text or " " in text or not text.replace("\n", "").isprintable():
        return None
    if not text.endswith("\n"):
        text += "\n"
    if not header.allow_damaged and may_be_damaged(part.lines):
        return None
    width, count = header.width, text.count("\n")
    cells = text.replace("\n", f"{header.delimiter}\n{header.delimiter}").split(header.delimiter)
    if len(cells) != count * (width + 1) + 1 or cells[width :: width + 1].count("\n") != count:
        return None  # a line has more cells than the header, or fewer
    cells.pop()
    accounts: list[str | BadRow] = [*cells[header.account :: width + 1]]
    groups = [] if header.group is None else cells[header.group :: width + 1]
    if not all(accounts) or not all(groups):
        return None
    if header.default_group is not None:
        if groups and groups.count(header.default_group) != count:
            return None
        groups = [header.default_group] * count
    if header.user_name is None:
        return Columns(groups, accounts, [None] * count)
    return Columns(groups, accounts, [cell or None for cell in cells[header.user_name :: width + 1]])


def _plain_group(cell: str, default_group: str | None) -> str:
    """Return the group of a cell, or an empty string if it needs a full check."""
    group = cell.strip()
    return group if group.isprintable() and default_group in {None, group} else ""


def _parse_record(part: Lines, begin: int, end: int, cells: list[str], header: Header) -> list[Row | BadRow]:
    """Return the row of the lines from ``begin`` to ``end``: one row, one bad row, or none if they are blank."""
    line = part.before + begin + 1
    fault = next((part.faults[index] for index in range(begin, end) if index in part.faults), None)
    if fault is not None:
        return [BadRow(line, fault.reason, fault.raw)]
    text = "".join(part.lines[begin:end])
    if not cleaned(text):
        return []
    if len(cells) != header.width:
        return [bad_row(line, f"{len(cells)} cells, but the header has {header.width}", text)]
    group = None if header.group is None else cells[header.group]
    user_name = None if header.user_name is None else cells[header.user_name]
    row = parse_row(group, cells[header.account], user_name, header.default_group, allow_damaged=header.allow_damaged)
    return [bad_row(line, row, text) if isinstance(row, str) else row]
