"""What an input is, by its first bytes, whatever its name: lines of text, or a workbook; anything else is refused."""

from __future__ import annotations

import codecs
import re
import zlib
from functools import reduce
from gzip import BadGzipFile, GzipFile
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast
from zipfile import BadZipFile, ZipFile

from rbim._support.text import missing_extra
from rbim.bulk.input.rows import cleaned, excerpt_of
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CHINESE", "MAX_LINE", "UTF_16", "Sheet", "codec", "encoding_of", "lines_of", "not_decoded", "opened"]
__all__ += ["require_text", "sheet_of"]

CHINESE = "gb18030"
UTF_16 = "utf-16"

MAX_LINE = 1 << 20
"""Characters of a line, at most, without its end."""

HEAD = 1 << 16
"""Bytes by which an input is recognised, at most."""

BLOCK = 1 << 17

MAX_CELLS = 30_000_000
"""Cells of a sheet, empty ones included, that are read into the memory; an xls has 17 million at most."""

AS_CSV = "save the sheet as CSV UTF-8 in the spreadsheet program (Excel: Save As, CSV UTF-8)"
UNPACK = "unpack it first"
EXPORT = "export the table as CSV"

SAVE_AGAIN = "open it in a spreadsheet program and save it as CSV or xlsx"
COPY = "copy the accounts into a text file"

GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # .xls, and other documents of Office

