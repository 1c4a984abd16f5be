"""Records of an input (CSV, JSON, the cells of a sheet), and which of their columns have the group and the account."""

from __future__ import annotations

import csv
import json
import re
from bisect import bisect_right
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from rbim._support.json import NotJson, loads
from rbim.bulk.input.content import MAX_LINE
from rbim.bulk.input.rows import BadRow, bad_row, cleaned, column_key
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rbim.bulk.input.content import Sheet

__all__ = ["Block", "Table", "Wanted", "csv_blocks", "csv_table", "json_table", "named_columns", "sheet_table"]

Block = tuple["Sequence[int]", "Sequence[list[Any] | BadRow]"]
"""The lines where records begin, from 1, and the cells of each record, or why it has none."""

Role = Literal["group", "account", "user_name"]

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
    """What is known of an input before it is read: see :class:`~rbim.bulk.RowFile`."""

    group: str | None
    group_column: str | None
    account_column: str | None
    user_name_column: str | None
    delimiter: str | None
    header: int | None


class Table(NamedTuple):
    """Records below the header, and the places of their columns, from 0; ``width`` is the number of columns.

    ``names``: of the columns as they are spelled, empty without a header. ``only``: each record is one account.
    """

    blocks: Iterator[Block]
    names: list[str]
    width: int
    account: int
    group: int | None
    user_name: int | None
    delimiter: str = ","
    only: bool = False


# ------------------------------------------------------------------------------ columns


def named_columns(names: Sequence[str], requested: str | None, role: Role) -> list[int]:
    """Return the indexes of the columns that may have a role.

    They have the requested name; without one the default name, or else a usual one. Case, and space around a name, do not
    count; in a usual name no space, hyphen or underscore does.
    """
    found = [index for index, name in enumerate(names) if column_key(name) == column_key(requested or role)]
    if found or requested is not None:
        return found
    return [index for index, name in enumerate(names) if re.sub(r"[\s_-]", "", column_key(name)) in USUAL[role]]


def _index(where: str, names: Sequence[str], requested: str | None, role: Role, *, needed: bool) -> int | None:
    """Return the index of the column for a role, None if there is none and none is needed. Raises InvalidRequest."""
    indexes = named_columns(names, requested, role)
    if len(indexes) == 1:
        return indexes[0]
    if not indexes and not needed and requested is None:
        return None
    which = f"no column {requested or role!r}"
    advice = "name the column in user_name_column" if role == "user_name" else f"name the column with --{role}-column"
    if indexes:
        which = f"{len(indexes)} columns {requested or role!r}, namely {', '.join(repr(names[index]) for index in indexes)},"
    elif role == "group":
        advice += " or --group"
    elif role == "account" and len(names) == 1:
        advice += ", or the group of a list of accounts with --group"
    if len({column_key(names[index]) for index in indexes}) == 1:
        which, advice = f"{len(indexes)} columns have the name {names[indexes[0]]!r}", "rename or remove one of them"
    raise InvalidRequest(f"header: {where}: {which} among {', '.join(map(repr, names))}: {advice}", field=f"{role}_column")


