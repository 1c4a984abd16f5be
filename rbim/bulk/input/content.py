"""The kind of an input by its first bytes, whatever its name: gzip is unpacked, spreadsheets and archives are refused."""

from __future__ import annotations

import zlib
from gzip import BadGzipFile, GzipFile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Content", "recognised"]

AS_CSV = "save the sheet as CSV UTF-8 in the spreadsheet program (Excel: Save As, CSV UTF-8)"
UNPACK = "unpack it first"

ZIP = ("a zip archive", UNPACK)
WORKBOOK = ("an Excel workbook (.xlsx) or another spreadsheet", AS_CSV)

GZIP = b"\x1f\x8b"
OTHERS = {
    b"PK\x03\x04": ZIP,
    b"PK\x05\x06": ("an empty zip archive", "choose another file"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an Excel workbook (.xls) or another Office document", AS_CSV),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", UNPACK),
    b"Rar!\x1a\x07": ("a rar archive", UNPACK),
    b"\xfd7zXZ\x00": ("compressed with xz", "unpack it first (xz -dc)"),
    b"BZh91AY&SY": ("compressed with bzip2", "unpack it first (bzip2 -dc)"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it first (zstd -dc)"),
    b"%PDF-": ("a PDF document", "export the table as CSV"),
    b"SQLite format 3\x00": ("an SQLite database", "export the table as CSV"),
}
"""First bytes of files that have no rows as text: what such a file is, and the next step."""

DOCUMENTS = (b"[Content_Types].xml", b"_rels/", b"docProps/", b"xl/", b"mimetype")
"""Beginnings of the name of the first entry of a zip archive that is a workbook (.xlsx, .ods)."""

FIRST_NAME = 30
"""Where a zip archive has the name of its first entry."""

ENOUGH = 64
"""Bytes that tell what a file is."""

BLOCK = 1 << 12


class Content(NamedTuple):
    """The bytes of the rows, and whether they were compressed."""

    stream: BinaryIO
    compressed: bool


class _Rejoined:
    """A stream whose first bytes were read already."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)  # read1 returns what a pipe has

    def read(self, size: int) -> bytes:
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._read(size)


class _Unpacked:
    """The content of a gzip stream, in bounded memory however far it expands."""

    def __init__(self, packed: _Rejoined, name: str) -> None:
        self._file = GzipFile(fileobj=cast("BinaryIO", packed), mode="rb")
        self._name = name

    def read(self, size: int) -> bytes:
        try:
            return self._file.read1(size)
        except EOFError as error:
            raise self._damaged("it is cut off") from error
        except (BadGzipFile, zlib.error) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, cause: str) -> InvalidRequest:
        return InvalidRequest(f"{self._name}: the gzip file is damaged: {cause}: copy or compress it again", field="source")


def recognised(stream: BinaryIO, name: str) -> Content:
    """Return the stream, unpacked if it is gzip. Raises InvalidRequest for other files that are no text."""
    head = _head_of(stream)
    if not head.startswith(GZIP):
        _require_text(head, name)
        return Content(cast("BinaryIO", _Rejoined(head, stream)), compressed=False)
    unpacked = _Unpacked(_Rejoined(head, stream), name)
    head = _head_of(unpacked)
    if head.startswith(GZIP):
        raise InvalidRequest(f"{name}: it is compressed twice with gzip: unpack it first (gzip -dc)", field="source")
    _require_text(head, f"{name} (unpacked)")
    return Content(cast("BinaryIO", _Rejoined(head, cast("BinaryIO", unpacked))), compressed=True)


def _head_of(stream: BinaryIO | _Unpacked) -> bytes:
    """Read the beginning: ``ENOUGH`` bytes, fewer if they cannot be one of the marks."""
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    head = b""
    while part := read(BLOCK):
        head += part
        if len(head) >= ENOUGH or not any(mark.startswith(head[: len(mark)]) for mark in (GZIP, *OTHERS)):
            break
    return head


def _require_text(head: bytes, name: str) -> None:
    found = next((found for mark, found in OTHERS.items() if head.startswith(mark)), None)
    if found is None:
        return
    what, next_step = WORKBOOK if found == ZIP and head[FIRST_NAME:].startswith(DOCUMENTS) else found
    raise InvalidRequest(f"{name}: it is {what}, not text: {next_step}", field="source")
