"""Records of an input (CSV, JSON, the cells of a sheet), and which of their columns have the group and the account."""

from __future__ import annotations

import csv
import json
import re
from bisect import bisect_right
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from rbim._support.json import NotJson, loads
from rbim.bulk.input.content import MAX_LINE
from rbim.bulk.input.rows import BadRow, bad_row, cleaned, column_key
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rbim.bulk.input.content import Sheet

__all__ = ["DELIMITERS", "ROLES", "Block", "Table", "Wanted", "csv_table", "json_table", "sheet_table"]

Block = tuple["Sequence[int]", "Sequence[list[Any] | BadRow]"]
"""The lines where records begin, from 1, and the cells of each record, or why it has none."""

Role = Literal["group", "account", "user_name"]
ROLES: tuple[Role, ...] = ("group", "account", "user_name")

DELIMITERS = ",;\t|"
"""Delimiters that are tried if none is given."""

MAX_ROW_LINES = 100
"""Lines of one row, at most; beyond them a quote was not closed."""

BLOCK = 200
"""Records that are read together: so few that the garbage collector does not look at their lists, which takes as long."""

FIRST = 20
"""Records by which the columns are found."""

_GROUP = "groupid groupno groupnumber groupcode 群 群组 群号 群号码 群id 群编号 群账号 群帐号 群组号 群组id 群组编号"
_ACCOUNT = (
    "accountid accountno userid useraccount member memberid memberaccount phone phonenumber mobile mobilephone "
    "账号 帐号 账户 帐户 用户账号 用户帐号 成员账号 成员帐号 会员账号 会员帐号 "
    "用户 用户号 用户id 成员 手机 手机号 手机号码 电话 电话号码 联系电话"
)
_ACTING = "操作账号 操作帐号 执行账号 执行帐号 邀请人账号 邀请人帐号"
USUAL = {"group": {*_GROUP.split()}, "account": {*_ACCOUNT.split()}, "user_name": {*_ACTING.split()}}
"""Column names that are found without a flag, besides ``group``, ``account`` and ``user_name``."""

_DATA = re.compile(r"\D{0,4}[0-9]{4,}|[^@\s]+@[^@\s]+\.\w+|\+[0-9 ]+")
"""Values that are accounts or groups rather than names of columns."""

_UNCLOSED = "a quote is not closed"


class Wanted(NamedTuple):
    """What is known of an input before it is read: the group of all rows, the names of columns, the line of the header."""

    group: str | None
    columns: dict[Role, str | None]
    header: int | None


class Table(NamedTuple):
    """Records below the header, the names of their columns as they are spelled, and the places of those chosen, from 0.

    Without a header, names are numbers from 1. ``only``: each record is one account.
    """

    blocks: Iterator[Block]
    names: list[str]
    places: dict[Role, int]
    delimiter: str = ","
    has_header: bool = True
    only: bool = False


# ------------------------------------------------------------------------------ columns


def _named_columns(names: Sequence[str], requested: str | None, role: Role) -> list[int]:
    """Return the indexes of the columns that may have a role.

    They have the requested name; without one the default name, or else a usual one. Case, and space around a name, do not
    count; in a usual name no space, hyphen or underscore does.
    """
    keys, wanted = list(map(column_key, names)), column_key(requested or role)
    found = [index for index, key in enumerate(keys) if key == wanted]
    if found or requested is not None:
        return found
    return [index for index, key in enumerate(keys) if re.sub(r"[\s_-]", "", key) in USUAL[role]]


def _places(where: str, names: Sequence[str], wanted: Wanted) -> dict[Role, int]:
    """Return the places of the columns. Raises InvalidRequest if one that is needed is missing, or if several fit."""
    places: dict[Role, int] = {}
    for role in ("account", "group", "user_name"):
        requested = wanted.columns[role]
        found = _named_columns(names, requested, role)
        if len(found) == 1:
            places[role] = found[0]
            continue
        is_needed = role == "account" or (role == "group" and wanted.group is None)
        if not found and requested is None and not is_needed:
            continue
        which = f"no column {requested or role!r}"
        advice = "name the column in user_name_column" if role == "user_name" else f"name the column with --{role}-column"
        if len({column_key(names[index]) for index in found}) == 1:
            which, advice = f"{len(found)} columns have the name {names[found[0]]!r}", "rename or remove one of them"
        elif found:
            which = f"{len(found)} columns {requested or role!r}, namely {', '.join(repr(names[index]) for index in found)},"
        elif role == "group":
            advice += " or --group"
        elif role == "account" and len(names) == 1:
            advice += ", or the group of a list of accounts with --group"
        message = f"{where}: {which} among {', '.join(map(repr, names))}: {advice}"
        raise InvalidRequest(message, field=f"{role}_column")
    return places