def _table(where: str, names: list[str], blocks: Iterator[Block], wanted: Wanted, delimiter: str = ",") -> Table:
    account = _index(where, names, wanted.account_column, "account", needed=True)
    group = _index(where, names, wanted.group_column, "group", needed=wanted.group is None)
    user_name = _index(where, names, wanted.user_name_column, "user_name", needed=False)
    return Table(blocks, names, len(names), account or 0, group, user_name, delimiter)


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
        raise InvalidRequest(f"header: {where}: {next(faults, 'there is no header')}", field="source")
    while not names[-1]:
        names.pop()
    known = bool(named_columns(names, None, "account"))
    requested = {wanted.group_column, wanted.account_column, wanted.user_name_column} != {None}
    single = wanted.group is not None and not requested and max(len(row) for _, row in rows) == 1
    if wanted.header == 0 or (single and not known and wanted.header is None):
        _require_data(rows, known=known, unit=unit, asked=wanted.header == 0)
        numbers = [*map(str, range(1, max(len(row) for _, row in rows) + 1))]
        if not requested and (single or (wanted.group is None and len(numbers) == 2)):  # noqa: PLR2004  # group, account
            wanted = wanted._replace(account_column=numbers[-1], group_column=None if single else numbers[0])
        found = _table(
            f"the columns of {where}, without a header", numbers, chain([(lines, records)], blocks), wanted, delimiter
        )
        return found._replace(names=[], only=single)
    begin = bisect_right(lines, line)
    below = chain([(lines[begin:], records[begin:])], blocks)
    if single and not known:
        wanted = wanted._replace(account_column=names[0])
    if wanted.header is None and not known:
        matching = [at for at, row in rows if named_columns(row, wanted.account_column, "account")]
        if _is_data(names):
            where += " looks like data, not like a header: if it is data, add --no-header (columns are then 1, 2, ...)"
            if line in matching:
                raise InvalidRequest(f"header: {where}; if it is a header, --header-line {line}", field="header")
        elif matching and line not in matching:
            where += f" is not the header, but {unit} {matching[0]} may be: --header-line {matching[0]}"
    return _table(where, names, below, wanted, delimiter)


def _require_data(rows: list[tuple[int, list[str]]], *, known: bool, unit: str, asked: bool) -> None:
    """Raise InvalidRequest if the first row of an input without a header is a header, or may be one."""
    (line, names), *others = rows
    if known:
        raise InvalidRequest(f"header: {unit} {line} is a header: leave out --no-header", field="header")
    if not asked and len(others) > 1 and not _is_data(names) and all(_is_data(cells) for _, cells in others):
        raise InvalidRequest(
            f"header: {unit} {line}, {names[0]!r}, is not like the others: --header-line {line} if it is the header, "
            "--no-header if it is an account",
            field="header",
        )


# ------------------------------------------------------------------------------ CSV and sheets


