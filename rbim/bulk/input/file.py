"""Files and streams as rows: CSV, a list, JSON or a workbook, told by their content, with mistakes reported."""

from __future__ import annotations

from contextlib import closing, contextmanager
from io import TextIOBase
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from attrs import asdict, define, field

from rbim.bulk.input.content import UTF_16, codec, encoding_of, lines_of, not_decoded, opened, require_text, sheet_of
from rbim.bulk.input.rows import (
    ADDED,
    PLAIN,
    BadRow,
    Columns,
    Format,
    Row,
    bad_row,
    cleaned,
    column_key,
    parse_row,
    unescaped,
)
from rbim.bulk.input.table import DELIMITERS, ROLES, Table, Wanted, csv_table, json_table, sheet_table
from rbim.errors import InvalidRequest
from rbim.validators import one_of, or_none, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from os import PathLike
    from typing import Self

    import attrs

    from rbim.bulk.input.table import Block

__all__ = ["BATCH", "RowFile", "in_batches", "source_of"]

BATCH = 5000
"""Rows that are read together, and loaded in one transaction."""

_BOM = "\ufeff"


def _to_group(value: object) -> str | None:
    if value is None or (isinstance(value, str) and cleaned(value)):
        return None if value is None else cleaned(value)
    raise InvalidRequest(f"group: invalid value {value!r}: use a non-empty string", field="group")


