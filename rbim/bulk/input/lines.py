"""A stream of bytes as lines of text, many at a time, in bounded memory for any bytes."""

from __future__ import annotations

import codecs
import re
from io import StringIO
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from rbim._support.json import NotJson, loads
from rbim.bulk.input.rows import BadRow, Row, bad_row, cleaned, column_key, excerpt_of, parse_row
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rbim.bulk.input.format import Format

__all__ = ["MAX_LINE", "LineError", "Lines", "json_rows", "lines_of", "text_rows"]

MAX_LINE = 1 << 20
"""Bytes of a line, at most, without its end."""

CHINESE = "gb18030"
COMMON = re.compile(rb"[\xb0-\xd7][\xa1-\xfe]")
"""The more common Chinese characters, in GB18030."""

SAMPLE = 16
"""Bytes by which UTF-16 without a byte order mark is recognised."""

_BLOCK = 1 << 17
_EXCERPT = 1000


class LineError(NamedTuple):
    """Reason why a line cannot be used, and an excerpt of it.

    ``chinese``: the excerpt as GB18030, if the line seems to be Chinese text in this encoding, else empty.
    """

    reason: str
    raw: str
    chinese: str = ""


class Lines(NamedTuple):
    """Lines with their ends; ``before`` counts the lines before them in the file.

    ``faults``: lines that are too long or in another encoding, by their index in ``lines``. There, a line that is too long
    is empty, and bytes that cannot be decoded are escapes.
    """

    before: int
    lines: list[str]
    faults: dict[int, LineError]

    def skipping(self, count: int) -> Lines:
        """Return the lines without the first ``count``."""
        if not count:
            return self
        faults = {index - count: fault for index, fault in self.faults.items() if index >= count}
        return Lines(self.before + count, self.lines[count:], faults)

    def followed_by(self, more: Lines) -> Lines:
        """Return these lines and the lines after them."""
        if not self.lines:
            return more
        shift = len(self.lines)
        faults = self.faults | {index + shift: fault for index, fault in more.faults.items()}
        return Lines(self.before, self.lines + more.lines, faults)


def _whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the stream in parts that end at a line end; of a line that is too long only the beginning is kept.

    A carriage return at the end of a block may be half of a line end: it waits for the next block.
    """
    read = getattr(stream, "read1", stream.read)  # read1 returns the bytes that a pipe has, read waits for all
    rest = b""
    while block := read(_BLOCK):
        rest += block
        cut = rest.rfind(b"\n") + 1 or rest.rfind(b"\r", 0, -1) + 1
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
        if len(rest) > MAX_LINE + 2:
            rest = rest[: MAX_LINE + 1] + rest[-1:]
    if rest:
        yield rest


def _decode_one_by_one(part: bytes, encoding: str) -> tuple[list[str], dict[int, LineError]]:
    lines: list[str] = []
    faults: dict[int, LineError] = {}
    for index, line in enumerate(part.splitlines(keepends=True)):
        if len(line.rstrip(b"\r\n")) > MAX_LINE:
            shown = line[:_EXCERPT].decode(encoding, "replace")
            faults[index] = LineError("a line longer than 1 MiB", excerpt_of(shown))
            lines.append("\n")
            continue
        try:
            lines.append(line.decode(encoding))
        except UnicodeError as error:
            where = f" at byte {error.start + 1} of the line" if isinstance(error, UnicodeDecodeError) else ""
            lines.append(line.decode(encoding, "backslashreplace"))
            chinese = excerpt_of(_as_chinese(line)) if encoding != CHINESE else ""
            hint = f" (it seems to be {CHINESE}: --encoding {CHINESE})" if chinese else ""
            faults[index] = LineError(f"not {encoding}{where}{hint}", excerpt_of(lines[-1]), chinese)
    return lines, faults


def _as_chinese(line: bytes) -> str:
    """Return the line as GB18030 if half of what is not ASCII are common characters, else an empty text."""
    try:
        text = line.decode(CHINESE)
    except UnicodeError:
        return ""
    other = sum(not character.isascii() for character in text)
    return text if other and 2 * len(COMMON.findall(line)) >= other and cleaned(text).isprintable() else ""


def _is_utf_16(part: bytes) -> bool:
    """Return whether the bytes have UTF-16's byte order mark, or every second one of the first is zero."""
    if part.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    high, low = part[:SAMPLE:2], part[1:SAMPLE:2]
    return len(part) >= SAMPLE and any(not any(each) and all(other) for each, other in ((high, low), (low, high)))


def _check_order_mark(part: bytes, encoding: str) -> None:
    if _is_utf_16(part):
        raise InvalidRequest(
            "encoding: the input is UTF-16: convert it first (iconv -f utf-16 -t utf-8), or save it as UTF-8",
            field="encoding",
        )
    if part.startswith(codecs.BOM_UTF8) and encoding != "utf-8":
        raise InvalidRequest(
            f"encoding: the input begins with the byte order mark of UTF-8, but {encoding} was requested (--encoding)",
            field="encoding",
        )


def lines_of(stream: BinaryIO, encoding: str) -> Iterator[Lines]:
    r"""Read a stream to its end. Line ends (``\n``, ``\r\n``, ``\r``) and a byte order mark are kept.

    Raises InvalidRequest if the input begins with the byte order mark of another encoding.
    """
    before = 0
    for part in _whole_lines(stream):
        if not before:
            _check_order_mark(part, encoding)
        try:
            text = part.decode(encoding) if len(part) <= MAX_LINE else None
        except UnicodeError:
            text = None
        if text is None:
            lines, faults = _decode_one_by_one(part, encoding)
        else:
            lines, faults = list(StringIO(text, newline="")), {}
        yield Lines(before, lines, faults)
        before += len(lines)


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
