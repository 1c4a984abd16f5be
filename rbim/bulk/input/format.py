"""Format of an input file: detected when it is read, used again when rows are written back."""

from __future__ import annotations

import codecs
import csv
import json
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from attrs import asdict, field, frozen

from rbim._support.text import no_formula, one_line
from rbim.bulk.input.rows import Row, cleaned, column_key, parse_row
from rbim.errors import InvalidRequest
from rbim.validators import or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import attrs

__all__ = ["ADDED", "Format", "Kind", "NotDone", "codec", "delimiter", "is_kind", "write_rows"]


Kind = Literal["csv", "jsonl", "text"]

ADDED = ("state", "reason")
"""The columns that writing back adds; no other column may have these names."""

_ASCII = "".join(map(chr, range(32, 127))) + "\t\r\n"
_NOT_DELIMITERS = '"\r\n\0 '


def codec(name: str) -> str:
    """Return Python's name of an encoding that can be read line by line. Raises InvalidRequest.

    These encode ASCII characters as ASCII bytes (UTF-8, GB18030, GBK, Big5, Latin-1, ...), so UTF-16 does not.
    ``utf-8-sig`` gives UTF-8: a byte order mark is always recognised.
    """
    try:
        found = codecs.lookup(name).name
        usable = _ASCII.encode(found.removesuffix("-sig")) == _ASCII.encode("ascii")
    except (LookupError, TypeError, ValueError):
        raise InvalidRequest(
            f"encoding: unknown encoding {name!r}: use utf-8 or gb18030, for example", field="encoding"
        ) from None
    if not usable:
        raise InvalidRequest(
            f"encoding: {found} cannot be read line by line; convert the file first (iconv -f {found} -t utf-8)",
            field="encoding",
        )
    return found.removesuffix("-sig")