def _is_data(cells: Iterable[str]) -> bool:
    return any(_DATA.fullmatch(cell) for cell in cells)


def _with_columns(blocks: Iterator[Block], wanted: Wanted, delimiter: str, unit: str, sheet: str = "") -> Table:
    """Find the header in the first records and the columns by it. Raises InvalidRequest."""
    lines, records = next(blocks, ((), ()))
    first = list(zip(lines, records, strict=True))[:FIRST]
    cells = ((line, [cleaned(str(cell)) for cell in cells]) for line, cells in first if not isinstance(cells, BadRow))
    rows = [(line, row) for line, row in cells if any(row)]
    nothing: tuple[int, list[str]] = (wanted.header or 1, [])
    line, names = next((row for row in rows if not wanted.header or row[0] == wanted.header), nothing)
    where = f"{unit} {line}{sheet}"
    if not names:
        faults = (f"it is not valid CSV: {cells.reason}: {cells.raw}" for _, cells in first if isinstance(cells, BadRow))
        raise InvalidRequest(f"{where}: {next(faults, 'there is no header')}", field="source")
    while not names[-1]:
        names.pop()
    known = bool(_named_columns(names, None, "account"))
    requested = {*wanted.columns.values()} != {None}
    width = max(len(row) for _, row in rows)
    single = wanted.group is not None and not requested and width == 1
    if wanted.header == 0 or (single and not known and wanted.header is None):
        _require_data(rows, known=known, unit=unit, asked=wanted.header == 0)
        numbers = [*map(str, range(1, width + 1))]
        if not requested and (single or (wanted.group is None and width == 2)):  # noqa: PLR2004  # group, account
            wanted.columns["account"], wanted.columns["group"] = numbers[-1], None if single else numbers[0]
        places = _places(f"the columns of {where}, without a header", numbers, wanted)
        return Table(chain([(lines, records)], blocks), numbers, places, delimiter, has_header=False, only=single)
    if single and not known:
        wanted.columns["account"] = names[0]
    if wanted.header is None and not known:
        matching = [at for at, row in rows if _named_columns(row, wanted.columns["account"], "account")]
        if matching and line not in matching:
            where += f" is not the header, but {unit} {matching[0]} may be: --header-line {matching[0]}"
        elif _is_data(names):
            where += " looks like data, not like a header: if it is data, add --no-header (columns are then 1, 2, ...)"
            if line in matching:
                raise InvalidRequest(f"{where}; if it is a header, --header-line {line}", field="header")
    begin = bisect_right(lines, line)
    below = chain([(lines[begin:], records[begin:])], blocks)
    return Table(below, names, _places(where, names, wanted), delimiter)


def _require_data(rows: list[tuple[int, list[str]]], *, known: bool, unit: str, asked: bool) -> None:
    """Raise InvalidRequest if the first row of an input without a header is a header, or may be one."""
    (line, names), *others = rows
    if known:
        raise InvalidRequest(f"{unit} {line} is a header: leave out --no-header", field="header")
    if not asked and len(others) > 1 and not _is_data(names) and all(_is_data(cells) for _, cells in others):
        raise InvalidRequest(
            f"{unit} {line}, {names[0]!r}, is not like the others: --header-line {line} if it is the header, "
            "--no-header if it is an account",
            field="header",
        )


# ------------------------------------------------------------------------------ CSV and sheets


def _csv_blocks(lines: Iterator[str], delimiter: str, line: int = 1) -> Iterator[Block]:
    """Yield the records of CSV, the first of which begins in ``line``. A quote that is not closed costs one line."""
    block: list[str] = []
    while block := list(islice(lines, BLOCK)):
        try:
            records = list(csv.reader(block, delimiter=delimiter, strict=True))
        except csv.Error:
            break
        if len(records) < len(block) or max(map(len, block)) > MAX_LINE:  # a record has several lines
            break
        yield range(line, line + len(block)), records
        line += len(block)
    yield from _blocks(_csv_records(chain(block, lines), delimiter, line))


def _blocks(records: Iterator[tuple[int, list[Any] | BadRow]]) -> Iterator[Block]:
    while several := list(islice(records, BLOCK)):
        lines, found = zip(*several, strict=True)
        yield lines, found


def _csv_records(lines: Iterator[str], delimiter: str, line: int) -> Iterator[tuple[int, list[Any] | BadRow]]:
    """Yield records one by one, each with its first line. Behind an invalid record only that line is left out."""
    again: list[str] = []  # lines to read once more, the next one last
    taken: list[str] = []  # those of the present record

    def take() -> Iterator[str]:
        while (text := again.pop() if again else next(lines, None)) is not None:
            taken.append(text)
            if len(text) > MAX_LINE:
                raise csv.Error("a line longer than 1 MiB")
            if len(taken) > MAX_ROW_LINES:
                raise csv.Error(_UNCLOSED)
            yield text

    reader = csv.reader(take(), delimiter=delimiter, strict=True)
    while True:
        taken.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            unclosed = len(taken) > 1 or "unexpected end" in str(error)
            yield line, bad_row(line, _UNCLOSED if unclosed else f"invalid CSV: {error}", taken[0])
            again.extend(reversed(taken[1:]))
            line += 1
            reader = csv.reader(take(), delimiter=delimiter, strict=True)
        else:
            yield line, cells
            line += len(taken)


