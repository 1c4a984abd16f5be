"""Format of an input file: detected when it is read, used again when rows are written back."""

from __future__ import annotations

import codecs
import csv
import json
from functools import lru_cache
from io import StringIO
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from attrs import asdict, field, frozen

from rbim._support.text import no_formula, one_line
from rbim.bulk.input.rows import column_key
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import attrs

__all__ = ["ADDED", "Format", "Kind", "NotDone", "codec", "delimiter", "is_kind", "write_rows"]


Kind = Literal["csv", "jsonl"]

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
            f"encoding: {found} cannot be read line by line; convert the file first (iconv -f {found} -t utf-8); "
            "UTF-16 that begins with its byte order mark is read without a flag",
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


@frozen(kw_only=True)
class Format:
    r"""Format of the rows of a file.

    ``delimiter`` is for CSV. The columns are those of the CSV header, as they are spelled there, or the keys of JSONL. If
    ``group`` is given, the file has no group column and that is the group of every row. If
    ``user_name_column`` is None, it has no column of acting accounts. ``line_end`` is ``\n``, ``\r\n`` or ``\r``.
    Raises InvalidRequest for another kind, encoding or delimiter, and for two columns of the same name, ``state`` and
    ``reason`` included.
    """

    kind: Kind = field(validator=is_kind)
    encoding: str = field(default="utf-8", converter=codec)
    bom: bool = False
    delimiter: str = field(default=",", validator=delimiter)
    line_end: str = "\n"
    group_column: str = "group"
    account_column: str = "account"
    user_name_column: str | None = "user_name"
    group: str | None = None

    def __attrs_post_init__(self) -> None:
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


class NotDone(NamedTuple):
    """A row that was not done: its ``state`` (refused, failed, unknown, skipped) and the reason."""

    group: str
    account: str
    user_name: str | None
    state: str
    reason: str


def _csv_lines(file_format: Format, rows: Iterable[NotDone]) -> Iterator[str]:
    # Accounts and groups that begin with = + - @ stay as they are: the file is read again, also by other programs, and with
    # an apostrophe an account is another account. They are cells of the user's own input.
    written = StringIO(newline="")
    writer = csv.writer(written, delimiter=file_format.delimiter, lineterminator=file_format.line_end)

    def line(cells: list[str]) -> str:
        written.seek(0)
        written.truncate()
        writer.writerow(cells)
        return written.getvalue()

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
        if row.user_name and file_format.user_name_column is None:
            raise InvalidRequest(
                f"user_name: {row.user_name!r} does not fit: the file has no column of acting accounts", field="user_name"
            )
        yield row._replace(reason=shown(row.reason))


def write_rows(stream: IO[bytes], file_format: Format, rows: Iterable[NotDone]) -> int:
    """Write rows in their input's format, with two more columns, state and reason; return the number of rows.

    RowFile can read the file with the options of the input; CSV always has a header. Accounts and groups are never altered;
    a reason that a spreadsheet would evaluate gets an apostrophe (not in JSONL). Raises InvalidRequest if a row does not
    fit: it has a group or an acting account without a column for it, or an account that the encoding cannot represent. In a
    reason, such characters are escaped.
    """
    lines = _csv_lines if file_format.kind == "csv" else _json_lines
    if file_format.bom:
        stream.write("\ufeff".encode(file_format.encoding))
    count = 0
    for line in lines(file_format, _checked_rows(file_format, rows)):
        try:
            stream.write(line.encode(file_format.encoding))
        except UnicodeError as error:
            raise InvalidRequest(
                f"account: {file_format.encoding} cannot encode a part of {line!r}", field="account"
            ) from error
        count += 1
    return count - (file_format.kind == "csv")
