"""The input of a job: CSV, JSON lines or text, of any encoding, in any pieces."""

from __future__ import annotations

import csv
import gzip
import io
import json
from itertools import chain
from typing import Any

from rbim.bulk.input.file import RowFile, in_batches
from rbim.bulk.input.format import NotDone, write_rows
from rbim.bulk.input.rows import BadRow, Row, damage_of
from rbim.errors import InvalidRequest
from tests.fuzz.broken import require

WHAT = "the input of `rbim job`: CSV, JSON lines and text, encodings, byte order marks, quotes, gzip"
ORACLE = "the csv and json modules; the same rows in pieces, in batches, as gzip, and when written and read again"
INSTRUMENT = ["rbim"]
MOST = 800
KINDS = [None, "csv", "jsonl", "text"]
ENCODINGS = ["utf-8", "gb18030", "latin-1", "utf-8"]
WORDS = [
    *(
        b"group,account\n",
        b"account,group,user_name\r\n",
        b"g1,1001\n",
        b"\xef\xbb\xbf",
        b'"',
        b'""',
        b",",
        b";",
        b"\t",
        b"|",
        b"\r",
        b"\n",
    ),
    *(
        "群号,账号\n".encode(),
        "群号,账号\n".encode("gb18030"),
        b'{"group":"g1","account":"1001"}\n',
        b"1.38E+10",
        b"NULL",
        b"#N/A",
        b"\x00",
    ),
    *(
        b"\xff\xfe",
        b"\x1f\x8b",
        b"PK\x03\x04",
        b"\xe2\x80\xa8",
        b"\xe3\x80\x80",
        b"\xed\xa0\x80",
        b"\x0b",
        b"\x0c",
        b"\x85",
        b"=1+1",
        b"'",
    ),
]


def seeds() -> list[bytes]:
    """Return inputs of each kind; the first two bytes are options and pieces."""
    chinese = "群号,账号,备注\ng1,1001,你好\ng2,李雷,\n"
    return [
        b"\x00\x00group,account\ng1,1001\ng2,1002\n",
        b"\x00\x05account;group;user_name\r\n1001;g1;\r\n1002;g1;admin\r\n\r\n1003;;\r\n",
        b'\x00\x03\xef\xbb\xbfGroup, Account\n"g1","a ""b"" c"\n"g,1","x\ny"\n',
        b"\x00\x00" + chinese.encode(),
        b"\x04\x07" + chinese.encode("gb18030"),
        b"\x00\x00" + chinese.encode("gb18030"),
        b'\x02\x00{"group":"g1","account":"1001"}\n{"Account":7,"GROUP":"g2"}\n{"account":null}\n[]\n{\n',
        b"\x13\x00" + "1001\n1002\tunknown\tno answer\n\n 1003 \n　1004\n".encode(),
        b"\x10\x02account\n1001\n1002\n",
        b"\x10\x00" + b"1001\r1002\r",
        b"\x00\x00group\taccount\ng1\t1.38E+10\ng1\tNULL\ng1\t13800138000.0\n",
        b"\x20\x00group,account\ng1,1.38E+10\n",
        b'\x00\x00group,account\ng1,"x\ng2,1\n',
        b"\x00\x00" + b"\xff\xfeg\x00r\x00",
        b"\x00\x00PK\x03\x04aaaa",
    ]


class Pieces(io.RawIOBase):
    """A stream that gives its bytes in pieces, as a pipe does."""

    def __init__(self, content: bytes, size: int) -> None:
        self._content = content
        self._size = size

    def read1(self, _: int) -> bytes:
        part, self._content = self._content[: self._size], self._content[self._size :]
        return part

    read = read1  # type: ignore[assignment]


