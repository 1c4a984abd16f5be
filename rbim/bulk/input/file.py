"""Files and streams as rows: CSV, JSON lines or plain text, of any encoding and length, with mistakes reported."""

from __future__ import annotations

from io import TextIOBase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from attrs import define, evolve, field

from rbim.bulk.input.content import recognised
from rbim.bulk.input.csv import DELIMITERS, Header, HeaderOptions, allow_long_cells, csv_rows, find_header, named_columns
from rbim.bulk.input.format import Format, Kind, codec, delimiter, is_kind
from rbim.bulk.input.lines import CHINESE, Lines, json_rows, lines_of, text_rows
from rbim.bulk.input.rows import BadRow, Columns, cleaned, excerpt_of
from rbim.errors import InvalidRequest
from rbim.validators import or_none, require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike
    from types import TracebackType
    from typing import Self

    import attrs

    from rbim.bulk.input.rows import Piece, Row

__all__ = ["RowFile", "in_batches"]

_KIND_BY_SUFFIX: dict[str, Kind] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
}
_MAX_HEADER_LINES = 100
_BOM = "\ufeff"
_NO_LINES = Lines(0, [], {})


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


def _boolean(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    require(attribute.name, value, bool, "True or False")


def _to_codec(value: str | None) -> str:
    return codec("utf-8" if value is None else value)


@define(eq=False)
class RowFile:
    """Read a file, or a stream of bytes (``sys.stdin.buffer``), as ``Row | BadRow``, lazily and in bounded memory.

    A gzip file is unpacked, whatever its name. Spreadsheets, archives and other files that are no text are refused.

    ``kind``: ``csv``, ``jsonl`` or ``text``; default: by the name (``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson``, ``.txt``),
    or else by the first line. ``delimiter``: of CSV; default: one of ``,`` ``;`` tab ``|``, by the header. ``encoding``:
    default UTF-8 (``gb18030`` for exports of Chinese spreadsheets), with or without a byte order mark.

    Columns are ``group``, ``account`` and optionally ``user_name`` (the acting account), or those named by
    ``group_column``, ``account_column`` and ``user_name_column``; case and surrounding space of a name do not count, other
    columns are ignored. In a CSV header the usual Chinese names (``群号``, ``账号``, ``手机号``) are found, too; if several
    columns fit, one must be named. ``group``: the group of rows without one, required for text; a row with another group is
    then a bad row. A CSV file with a single column of another name is a list of accounts without a header, if ``group`` is
    given and no column is named.

    Any mistake in a row makes it a ``BadRow``; ``line`` is where it begins, from 1. Blank lines are skipped. A line may
    have 1 MiB, a row 100 lines. An account, group or acting account that a spreadsheet or an export has damaged
    (``1.38E+10``, ``13800138000.0``, ``#N/A``, ``NULL``) is a mistake unless ``allow_damaged`` (default: False). Raises
    InvalidRequest when iteration begins if the file cannot be opened, is empty or lacks a column, and later only if it
    cannot be read further or has more bad rows than ``max_bad``: a count, or a share of the rows, which is known at the end
    (default: None, no limit).

    It can be read once. Leaving its block closes a file that it opened, never a stream that was passed in.
    """

    source: str | PathLike[str] | BinaryIO
    kind: Kind | None = field(default=None, kw_only=True, validator=or_none(is_kind))
    encoding: str = field(default=None, kw_only=True, converter=_to_codec)
    delimiter: str | None = field(default=None, kw_only=True, validator=or_none(delimiter))
    group: str | None = field(default=None, kw_only=True, converter=_to_group)
    group_column: str | None = field(default=None, kw_only=True)
    account_column: str | None = field(default=None, kw_only=True)
    user_name_column: str | None = field(default=None, kw_only=True)
    allow_damaged: bool = field(default=False, kw_only=True, validator=_boolean)
    max_bad: float | None = field(default=None, kw_only=True, validator=or_none(_limit))
    _opened: BinaryIO | None = field(default=None, init=False, repr=False)
    _compressed: bool = field(default=False, init=False, repr=False)
    _format: Format | None = field(default=None, init=False, repr=False)
    _pieces: Iterator[Piece] = field(default=iter(()), init=False, repr=False)
    _rows: Iterator[Row | BadRow] | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the source: the path, or the name of the stream."""
        if hasattr(self.source, "read"):
            name = getattr(self.source, "name", None)
            return name if isinstance(name, str) else "the input"
        return str(self.source)

    @property
    def path(self) -> Path | None:
        """The file's absolute path; None for a stream."""
        return None if hasattr(self.source, "read") else Path(cast("str", self.source)).absolute()

    @property
    def format(self) -> Format:
        """Format of the rows, for writing rows back. The first access begins to read."""
        if self._format is None:
            try:
                self._format, pieces = self._detect_format()
            except InvalidRequest:
                self.close()
                raise
            self._pieces = self._observed(pieces)
        return self._format

    def _observed(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Return the rows as they were read; a subclass may look at them."""
        return pieces

    def __iter__(self) -> Iterator[Row | BadRow]:
        _ = self.format
        if self._rows is None:
            pieces = (each.rows() if isinstance(each, Columns) else each for each in self._pieces)
            self._rows = chain.from_iterable(pieces)
        return self._rows if self.max_bad is None else self._within(self._rows, self.max_bad)

    def _within(self, rows: Iterator[Row | BadRow], limit: float) -> Iterator[Row | BadRow]:
        """Yield the rows; raise InvalidRequest if too many of them are bad."""
        count = bad = 0
        for row in rows:
            yield row
            count += 1
            if isinstance(row, BadRow):
                bad += 1
                if isinstance(limit, int) and bad > limit:
                    raise self._too_many(f"more than {limit:,} rows are invalid, the first {bad:,} among {count:,} rows")
        if bad > limit * count and not isinstance(limit, int):
            raise self._too_many(f"{bad:,} of {count:,} rows are invalid, more than {limit:.4g} of all")

    def _too_many(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"{self.name}: {what} (--max-bad): correct them, or allow more", field="max_bad")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file if it was opened here; iteration ends."""
        self._pieces = self._rows = iter(())
        if self._opened is not None:
            self._opened.close()

    @property
    def _suffix(self) -> str:
        """The ending of the name, without that of compression."""
        path = Path(self.name.lower())
        return Path(path.stem).suffix if self._compressed and path.suffix == ".gz" else path.suffix

    def _stream(self) -> BinaryIO:
        if isinstance(self.source, TextIOBase):
            raise InvalidRequest(
                "source: a text stream cannot be read: use a stream of bytes (sys.stdin.buffer)", field="source"
            )
        if hasattr(self.source, "read"):
            return cast("BinaryIO", self.source)
        try:
            self._opened = Path(cast("str", self.source)).open("rb")  # noqa: SIM115  # close() closes it
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"{self.name}: cannot be opened: {getattr(error, 'strerror', None) or error}", field="source"
            ) from error
        return self._opened

    def _parts(self) -> Iterator[Lines]:
        try:
            stream, self._compressed = recognised(self._stream(), self.name)
            yield from lines_of(stream, self.encoding)
        except OSError as error:
            raise InvalidRequest(f"{self.name}: cannot be read: {error.strerror or error}", field="source") from error
        finally:
            if self._opened is not None:
                self._opened.close()

    def _detect_format(self) -> tuple[Format, Iterator[Piece]]:
        parts = self._parts()
        head = next(parts, _NO_LINES)
        first = head.lines[0] if head.lines else ""
        bom = first.startswith(_BOM)
        head = head._replace(lines=[first.removeprefix(_BOM), *head.lines[1:]])
        line_end = "\r\n" if first.endswith("\r\n") else "\r" if first.endswith("\r") else "\n"
        while (head := _from_first_row(head)) is _NO_LINES and (more := next(parts, None)) is not None:
            head = more
        if head is _NO_LINES:
            raise InvalidRequest(f"{self.name}: the input is empty: check where it comes from", field="source")
        kind = self.kind or _KIND_BY_SUFFIX.get(self._suffix) or self._kind_of(head)
        file_format = Format(
            kind=kind,
            encoding=self.encoding,
            bom=bom,
            delimiter=self.delimiter or ",",
            line_end=line_end,
            group_column=self.group_column or "group",
            account_column=self.account_column or "account",
            user_name_column=self.user_name_column or "user_name",
            group=self.group,
        )
        if kind == "text":
            return file_format, iter([text_rows(chain([head], parts), file_format, allow_damaged=self.allow_damaged)])
        if kind == "jsonl":
            return file_format, iter([json_rows(chain([head], parts), file_format, allow_damaged=self.allow_damaged)])
        allow_long_cells()
        header, head = self._header(head, parts)
        return _with_header_names(file_format, header), csv_rows(chain([head.skipping(header.lines)], parts), header)

    def _kind_of(self, head: Lines) -> Kind:
        line = cleaned(head.lines[0]) if head.lines else ""
        if line.startswith("{"):
            return "jsonl"
        if self.group is None or self.delimiter is not None:
            return "csv"
        for character in DELIMITERS:
            line = line.replace(character, ",")
        names = [each.strip('"') for each in line.split(",")]
        return "csv" if named_columns(names, self.account_column, "account") else "text"

    def _header(self, head: Lines, parts: Iterator[Lines]) -> tuple[Header, Lines]:
        """Return the header, and all lines from its first one on that were read to find its end."""
        default = "\t,;|" if self._suffix == ".tsv" else DELIMITERS
        options = HeaderOptions(
            group=self.group,
            group_column=self.group_column,
            account_column=self.account_column,
            user_name_column=self.user_name_column,
            delimiters=self.delimiter or default,
            allow_damaged=self.allow_damaged,
        )
        if head.faults and len(head.lines) == 1:  # the message shows two lines
            head = head.followed_by(next(parts, _NO_LINES))
        self._check_header(head, 1)
        last = False
        while (header := find_header(head.lines[:_MAX_HEADER_LINES], options, last=last)) is None and not last:
            more = next(parts, None) if len(head.lines) < _MAX_HEADER_LINES else None
            last = more is None
            head = head if more is None else head.followed_by(more)
        if header is None:
            raise InvalidRequest(f"{self.name}: the header is not valid CSV: {excerpt_of(head.lines[0])}", field="source")
        self._check_header(head, header.lines)
        return header, head

    def _check_header(self, head: Lines, count: int) -> None:
        fault = next((fault for index, fault in head.faults.items() if index < count), None)
        if fault is not None and fault.chinese:
            first = head.faults[1].chinese if 1 in head.faults else cleaned("".join(head.lines[1:2]))
            raise InvalidRequest(
                f"{self.name}: the header is not {self.encoding}. As {CHINESE} it is {fault.chinese!r}"
                + (f", and the first row is {excerpt_of(first)!r}" if first else "")
                + f". If this is right: --encoding {CHINESE}",
                field="encoding",
            )
        if fault is not None or any("\0" in line for line in head.lines[:count]):
            what = "the header has zero bytes" if fault is None else f"the header is {fault.reason}"
            raise InvalidRequest(
                f"{self.name}: {what}: the input is no text, or in another encoding: name it with --encoding",
                field="encoding",
            )


def in_batches(rows: RowFile, size: int) -> Iterator[Columns]:
    """Yield the rows that iteration would yield, as columns of ``size`` rows."""
    _ = rows.format
    unread = rows._rows is None  # noqa: SLF001  # in one module
    plain = unread and rows.max_bad is None and type(rows).__iter__ is RowFile.__iter__
    return Columns.in_batches(rows._pieces if plain else iter([rows]), size)  # noqa: SLF001  # in one module


def _from_first_row(head: Lines) -> Lines:
    """Return the lines from the first one that is not blank, or ``_NO_LINES``."""
    for index, line in enumerate(head.lines):
        if index in head.faults or cleaned(line):
            return head.skipping(index)
    return _NO_LINES


def _with_header_names(file_format: Format, header: Header) -> Format:
    """Return the format with the column names as the header spells them."""
    if not header.names:
        return evolve(file_format, delimiter=header.delimiter, user_name_column=None)
    return evolve(
        file_format,
        delimiter=header.delimiter,
        account_column=header.names[header.account],
        group_column=file_format.group_column if header.group is None else header.names[header.group],
        user_name_column=None if header.user_name is None else header.names[header.user_name],
        group=file_format.group if header.group is None else None,
    )