def is_kind(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: a kind of file."""
    if value not in get_args(Kind):
        raise InvalidRequest(
            f"{attribute.name}: invalid value {value!r}: use one of {', '.join(get_args(Kind))}", field=attribute.name
        )


def delimiter(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: one character that can separate cells; not a quote, space or line break."""
    if not isinstance(value, str) or len(value) != 1 or value in _NOT_DELIMITERS:
        raise InvalidRequest(
            f"{attribute.name}: invalid value {value!r}: use one character, not a quote, space or line break",
            field=attribute.name,
        )


def _name(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not cleaned(value):
        raise InvalidRequest(f"{attribute.name}: invalid value {value!r}: use a non-empty string", field=attribute.name)


def _boolean(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{attribute.name}: invalid value {value!r}: use True or False", field=attribute.name)


def _line_end(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in ("\n", "\r\n", "\r"):  # a tuple: the value may be unhashable
        raise InvalidRequest(f"{attribute.name}: invalid line end {value!r}: use \\n, \\r\\n or \\r", field=attribute.name)


def _encodes(encoding: str) -> bool:
    try:
        return bool("\ufeff".encode(encoding))
    except UnicodeError:
        return False


@frozen(kw_only=True)
class Format:
    r"""Format of the rows of a file.

    ``delimiter`` is for CSV. The columns are those of the CSV header, as they are spelled there, or the keys of JSONL. If
    ``group`` is given (always for text), the file has no group column and that is the group of every row. If
    ``user_name_column`` is None, it has no column of acting accounts. ``line_end`` is ``\n``, ``\r\n`` or ``\r``.
    Raises InvalidRequest for invalid values, and for two columns of the same name, ``state`` and ``reason`` included.
    """

    kind: Kind = field(validator=is_kind)
    encoding: str = field(default="utf-8", converter=codec)
    bom: bool = field(default=False, validator=_boolean)
    delimiter: str = field(default=",", validator=delimiter)
    line_end: str = field(default="\n", validator=_line_end)
    group_column: str = field(default="group", validator=_name)
    account_column: str = field(default="account", validator=_name)
    user_name_column: str | None = field(default="user_name", validator=or_none(_name))
    group: str | None = field(default=None, validator=or_none(_name))

    def __attrs_post_init__(self) -> None:
        if self.kind == "text" and self.group is None:
            raise InvalidRequest("group: text has no group column: give the group of its rows (--group)", field="group")
        if self.bom and not _encodes(self.encoding):
            raise InvalidRequest(f"bom: {self.encoding} has no byte order mark", field="bom")
        columns = [each for each in (self.group_column, self.account_column, self.user_name_column) if each is not None]
        if len({column_key(each) for each in (*columns, *ADDED)}) != len(columns) + len(ADDED):
            raise InvalidRequest(
                f"columns: {', '.join((*columns, *ADDED))} must be different names (the last two are added on writing)",
                field="account_column",
            )

    def columns(self) -> list[str]:
        """Return the columns of a file of this format, without those that writing back adds."""
        group = [] if self.group is not None else [self.group_column]
        user_name = [] if self.user_name_column is None else [self.user_name_column]
        return [*group, self.account_column, *user_name]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, for :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: object) -> Format:
        """Read the values of :meth:`to_json`. Raises InvalidRequest for anything else."""
        fields: Any = document  # the validators check the values
        try:
            return cls(**fields)
        except TypeError:
            raise InvalidRequest(f"format: not the JSON of a file's format: {document!r}", field="format") from None


MAX_REASON = 500
"""Characters of a reason that are written."""

_WRITE_BATCH = 1000


class NotDone(NamedTuple):
    """A row that was not done: its ``state`` (refused, failed, unknown, skipped) and the reason."""

    group: str
    account: str
    user_name: str | None
    state: str
    reason: str


class _Echo:
    """A file for csv.writer that makes ``writerow`` return the row."""

    @staticmethod
    def write(text: str) -> str:
        return text


def _as_csv(file_format: Format) -> Callable[[list[str]], str]:
    # Accounts and groups that begin with = + - @ stay as they are: the file is read again, also by other programs, and with
    # an apostrophe an account is another account. They are cells of the user's own input. In a spreadsheet, import the
    # columns as text.
    plain = csv.writer(_Echo(), delimiter=file_format.delimiter, lineterminator=file_format.line_end)
    quoting = csv.writer(
        _Echo(), delimiter=file_format.delimiter, lineterminator=file_format.line_end, quoting=csv.QUOTE_ALL
    )

    def line(cells: list[str]) -> str:
        text = "".join(cells)
        plain_text = text.isprintable() and all(cell == cleaned(cell) for cell in cells)
        written: str = (plain if plain_text else quoting).writerow(cells)
        return written

    return line


def _csv_lines(file_format: Format, rows: Iterable[NotDone]) -> Iterator[str]:
    line = _as_csv(file_format)
    yield line([*file_format.columns(), *ADDED])
    for group, account, user_name, *added in rows:
        before = [] if file_format.group is not None else [group]
        after = [] if file_format.user_name_column is None else [user_name or ""]
        yield line([*before, account, *after, *added])


def _json_lines(file_format: Format, rows: Iterable[NotDone]) -> Iterator[str]:
    for group, account, user_name, *added in rows:
        document = {} if file_format.group is not None else {file_format.group_column: group}
        document[file_format.account_column] = account
        if user_name and file_format.user_name_column is not None:
            document[file_format.user_name_column] = user_name
        document |= zip(ADDED, added, strict=True)
        text = json.dumps(document, ensure_ascii=False)
        try:
            text.encode(file_format.encoding)
        except UnicodeError:
            text = json.dumps(document)
        yield text + file_format.line_end


def _text_lines(file_format: Format, rows: Iterable[NotDone]) -> Iterator[str]:
    for group, account, _, *added in rows:
        if parse_row(group, account, None, None) != Row(group, account):
            raise InvalidRequest(
                f"account: {account!r} cannot be written as a line of text: reading it back would change it", field="account"
            )
        yield "\t".join((account, *added)) + file_format.line_end


def _checked_rows(file_format: Format, rows: Iterable[NotDone]) -> Iterator[NotDone]:
    """Yield the rows that fit the format, with reasons of one line that it can encode."""

    @lru_cache(maxsize=1000)
    def shown(reason: str) -> str:
        line = one_line(reason, MAX_REASON)
        line = line if file_format.kind == "jsonl" else no_formula(line)
        return line.encode(file_format.encoding, "backslashreplace").decode(file_format.encoding)

    for row in rows:
        if file_format.group is not None and row.group != file_format.group:
            raise InvalidRequest(
                f"group: {row.group!r} does not fit: without a group column, all rows are for {file_format.group!r}",
                field="group",
            )
        if row.user_name and (file_format.user_name_column is None or file_format.kind == "text"):
            raise InvalidRequest(
                f"user_name: {row.user_name!r} does not fit: the file has no column of acting accounts", field="user_name"
            )
        yield row._replace(reason=shown(row.reason))


def write_rows(stream: IO[bytes], file_format: Format, rows: Iterable[NotDone]) -> int:
    """Write rows in their input's format, with two more columns, state and reason; return the number of rows.

    RowFile can read the file with the options of the input. CSV always has a header; text has the account, a tab, the
    state, a tab and the reason. Accounts and groups are never altered; a reason that a spreadsheet would evaluate gets an
    apostrophe (not in JSONL). Raises InvalidRequest if a row does not fit: it has a group or
    an acting account without a column for it, or an account that the encoding (or a line of text) cannot represent. In a
    reason, such characters are escaped.
    """
    writers = {"csv": _csv_lines, "jsonl": _json_lines, "text": _text_lines}
    count = 0
    waiting: list[bytes] = ["\ufeff".encode(file_format.encoding)] if file_format.bom else []
    for line in writers[file_format.kind](file_format, _checked_rows(file_format, rows)):
        try:
            waiting.append(line.encode(file_format.encoding))
        except UnicodeError as error:
            raise InvalidRequest(
                f"account: {file_format.encoding} cannot encode a part of {line!r}", field="account"
            ) from error
        count += 1
        if len(waiting) >= _WRITE_BATCH:
            stream.write(b"".join(waiting))
            waiting.clear()
    stream.write(b"".join(waiting))
    return count - (file_format.kind == "csv")