class _CsvLines:
    """Lines for csv.reader, which can be given back; ``taken`` are those of the present record."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._back: list[str] = []
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._back.pop() if self._back else next(self._lines)
        self.taken.append(line)
        if len(line) > MAX_LINE:
            raise csv.Error("a line longer than 1 MiB")
        if len(self.taken) > MAX_ROW_LINES:
            raise csv.Error(_UNCLOSED)
        return line

    def give_back(self) -> str:
        """Return the first of the lines that were taken; the others are read again."""
        first, *others = self.taken
        self._back.extend(reversed(others))
        return first


def csv_blocks(lines: Iterator[str], delimiter: str, line: int = 1) -> Iterator[Block]:
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
    yield from _blocks(_csv_records(_CsvLines(chain(block, lines)), delimiter, line))


def _blocks(records: Iterator[tuple[int, list[Any] | BadRow]]) -> Iterator[Block]:
    while several := list(islice(records, BLOCK)):
        lines, found = zip(*several, strict=True)
        yield lines, found


def _csv_records(source: _CsvLines, delimiter: str, line: int) -> Iterator[tuple[int, list[Any] | BadRow]]:
    reader = csv.reader(source, delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            unclosed = len(source.taken) > 1 or "unexpected end" in str(error)
            yield line, bad_row(line, _UNCLOSED if unclosed else f"invalid CSV: {error}", source.give_back())
            line += 1
        else:
            yield line, cells
            line += len(source.taken)
        source.taken.clear()


def csv_table(lines: Iterator[str], wanted: Wanted, line: int) -> Table:
    """Find the delimiter and the columns of CSV; ``line`` is the number of the first line. Raises InvalidRequest.

    The delimiter is the one with most of the columns that are known or requested, then the one with most cells; a first line
    ``sep=;`` names it.
    """
    head = list(islice(lines, MAX_ROW_LINES))
    named = re.fullmatch(r'"?sep=(.)"?', cleaned(head[0]), re.IGNORECASE)
    if named is not None or re.fullmatch(r'"?sep=\t?"?', cleaned(head[0]), re.IGNORECASE):
        wanted = wanted._replace(delimiter=wanted.delimiter or (named[1] if named is not None else "\t"))
        line += 1
        head = head[1:]
    roles: tuple[tuple[Role, str | None], ...] = ("account", wanted.account_column), ("group", wanted.group_column)
    best, chosen = (-1, -1), DELIMITERS[0]
    for delimiter in wanted.delimiter or DELIMITERS:
        _, records = next(csv_blocks(iter(head), delimiter), ((), ()))
        rows = [cells for cells in records[:FIRST] if not isinstance(cells, BadRow)]
        known = (sum(bool(named_columns(cells, requested, role)) for role, requested in roles) for cells in rows)
        score = max(known, default=0), len(rows[0]) if rows else 0
        if score > best:
            best, chosen = score, delimiter
    return _with_columns(csv_blocks(chain(head, lines), chosen, line), wanted, chosen, "line")


def sheet_table(sheet: Sheet, wanted: Wanted) -> Table:
    """Find the columns of a sheet. Raises InvalidRequest."""
    where = f" of sheet {sheet.name!r}" + (f" (of {sheet.of} sheets: --sheet names another)" if sheet.of > 1 else "")
    return _with_columns(_blocks(enumerate(sheet.rows, 1)), wanted, ",", "row", where)


# ------------------------------------------------------------------------------ JSON


def json_table(lines: Iterator[str], wanted: Wanted, line: int, *, array: bool) -> Table:
    """Find the keys of JSON lines, or of a JSON array, by the first object. Raises InvalidRequest.

    What an object does not have is None; keys match exactly, or else in any case.
    """
    records = _items("".join(lines)) if array else _json_lines(lines, line)
    first: list[tuple[int, Any]] = []
    for each in records:
        first.append(each)
        if not isinstance(each[1], BadRow) or len(first) == FIRST:
            break
    unit = "item" if array else "line"
    line, found = first[-1] if first else (line, bad_row(line, "nothing is in the array", ""))
    if isinstance(found, BadRow):
        found = first[0][1] if first else found
        raise InvalidRequest(
            f"header: {unit} {found.line}: {found.reason}: use one object in a line, or one array (jq -c)", field="source"
        )
    names = [*cast("dict[str, Any]", found)] if isinstance(found, dict) else ["account"]
    optional: list[tuple[Role, str | None]] = [("user_name", wanted.user_name_column)]
    if wanted.group is not None:
        optional.append(("group", wanted.group_column))
    names += [requested or role for role, requested in optional if not named_columns(names, requested, role)]

    def cells_of(value: Any) -> list[Any] | BadRow:
        if isinstance(value, BadRow):
            return value
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"account": value}
        return [_value(fields, name) for name in names]

    blocks = _blocks((at, cells_of(value)) for at, value in chain(first, records))
    return _table(f"{unit} {line}", names, blocks, wanted)


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
    decoder, rest = json.JSONDecoder(), re.compile(r"[\s\ufeff]*([],]?)[\s\ufeff]*")
    at = text.index("[") + 1
    for place in count(1):
        found = cast("re.Match[str]", rest.match(text, at))
        if found[1] == "]":
            return
        try:
            if (found[1] == ",") != (place > 1):
                raise ValueError("a comma too few, or too many")  # noqa: TRY301  # the same message as below
            value, at = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            raise InvalidRequest(f"header: the JSON array is damaged or cut off in item {place}", field="source") from None
        is_item = isinstance(value, (dict, str)) or type(value) is int
        yield place, value if is_item else bad_row(place, "not a JSON object", text[found.end() : at])