def check(data: bytes) -> None:
    """Read one input in several ways."""
    if len(data) < 2:
        return
    kind, encoding = KINDS[data[0] & 3], ENCODINGS[data[0] >> 2 & 3]
    options: dict[str, Any] = {"kind": kind, "encoding": encoding, "allow_damaged": bool(data[0] & 32)}
    if data[0] & 16:
        options["group"] = "g"
    content = data[2:]
    first = _read(io.BytesIO(content), options)
    for size in (1 + data[1] % 64, 1):
        require(_read(Pieces(content, size), options) == first, "pieces change the rows", first)
    packed = _read(io.BytesIO(gzip.compress(content, mtime=0)), options)
    if not content.startswith(b"\x1f\x8b") and isinstance(first, list):
        require(packed == first, "gzip changes the rows", first, packed)
    if not isinstance(first, list):
        require(first.isprintable(), "a message that is not printable", first)
        return
    with RowFile(io.BytesIO(content), **options) as rows:
        batches = list(chain.from_iterable(each.rows() for each in in_batches(rows, 3)))
        file_format = rows.format
    require(batches == first, "batches have other rows", first, batches)
    for row in first:
        if isinstance(row, BadRow):
            require(1 <= row.line <= content.count(b"\n") + content.count(b"\r") + 1, "a line that is none", row)
            require(row.raw.isprintable() and row.reason.isprintable() and len(row.raw) <= 200, "an excerpt", row)
        else:
            values = [each for each in (row.group, row.account, row.user_name) if each is not None]
            require(
                all(each and each == each.strip() and "\n" not in each and "\0" not in each for each in values),
                "a value",
                row,
            )
            damaged = [each for each in values if damage_of(each)]
            require(
                options["allow_damaged"] or not damaged or row.group == "g" == options.get("group"), "a damaged value", row
            )
    _check_csv(content, file_format, first, options)
    _check_json(content, file_format, first)
    _check_written(file_format, first, options)


def _read(stream: Any, options: dict[str, Any]) -> list[Row | BadRow] | str:
    try:
        with RowFile(stream, **options) as rows:
            return list(rows)
    except InvalidRequest as error:
        return str(error)


def _check_csv(content: bytes, file_format: Any, found: list[Row | BadRow], options: dict[str, Any]) -> None:
    """Compare with the csv module, where the file is plain: the columns are group and account, and all can be decoded."""
    if file_format.kind != "csv":
        return
    try:
        text = content.decode(file_format.encoding).removeprefix("\ufeff")
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=file_format.delimiter, strict=True))
    except (UnicodeError, csv.Error):
        return
    lines = [line for line in lines if any(cell.strip(" \t") for cell in line)]
    if not lines or not text.isascii() or any(ord(each) < 32 and each not in "\r\n\t" for each in text) or "\x7f" in text:
        return
    header = [cell.strip().lower() for cell in lines[0]]
    if header != ["group", "account"] or options.get("group") or any(len(line) != 2 for line in lines):
        return
    if any(any(each in cell for each in "\r\n\t") for line in lines for cell in line):
        return
    expected = []
    for group, account in ((line[0].strip(), line[1].strip()) for line in lines[1:]):
        good = group and account and (options["allow_damaged"] or not (damage_of(group) or damage_of(account)))
        expected.append(Row(group, account) if good else None)
    require([each if isinstance(each, Row) else None for each in found] == expected, "csv reads other rows", found, expected)


def _check_json(content: bytes, file_format: Any, found: list[Row | BadRow]) -> None:
    """Compare with the json module, line by line."""
    if file_format.kind != "jsonl" or file_format.group is not None or b"\r" in content:
        return
    try:
        text = content.decode(file_format.encoding).removeprefix("\ufeff")
    except UnicodeError:
        return
    expected = []
    for line in text.split("\n"):
        if not line.strip().strip("\ufeff").strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict) and document.keys() == {"group", "account"}:
            values = [document["group"], document["account"]]
            plain = all(
                isinstance(each, str) and each.isalnum() and each.isascii() and not damage_of(each) for each in values
            )
            if plain and "NaN" not in line and "Infinity" not in line:
                expected.append(Row(*values))
    good = iter(found)
    require(all(each in good for each in expected), "json reads other rows", found, expected)


def _check_written(file_format: Any, found: list[Row | BadRow], options: dict[str, Any]) -> None:
    """Write the rows in the input's format, and read them again."""
    rows = [each for each in found if isinstance(each, Row)]
    stream = io.BytesIO()
    try:
        write_rows(stream, file_format, [NotDone(*row, "failed", "=a reason, \u4f60\n") for row in rows])
    except InvalidRequest as error:
        require(
            str(error).partition(":")[0] in {"account", "group", "user_name"}, "rows that were read cannot be written", error
        )
        return
    if rows:
        names = {f"{each}_column": getattr(file_format, f"{each}_column") for each in ("group", "account", "user_name")}
        given = {name: value for name, value in names.items() if value is not None and file_format.kind != "text"}
        if file_format.group is not None:
            given.pop("group_column", None)
        again = _read(io.BytesIO(stream.getvalue()), {**options, **given, "kind": file_format.kind, "delimiter": None})
        require(again == rows, "rows that were written are read as others", rows, again, stream.getvalue())