NO_ROWS = [
    (re.compile(rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?\s*(?:" + begin + rb")", re.DOTALL), what, next_step)
    for begin, what, next_step in [
        (rb"PK\x05\x06", "an empty zip archive", "choose another file"),
        (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
        (rb"Rar!\x1a\x07", "a rar archive", UNPACK),
        (rb"\xfd7zXZ", "compressed with xz", "unpack it first (xz -dc)"),
        (rb"BZh91AY&SY", "compressed with bzip2", "unpack it first (bzip2 -dc)"),
        (rb"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first (zstd -dc)"),
        (rb"%PDF-", "a PDF document", EXPORT),
        (rb"SQLite format 3", "an SQLite database", EXPORT),
        (rb"\x89PNG|\xff\xd8\xff", "a picture", COPY),
        (rb"PAR1", "a Parquet file", EXPORT),
        (rb"(?i:<\?xml.*?<(?:\w+:)?workbook)", "an XML spreadsheet", SAVE_AGAIN),
        (rb"(?i:<(?:!doctype|!--|html|head|body|meta|table|div|style))", "HTML, not a table", SAVE_AGAIN),
        (rb"<[?\w]", "XML, not a table", EXPORT),
        (rb"(?i:MIME-Version:)", "a web page (MHTML), not a table", SAVE_AGAIN),
        (rb"\{\\rtf", "an RTF document", "save it as plain text"),
        (rb"(?i:BEGIN:VCARD)", "a list of contacts (vCard)", EXPORT),
        (rb"ID;P", "a SYLK spreadsheet", SAVE_AGAIN),
        (rb"(?i:(?:INSERT INTO|CREATE TABLE|DROP TABLE|SELECT) |-- \S+ dump|PGDMP)", "SQL", EXPORT),
        (rb"#!/|%!PS", "a program", "choose another file"),
    ]
]
"""Beginnings of files that have no rows, without the zeros of UTF-16: what such a file is, and the next step."""

OF_ERROR = re.compile(rb'(<(?:\w+:)?c\s[^>]*\bt=")e(")')
OF_ERROR_IN_ODS = re.compile(rb' office:string-value=""(?= calcext:value-type="error")')
_CODE = rb"[\x00\x07\x0f\x17\x1d\x24\x2a]"
OF_ERROR_IN_XLS = re.compile(
    rb"\x05\x02\x08\x00.{6}%b\x01|\x06\x00.{8}\x02\x00%b\x00{3}\xff\xff" % (_CODE, _CODE), re.DOTALL
)
"""Cells with an error: what is changed in them to make them texts; in xls the records of values, and of formulas."""

COMMON = re.compile(rb"[\xb0-\xd7][\xa1-\xfe]")
"""The more common Chinese characters, in GB18030."""

NOT_DECODED = re.compile("[\udc80-\udcff]")
"""A byte that is not of the encoding, as ``surrogateescape`` gives it."""


def _refusal(what: str, next_step: str) -> InvalidRequest:
    """Return the error about an input that is something else."""
    return InvalidRequest(f"this is {what}: {next_step}", field="source")


# ------------------------------------------------------------------------------ bytes


def opened(read: Callable[[int], bytes]) -> tuple[bytes, Callable[[int], bytes]]:
    """Return the first bytes, and a function that reads all of them from the beginning, unpacked if they are gzip.

    Raises InvalidRequest for what is neither text nor a workbook.
    """
    head, rest = _from_beginning(read)
    packed = head.startswith(GZIP)
    if packed:
        head, rest = _from_beginning(_unpacked(rest))
        if head.startswith(GZIP):
            raise _refusal("compressed twice with gzip", "unpack it first (gzip -dc)")
    begin = head.replace(b"\0", b"")
    for form, what, next_step in NO_ROWS:
        if form.match(begin):
            raise _refusal(f"{what} in a gzip file" if packed else what, next_step)
    return head, rest


def _from_beginning(read: Callable[[int], bytes]) -> tuple[bytes, Callable[[int], bytes]]:
    head = b""
    while len(head) < HEAD and (part := read(HEAD)):
        head += part
    left = [head]
    return head, lambda size: left.pop() if left else read(size)


def _unpacked(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    class Packed:
        """The file that GzipFile asks for."""

        rest = b""

        def read(self, size: int) -> bytes:
            part = self.rest or read(size)
            self.rest = part[size:]
            return part[:size]

    packed = GzipFile(fileobj=cast("BinaryIO", Packed()), mode="rb")

    def unpack(size: int) -> bytes:
        try:
            return packed.read1(size)
        except EOFError as error:
            raise _refusal("a gzip file that is cut off", "copy or compress it again") from error
        except (BadGzipFile, zlib.error) as error:
            raise _refusal(f"a gzip file that is damaged ({error})", "copy or compress it again") from error

    return unpack


class Sheet(NamedTuple):
    """The cells of a sheet from its first row on, as texts, but for long numbers; ``of``: the sheets of its workbook."""

    name: str
    of: int
    rows: list[list[str | float]]


def sheet_of(head: bytes, read: Callable[[int], bytes], sheet: str | None) -> Sheet | None:
    """Return a sheet of a workbook, or None if it is no workbook.

    ``sheet``: its name (default: the first one). Raises InvalidRequest.
    """
    if not head.startswith((ZIP, OLE)):
        return None
    data = b"".join(iter(lambda: read(BLOCK), b""))
    if head.startswith(ZIP):
        data = _checked_zip(data)
    elif OF_ERROR_IN_XLS.search(data):
        raise _refusal("an xls workbook with errors in cells (#N/A, #REF!)", "correct them, or save it as xlsx")
    try:
        from python_calamine import CalamineWorkbook, PasswordError
    except ModuleNotFoundError:
        needed = missing_extra("a spreadsheet", "python-calamine", "excel")
        raise InvalidRequest(f"{needed}; or {AS_CSV}", field="source") from None
    try:
        book = CalamineWorkbook.from_filelike(BytesIO(data))
        names = book.sheet_names
        chosen = sheet if sheet is not None else names[0]
        found = book.get_sheet_by_name(chosen).to_python(skip_empty_area=False) if chosen in names else None
    except PasswordError:
        raise _refusal("a workbook with a password", "save it without one") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # the library's, no Exception
            raise
        raise _refusal(f"an Office document that has no readable sheet ({error})", AS_CSV) from None
    if found is None:
        among = ", ".join(map(repr, names))
        raise InvalidRequest(f"no sheet {chosen!r} among {among}: name one with --sheet", field="sheet")
    return Sheet(chosen, len(names), [[_shown(cell) for cell in row] for row in cast("list[list[Any]]", found)])


def _checked_zip(data: bytes) -> bytes:
    """Return a workbook whose errors are texts; the library reads them as empty cells.

    Raises InvalidRequest if a zip file is no workbook, or if one of its sheets is too large for the memory.
    """
    errors: dict[str, bytes] = {}
    try:
        with ZipFile(BytesIO(data)) as packed:
            inside = packed.namelist()
            if not {"xl/workbook.xml", "content.xml"}.intersection(inside):
                word = any(each.startswith("word/") for each in inside)
                binary = "xl/workbook.bin" in inside
                what = "a Word document" if word else "a binary workbook (xlsb)" if binary else "a zip archive"
                raise _refusal(what, EXPORT if word else SAVE_AGAIN if binary else UNPACK)
            for sheet in inside:
                if sheet != "content.xml" and not re.fullmatch(r"xl/worksheets/[^/]+\.xml", sheet):
                    continue
                xml = packed.read(sheet)
                rows, columns = _last_cell(xml)
                if rows * columns > MAX_CELLS:
                    what = f"a workbook with a sheet of {rows:,} rows and {columns:,} columns"
                    raise _refusal(what, "delete what is far from the table, or save as CSV")
                text = OF_ERROR.sub(rb"\1str\2", OF_ERROR_IN_ODS.sub(b"", xml))
                if text != xml:
                    errors[sheet] = text
            if not errors:
                return data
            changed = BytesIO()
            with ZipFile(changed, "w") as target:
                for each in inside:
                    target.writestr(each, errors.get(each) or packed.read(each))
    except (BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise _refusal("a zip file that is cut off or damaged", "copy it again") from None
    return changed.getvalue()


def _last_cell(xml: bytes) -> tuple[int, int]:
    """Return the rows and columns up to the last cell with content, or a little more; in ods those of the largest sheet."""
    found = re.search(rb'<dimension ref="[A-Z]+[0-9]+:([A-Z]+)([0-9]+)"', xml[:4096])
    if found is not None:
        return int(found[2]), reduce(lambda n, letter: n * 26 + letter - 64, found[1], 0)
    sizes = [(0, 0)]
    for table in xml.split(b"<table:table ")[1:]:
        filled = table[: max(0, table.rfind(b"<text:p"))]
        rows = filled.count(b"<table:table-row") + sum(map(int, re.findall(rb'number-rows-repeated="([0-9]+)"', filled)))
        gaps = re.findall(rb'-cell [^>]*number-columns-repeated="([0-9]+)"[^>]*>(?!</table:table-row>)', filled)
        sizes.append((rows, max(map(int, gaps), default=0) + 1))
    return max(sizes, key=lambda size: size[0] * size[1])


def _shown(cell: Any) -> str | float:
    """Return a cell as a person sees it. A number with more digits than a spreadsheet keeps stays one: no account."""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, (int, float)):
        if abs(cell) >= 1e15:  # noqa: PLR2004  # 15 digits are kept
            return float(cell)
        return repr(cell).removesuffix(".0")
    return str(cell)


# ------------------------------------------------------------------------------ text


def codec(name: str | None) -> str:
    """Return Python's name of an encoding, by default UTF-8. Raises InvalidRequest for one that is not read."""
    try:
        found = codecs.lookup("utf-8" if name is None else name).name.removesuffix("-sig")
    except (LookupError, TypeError, ValueError):
        found = ""
    if found not in {"utf-8", "gbk", "gb2312", CHINESE}:
        raise InvalidRequest(
            f"encoding: {name!r} is not read: use utf-8 or {CHINESE}, or convert the input first (iconv -t utf-8); UTF-16 "
            "that begins with its byte order mark is read without a flag",
            field="encoding",
        )
    return found if found == "utf-8" else CHINESE  # of which the other ones are parts


def encoding_of(head: bytes, encoding: str) -> str:
    """Return the encoding of an input, which is UTF-16 if it has its mark. Raises InvalidRequest."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return UTF_16
    even, odd = head[:16:2], head[1:16:2]
    if len(odd) > 1 and any(not any(each) and all(other) for each, other in ((even, odd), (odd, even))):
        raise InvalidRequest(
            "the input is UTF-16 without its mark: convert it (iconv -f utf-16le -t utf-8), or save it as UTF-8",
            field="encoding",
        )
    if head.startswith(codecs.BOM_UTF8) and encoding != "utf-8":
        raise InvalidRequest(
            f"the input begins with the byte order mark of UTF-8, but {encoding} was requested (--encoding)",
            field="encoding",
        )
    return encoding


def lines_of(read: Callable[[int], bytes], encoding: str) -> Iterator[str]:
    r"""Yield lines with their ends (``\n``, ``\r\n``, ``\r``); of one that is too long only the beginning is kept.

    Bytes that are not of the encoding are kept as surrogates (in UTF-16: as U+FFFD).
    """
    decoder = codecs.getincrementaldecoder(encoding)("replace" if encoding == UTF_16 else "surrogateescape")
    rest = ""
    while True:
        block = read(BLOCK)
        lines = list(StringIO(rest + decoder.decode(block, not block), newline=""))
        if not block:
            yield from lines
            return
        rest = lines.pop() if lines else ""  # it may go on, or its end may be the first half of one
        yield from lines
        if len(rest) > MAX_LINE + 2:
            rest = rest[: MAX_LINE + 1] + rest[-1:]


def not_decoded(text: str, encoding: str) -> str | None:
    """Return the reason why a text cannot be used, if it has bytes that are not of the encoding, and a proposal."""
    found = NOT_DECODED.search(text)
    if found is None:
        return None
    hint = f" (it seems to be {CHINESE}: --encoding {CHINESE})" if _as_chinese(text, encoding) else ""
    byte = len(text[: found.start()].encode(encoding, "surrogateescape")) + 1
    return f"not {encoding} at byte {byte}{hint}"


def _as_chinese(text: str, encoding: str) -> str:
    """Return the bytes of a text as GB18030 if half of what is not ASCII are common characters, else an empty text."""
    data = text.encode(encoding, "surrogateescape")
    try:
        found = data.decode(CHINESE)
    except UnicodeError:
        return ""
    other = sum(not character.isascii() for character in found)
    common = other and encoding != CHINESE and 2 * len(COMMON.findall(data)) >= other
    return found if common and cleaned(found).isprintable() else ""


def require_text(lines: list[str], encoding: str) -> None:
    """Raise InvalidRequest if the first lines, of which the first is not blank, are not text in the encoding."""
    first, second = cleaned(lines[0]), cleaned("".join(lines[1:2]))
    if chinese := _as_chinese(first, encoding) if NOT_DECODED.search(first) else "":
        row = _as_chinese(second, encoding)
        raise InvalidRequest(
            f"the first line is not {encoding}. As {CHINESE} it is {excerpt_of(chinese)!r}"
            + (f", and the next line is {excerpt_of(row)!r}" if row else "")
            + f". If this is right: --encoding {CHINESE}",
            field="encoding",
        )
    if NOT_DECODED.search(first) or re.search(r"[\0-\x08\x0e-\x1f]", first):
        raise InvalidRequest(
            f"the first line is not {encoding}: the input is no text, or in another encoding: convert it to UTF-8",
            field="encoding",
        )