def csv_table(lines: Iterator[str], wanted: Wanted, line: int) -> Table:
    """Find the delimiter and the columns of CSV; ``line`` is the number of the first line. Raises InvalidRequest.

    The delimiter is the one with most of the columns that are known or requested, then the one with most cells; a first line
    ``sep=;`` names it.
    """
    head = list(islice(lines, MAX_ROW_LINES))
    delimiters = DELIMITERS
    if (named := re.fullmatch(r'"?sep=([^"\s]|\t?)"?', cleaned(head[0]), re.IGNORECASE)) is not None:
        delimiters = named[1] or "\t"
        line += 1
        del head[0]
    roles: tuple[Role, ...] = ("account", "group")
    best, chosen = (-1, -1), delimiters[0]
    for delimiter in delimiters:
        _, records = next(_csv_blocks(iter(head), delimiter), ((), ()))
        rows = [cells for cells in records[:FIRST] if not isinstance(cells, BadRow)]
        known = (sum(bool(_named_columns(cells, wanted.columns[role], role)) for role in roles) for cells in rows)
        score = max(known, default=0), len(rows[0]) if rows else 0
        if score > best:
            best, chosen = score, delimiter
    return _with_columns(_csv_blocks(chain(head, lines), chosen, line), wanted, chosen, "line")


def sheet_table(sheet: Sheet, wanted: Wanted) -> Table:
    """Find the columns of a sheet. Raises InvalidRequest."""
    where = f" of sheet {sheet.name!r}" + (f" (of {sheet.of} sheets: --sheet names another)" if sheet.of > 1 else "")
    return _with_columns(_blocks(enumerate(sheet.rows, 1)), wanted, ",", "row", where)


# ------------------------------------------------------------------------------ JSON


def json_table(lines: Iterator[str], wanted: Wanted, line: int, *, array: bool) -> Table:
    """Find the keys of JSON lines, or of a JSON array, by the first object. Raises InvalidRequest.

    What an object does not have is None; keys match exactly, or else in any case.
    """
    records = _items(cleaned("".join(lines))) if array else _json_lines(lines, line)
    unit = "item" if array else "line"
    first: list[tuple[int, Any]] = []
    for each in records:
        first.append(each)
        if not isinstance(each[1], BadRow) or len(first) == FIRST:
            break
    line, found = first[-1] if first else (line, bad_row(line, "nothing is in the array", ""))
    if isinstance(found, BadRow):
        found = first[0][1] if first else found
        raise InvalidRequest(
            f"{unit} {found.line}: {found.reason}: use one object in a line, or one array (jq -c)", field="source"
        )
    names = [*cast("dict[str, Any]", found)] if isinstance(found, dict) else ["account"]
    optional: tuple[Role, ...] = ("user_name",) if wanted.group is None else ("user_name", "group")
    names += [wanted.columns[role] or role for role in optional if not _named_columns(names, wanted.columns[role], role)]

    def cells_of(value: Any) -> list[Any] | BadRow:
        if isinstance(value, BadRow):
            return value
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"account": value}
        return [_value(fields, name) for name in names]

    blocks = _blocks((at, cells_of(value)) for at, value in chain(first, records))
    return Table(blocks, names, _places(f"{unit} {line}", names, wanted))


def _value(fields: dict[str, Any], key: str) -> Any:
    if key in fields:
        return fields[key]
    name = column_key(key)
    return next((value for each, value in fields.items() if column_key(each) == name), None)


def _json_lines(lines: Iterator[str], first: int) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, first):
        text = cleaned(line)
        if not text:
            continue
        try:
            value = loads(text.encode())
        except (NotJson, UnicodeError) as error:
            value = bad_row(number, f"invalid JSON: {error}", line)
        yield number, value if isinstance(value, (dict, BadRow)) else bad_row(number, "not a JSON object", line)


def _items(text: str) -> Iterator[tuple[int, Any]]:
    """Yield the items of a JSON array with their places, from 1. Raises InvalidRequest."""
    try:
        items: list[object] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON array is damaged or cut off: {error}", field="source") from None
    for place, value in enumerate(items, 1):
        if isinstance(value, (dict, str)) or type(value) is int:
            yield place, value
        else:
            yield place, bad_row(place, "not a JSON object", json.dumps(value, ensure_ascii=False))