def _limit(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not count and not (isinstance(value, float) and 0 <= value <= 1):
        raise InvalidRequest(
            f"{attribute.name}: invalid value {value!r}: use a count, or a share from 0.0 to 1.0", field=attribute.name
        )


@define(eq=False)
class RowFile:
    """Read a file, or a stream of bytes (``sys.stdin.buffer``), as ``Row | BadRow``, in bounded memory.

    The content decides how it is read, never the name: CSV, a list (one account in each line, with ``group``), JSON lines, a
    JSON array, or a workbook (xlsx, xls, ods; the extra ``excel``); each of them may be compressed with gzip. Anything else
    is refused. Workbooks and JSON arrays are read into memory as a whole.

    ``encoding``: UTF-8 (default) or ``gb18030`` (exports of Chinese spreadsheets), with or without a byte order mark; UTF-16
    is read if it has its mark. The delimiter of CSV is one of ``,`` ``;`` tab ``|``, by the header, or that of a first line
    ``sep=``. ``sheet``: the name of a workbook's sheet; default: the first one.

    Columns are ``group``, ``account`` and optionally ``user_name`` (the acting account), or those named by
    ``group_column``, ``account_column`` and ``user_name_column``; case and surrounding space of a name do not count, other
    columns are ignored. The usual other names (``group_id``, ``member_id``, ``群号``, ``账号``) are found, too; if
    several columns fit, one must be named. ``header``: the line of the header (default: the first one that is not blank); 0:
    there is none, and columns are named by their numbers from 1, by default the group and the account. ``group``: the group
    of rows without one; a row with another group is then a bad row.

    Any mistake in a row makes it a ``BadRow``; its ``line`` is where it begins, from 1. Blank lines are skipped, and rows of
    delimiters only. A line may have 1 MiB, a cell 128 KiB, a row 100 lines. An account, group or acting account that a
    spreadsheet or an export has damaged (``1.38E+10``, ``13800138000.0``, ``#N/A``, ``NULL``), or that has invisible
    characters, is a mistake unless ``allow_damaged`` (default: False). In CSV ``="0138"`` is read as ``0138``. Raises
    InvalidRequest when iteration begins if the file cannot be opened, is empty or lacks a column, and later only if it
    cannot be read further or has more bad rows than ``max_bad``: a count, or a share of the rows, which is known at the end
    (default: None, no limit).

    It can be read once. Leaving its block closes a file that it opened, never a stream that was passed in.
    """

    source: str | PathLike[str] | BinaryIO
    encoding: str = field(default=None, kw_only=True, converter=codec)
    sheet: str | None = field(default=None, kw_only=True)
    header: int | None = field(default=None, kw_only=True, validator=or_none(whole_number))
    group: str | None = field(default=None, kw_only=True, converter=_to_group)
    group_column: str | None = field(default=None, kw_only=True)
    account_column: str | None = field(default=None, kw_only=True)
    user_name_column: str | None = field(default=None, kw_only=True)
    allow_damaged: bool = field(default=False, kw_only=True, validator=one_of(bool))
    max_bad: float | None = field(default=None, kw_only=True, validator=or_none(_limit))
    _opened: BinaryIO | None = field(default=None, init=False, repr=False)
    _about: str = field(default="", init=False, repr=False)
    _table: Table = field(init=False, repr=False)
    _format: Format = field(init=False, repr=False)
    _blocks: Iterator[Block] = field(default=iter(()), init=False, repr=False)
    _rows: Iterator[Row | BadRow] | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the source: the path, or the name of the stream."""
        if hasattr(self.source, "read"):
            name = getattr(self.source, "name", None)
            return "standard input" if name == "<stdin>" else name if isinstance(name, str) else "the input"
        return str(self.source)

    @property
    def path(self) -> Path | None:
        """The file's absolute path; None for a stream."""
        return None if hasattr(self.source, "read") else Path(cast("str", self.source)).absolute()

    @property
    def about(self) -> str:
        """How the input is read: its kind, and the columns that were chosen. The first access begins to read."""
        self._begin()
        return self._about

    def __iter__(self) -> Iterator[Row | BadRow]:
        self._begin()
        if self._rows is None:
            self._rows = chain.from_iterable(columns.rows() for columns in self._batches())
        return self._rows

    def _batches(self) -> Iterator[Columns]:
        """Yield the rows as columns of some :data:`BATCH` rows. Raises InvalidRequest as iteration does."""
        self._begin()
        count = bad = 0
        limit: Any = self.max_bad  # a count, or a share of the rows
        with closing(self), self._naming():
            block = next(self._blocks, None)
            while block:
                columns = Columns([], [], [], [])
                while block and len(columns.accounts) < BATCH:
                    columns.extend(self._columns(*block))
                    block = next(self._blocks, None)
                found: list[BadRow] = []
                if BadRow in set(map(type, columns.accounts)):
                    found = [each for each in columns.accounts if isinstance(each, BadRow)]
                self._note(columns, found)
                count, bad = count + len(columns.accounts), bad + len(found)
                share = f"{bad:,} of {'the first ' if block else ''}{count:,} rows are invalid"
                if isinstance(limit, int) and bad > limit:
                    raise _too_many(f"{share}, more than {limit:,}")
                if not block and isinstance(limit, float) and bad > limit * count:
                    raise _too_many(f"{share}, more than {limit:.4g} of all")
                yield columns

    def _note(self, columns: Columns, bad: list[BadRow]) -> None:
        """Look at rows before they are yielded, or are too bad to be."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file if it was opened here; iteration ends."""
        self._blocks = iter(())
        if self._opened is not None:
            self._opened.close()

    @contextmanager
    def _naming(self) -> Generator[None]:
        """Let errors of the block name the input, and close it then."""
        try:
            yield
        except OSError as error:
            self.close()
            raise InvalidRequest(f"{self.name}: cannot be read: {error.strerror or error}", field="source") from error
        except InvalidRequest as error:
            self.close()
            raise InvalidRequest(f"{self.name}: {error.message}", field=error.field) from error.__cause__

    def _begin(self) -> None:
        """Open the file, and find the columns and the format, unless that was done."""
        if not self._about:
            with self._naming():
                self._read_beginning()

    def _reader(self) -> Callable[[int], bytes]:
        stream = self.source
        if isinstance(stream, TextIOBase):
            raise InvalidRequest("a text stream cannot be read: use a stream of bytes (sys.stdin.buffer)", field="source")
        if not hasattr(stream, "read"):
            try:
                self._opened = stream = Path(cast("str", stream)).open("rb")  # noqa: SIM115  # close() closes it
            except (OSError, ValueError) as error:
                cause = getattr(error, "strerror", None) or error
                raise InvalidRequest(f"cannot be opened: {cause}", field="source") from error
        return cast("Callable[[int], bytes]", getattr(stream, "read1", cast("BinaryIO", stream).read))

    def _read_beginning(self) -> None:
        names = (self.group_column, self.account_column, self.user_name_column)
        wanted = Wanted(self.group, dict(zip(ROLES, names, strict=True)), self.header)
        head, read = opened(self._reader())
        sheet = sheet_of(head, read, self.sheet)
        if sheet is not None:
            what = f"sheet {sheet.name!r} of a workbook"
            self._take(what, sheet_table(sheet, wanted), bom=True, line_end="\r\n")
            return
        if self.sheet is not None:
            raise InvalidRequest("the input is no workbook: leave out --sheet", field="sheet")
        encoding = encoding_of(head, self.encoding)
        lines = lines_of(read, encoding)
        first = next(lines, "")
        bom = first.startswith(_BOM)
        first = first.removeprefix(_BOM)
        line_end = "\r\n" if first.endswith("\r\n") else "\r" if first.endswith("\r") else "\n"
        number = 1
        while not cleaned(first):
            number += 1
            if (following := next(lines, None)) is None:
                raise InvalidRequest("the input is empty: check where it comes from", field="source")
            first = following
        top = [first, *islice(lines, 20)]
        require_text(top, encoding)
        lines = chain(top, lines)
        # what is read as UTF-16 is written as UTF-8 with a mark, which spreadsheets read, too
        form: dict[str, Any] = {"bom": bom, "line_end": line_end, "encoding": encoding}
        form |= {"bom": True, "encoding": "utf-8"} if encoding == UTF_16 else {}
        begin = cleaned(first)[:1]
        if begin in {"{", "["}:
            table = json_table(lines, wanted, number, array=begin == "[")
            self._take("a JSON array" if begin == "[" else "JSON lines", table, kind="jsonl", **form)
            return
        table = csv_table(lines, wanted, number)
        separator = dict(zip(DELIMITERS, ("commas", "semicolons", "tabs", "bars"), strict=True)).get(table.delimiter)
        what = "a list" if table.only else f"CSV with {separator or repr(table.delimiter)}"
        self._take(what, table, delimiter=table.delimiter, **form)

    def _take(self, what: str, table: Table, **form: Any) -> None:
        """Read this table, and describe it. Raises InvalidRequest if no column could be added to it."""
        used: dict[str, str] = {role: table.names[table.places[role]] for role in ROLES if role in table.places}
        if self.group is not None and form.get("kind") == "jsonl":
            used.pop("group", None)
        columns = [f"{role}: column {used[role]!r}" for role in ("account", "group", "user_name") if role in used]
        of_all = [] if "group" in used else [f"group: {self.group}"]
        about = "; ".join([what, *(["one account in each row"] if table.only else columns), *of_all])
        if not table.has_header:  # there is one when the rows are written back
            used = {role: role for role in used}
        names = [*used.values(), *ADDED]
        if len(set(map(column_key, names))) < len(names):
            raise InvalidRequest(
                f"the columns {', '.join(names)} must have different names (the last two are added on writing)",
                field="account_column",
            )
        self._table, self._blocks, self._format, self._about = table, table.blocks, Format(columns=used, **form), about

    def _columns(self, lines: Sequence[int], records: Sequence[list[Any] | BadRow]) -> Columns:
        """Return the rows of records. Nearly all need no further look, and are read all at once."""
        plain = self._plain_columns(lines, records)
        if plain is not None:
            return plain
        rows: list[Row | BadRow] = []
        of_rows: list[int] = []
        for line, cells in zip(lines, records, strict=True):
            row = cells if isinstance(cells, BadRow) else self._row(line, cells)
            if row is not None:
                rows.append(row)
                of_rows.append(line)
        return Columns.of(rows, of_rows)

    def _plain_columns(self, lines: Sequence[int], records: Sequence[Any]) -> Columns | None:
        table, given, size = self._table, self.group, len(records)
        if set(map(type, records)) != {list} or set(map(len, records)) != {len(table.names)}:
            return None
        cells = list(zip(*records, strict=True))
        accounts = list(cells[table.places["account"]])
        groups: list[Any] = list(cells[table.places["group"]]) if "group" in table.places else [given] * size
        acting: list[Any] = list(cells[table.places["user_name"]]) if "user_name" in table.places else [None] * size
        try:
            others = {*groups} - {given}, {*acting} - {None, ""}
            plain = all(map(PLAIN.fullmatch, chain(accounts, *others)))
        except TypeError:  # JSON of another type
            return None
        if not plain or (given is not None and others[0]):
            return None
        return Columns(groups, accounts, [name or None for name in acting] if others[1] else [None] * size, lines)

    def _row(self, line: int, cells: list[Any]) -> Row | BadRow | None:
        """Return the row of a record, or None if it is blank."""
        table, width = self._table, len(self._table.names)
        texts = [each if isinstance(each, str) else "" if each is None else str(each) for each in cells]
        text = table.delimiter.join(texts)
        if not any(map(cleaned, texts)) and None not in cells:  # of an object of JSON something is missing
            return None
        if any(map(cleaned, texts[width:])) or len(cells) < width:
            has = f"the header has {width}" if table.has_header else f"other rows have {width}"
            return bad_row(line, f"{len(cells)} cells, but {has}", text)
        if table.only and any(each in text for each in DELIMITERS):
            return bad_row(line, "several cells, but other rows have one account", text)
        values: dict[str, Any] = {role: cells[at] for role, at in table.places.items()}
        for role, cell in values.items():
            if isinstance(cell, str):
                if (fault := not_decoded(cell, self.encoding)) is not None:
                    return bad_row(line, fault, text)
                values[role] = unescaped(cell) if self._format.kind == "csv" else cell
        group, account, user_name = map(values.get, ROLES)
        row = parse_row(group, account, user_name, self.group, allow_damaged=self.allow_damaged)
        return bad_row(line, row, text) if isinstance(row, str) else row


def _too_many(what: str) -> InvalidRequest:
    return InvalidRequest(f"{what} (--max-bad): correct them, or allow more", field="max_bad")


def in_batches(rows: RowFile) -> Iterator[Columns]:
    """Yield the rows that iteration would yield, as columns of some :data:`BATCH` rows."""
    return rows._batches()  # noqa: SLF001  # in one module


def source_of(rows: object) -> dict[str, Any]:
    """Return the origin of rows as the journal stores it: a name, and the format to write such rows in."""
    if isinstance(rows, RowFile):
        path = {} if rows.path is None else {"path": str(rows.path)}
        _ = rows.about
        return {"name": rows.name, **path, "format": asdict(rows._format)}  # noqa: SLF001  # in one module
    return {"name": "rows", "format": asdict(Format())}
