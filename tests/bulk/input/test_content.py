"""Inputs by their content: compressed ones, files that are no text, other encodings, damaged cells, Chinese headers."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
import sqlite3
import subprocess
import sys
import tracemalloc
import zipfile
from contextlib import closing

import pytest
from hypothesis import given, strategies as st

from rbim.bulk.input.file import RowFile
from rbim.bulk.input.rows import BadRow, Row, damage_of, may_be_damaged
from rbim.errors import InvalidRequest

MEBIBYTE = 1 << 20
BODY = b"group,account\n" + b"".join(b"g,%d\n" % number for number in range(5000))
ROWS = [Row("g", str(number)) for number in range(5000)]


class Trickle(io.RawIOBase):
    """A stream that gives one byte, then two, then three, and so on, as a slow pipe does."""

    def __init__(self, body):
        self.body, self.size = body, 0

    def read(self, _=-1):
        self.size += 1
        part, self.body = self.body[: self.size], self.body[self.size :]
        return part


def refused(body, **options):
    """Return the message about a body, which is the same for a file and for a slow stream."""
    messages = set()
    for stream in (io.BytesIO(body), Trickle(body)):
        with pytest.raises(InvalidRequest) as caught:
            list(RowFile(stream, **options))
        messages.add(str(caught.value))
    (message,) = messages
    return message


def reasons(rows):
    return {row.line: row.reason for row in rows if isinstance(row, BadRow)}


# --- compressed


def test_gzip_is_read_whatever_its_name_and_also_from_a_slow_pipe(tmp_path):
    made = subprocess.run(["gzip", "-c"], input=BODY, capture_output=True, check=True).stdout
    for name, kind in (("m.csv.gz", "csv"), ("m.csv", "csv"), ("m.data", "csv"), ("M.TSV.GZ", "csv")):
        (tmp_path / name).write_bytes(made)
        with RowFile(tmp_path / name) as rows:
            assert (list(rows), rows.format.kind) == (ROWS, kind)
    assert list(RowFile(Trickle(made))) == ROWS
    assert list(RowFile(io.BytesIO(made + made.replace(BODY, b"")))) == [*ROWS, Row("group", "account"), *ROWS]
    (tmp_path / "m.txt.gz").write_bytes(gzip.compress(b"1,2\n"))
    assert list(RowFile(tmp_path / "m.txt.gz", group="g")) == [Row("g", "1,2")]
    (tmp_path / "m.gz").write_bytes(b"account,group\na,g\n")
    assert list(RowFile(tmp_path / "m.gz")) == [Row("g", "a")]


def test_gzip_comes_through_standard_input():
    program = "import sys; from rbim.bulk import RowFile\nprint(sum(1 for _ in RowFile(sys.stdin.buffer)))\n"
    done = subprocess.run([sys.executable, "-c", program], input=gzip.compress(BODY), capture_output=True, check=True)
    assert done.stdout.split() == [b"5000"]


def test_gzip_that_is_damaged_or_cut_off_is_one_clear_error():
    body = b"group,account\n" + b"".join(b"g,%d\n" % (number * 7919 % 99991) for number in range(20_000))
    whole = gzip.compress(body)
    assert "cut off" in refused(whole[: len(whole) // 2])
    assert "cut off" in refused(whole[:-4])
    assert "damaged" in refused(whole[:3000] + bytes(40) + whole[3040:])
    assert "damaged" in refused(whole[:-8] + bytes(4) + whole[-4:])  # the checksum
    assert "damaged" in refused(whole + b"more")
    assert "twice" in refused(gzip.compress(whole))


def test_a_gzip_bomb_takes_little_memory():
    bomb = gzip.compress(b"group,account\ng," + b"x" * (64 * MEBIBYTE), 9)
    assert len(bomb) < MEBIBYTE // 8
    tracemalloc.start()
    rows = list(RowFile(io.BytesIO(bomb)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reasons(rows) == {2: "a line longer than 1 MiB"}
    assert peak < 8 * MEBIBYTE


# --- no text


def zipped(*names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, "group,account\n" * 20)
    return out.getvalue()


def database(tmp_path):
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute("CREATE TABLE x (y)")
    return (tmp_path / "x.db").read_bytes()


def test_files_that_are_no_text_are_named_with_the_next_step_and_no_encoding_is_proposed(tmp_path):
    found = {
        "Excel workbook (.xlsx)": (zipped("[Content_Types].xml", "xl/workbook.xml"), "CSV UTF-8"),
        "another spreadsheet": (zipped("mimetype", "content.xml"), "CSV UTF-8"),
        "a zip archive": (zipped("members.csv"), "unpack"),
        "an empty zip archive": (zipped(), "another file"),
        "(.xls)": (bytes.fromhex("D0CF11E0A1B11AE1") + bytes(500), "CSV UTF-8"),
        "7z": (bytes.fromhex("377ABCAF271C0004") + os.urandom(500), "unpack"),
        "rar": (b"Rar!\x1a\x07\x01\x00" + os.urandom(500), "unpack"),
        "xz": (lzma.compress(BODY), "xz -dc"),
        "bzip2": (bz2.compress(BODY), "bzip2 -dc"),
        "zstd": (bytes.fromhex("28B52FFD") + os.urandom(500), "zstd -dc"),
        "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "CSV"),
        "SQLite": (database(tmp_path), "CSV"),
    }
    for what, (body, next_step) in found.items():
        for made in (body, gzip.compress(body)):
            for options in ({}, {"group": "g"}, {"group": "g", "kind": "text"}, {"encoding": "gb18030"}):
                message = refused(made, **options)
                assert what in message
                assert next_step in message
                assert "--encoding" not in message


NOISE = random.Random(1).randbytes(2000)


@pytest.mark.parametrize("body", [bytes(range(256)) * 4, b"\x89PNG\r\n\x1a\n" + bytes(200), NOISE])
def test_other_binary_files_are_no_chinese_text(body):
    for options in ({}, {"kind": "csv", "group": "g", "account_column": "a"}):
        assert "gb18030" not in refused(body, **options)


def test_an_empty_input_is_an_error_and_one_with_a_header_alone_is_none(tmp_path):
    for body in (b"", b"\n \r\n\t\n", b"\xef\xbb\xbf", gzip.compress(b"")):
        for options in ({}, {"kind": "text", "group": "g"}, {"kind": "jsonl"}):
            assert "the input is empty" in refused(body, **options)
    (tmp_path / "m.csv").touch()
    with pytest.raises(InvalidRequest, match=r"m\.csv: the input is empty"):
        list(RowFile(tmp_path / "m.csv"))
    assert list(RowFile(io.BytesIO(b"group,account\n"))) == []


# --- encodings


def test_chinese_text_in_gb18030_is_recognised_and_shown_as_it_would_read():
    body = "群,账号,姓名\r\n研发一群,zhang3,张三\r\n".encode("gb18030")
    message = refused(body)
    assert "--encoding gb18030" in message
    assert "'群,账号,姓名'" in message
    assert "'研发一群,zhang3,张三'" in message
    assert list(RowFile(io.BytesIO(body), encoding="gb18030")) == [Row("研发一群", "zhang3")]


def test_chinese_rows_below_an_ascii_header_name_the_encoding_too():
    rows = list(RowFile(io.BytesIO("group,account,name\ng,1,张三\ng,2,\n".encode("gbk"))))
    assert rows[1] == Row("g", "2")
    assert "--encoding gb18030" in reasons(rows)[2]
    (row,) = RowFile(io.BytesIO("王五\n".encode("gbk")), kind="text", group="g")
    assert "--encoding gb18030" in row.reason


def test_text_of_western_encodings_and_broken_utf_8_is_not_taken_for_chinese():
    for line in ("Müller,1", "café,2", "naïve Ünïcôde,ÀÉÎÕÜ"):
        (row,) = RowFile(io.BytesIO(b"account,group\n" + line.encode("latin-1")), group=None)
        assert "gb18030" not in row.reason
        assert "gb18030" not in refused(line.encode("latin-1"), account_column="x", kind="csv")
    (row,) = RowFile(io.BytesIO("group,account\n乙组".encode() + b"\xe4\xbd,1\n"))
    assert row.reason.startswith("not utf-8 at byte 7")
    assert "gb18030" not in row.reason


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_recognised_also_without_its_mark(encoding):
    message = refused("group,account\ng,1\n".encode(encoding))
    assert "iconv -f utf-16" in message
    assert "gb18030" not in message


# --- damaged cells

DAMAGED = ["1.38123E+10", "1.38E+10", "1E+10", "1.380013e+10", "1,38E+10", "13800138000.0", "13800138000.00"]
DAMAGED += ["1.3800138E10", "1.380013e10", "1.0E7", "-1.38E12", "1.5e100"]
DAMAGED += ["#N/A", "#REF!", "#VALUE!", "#NAME?", "#DIV/0!", "#NUM!", "#NULL!", "#SPILL!", "########"]
DAMAGED += ["NULL", "null", "(null)", r"\N", "NaN", "<NA>", "None", "Null", "N/A"]
SOUND = [
    "1E5",
    "1e10",
    "1.5E3",
    "1.5E6",
    "1.38E010",
    "1.2.3E10",
    "v1.2E10",
    "E10",
    "E+10",
    "u1.0",
    "1.0.0",
    "v.01",
    "a#N/A",
    "#1",
    "#",
    "NULLS",
    "none",
    "nan",
    "Nannan",
    "n/a",
    "N/A1",
    "nULL",
    "13800138000",
]


@pytest.mark.parametrize("value", DAMAGED)
def test_damaged_cells_are_bad_rows_unless_they_are_allowed(value):
    made = io.StringIO()
    csv.writer(made).writerows([("group", "account", "user_name", "note"), ("g", value, "", ""), (value, "1", "", "")])
    csv.writer(made).writerows([("g", "2", value, ""), ("g", "3", "", value)])
    texts = {"csv": made.getvalue(), "jsonl": json.dumps({"group": "g", "account": value}), "text": value}
    for kind, text in texts.items():
        options = {"kind": kind, "group": "g" if kind == "text" else None}
        rows = list(RowFile(io.BytesIO(text.encode()), **options))
        found = reasons(rows)
        assert list(found) == ([2, 3, 4] if kind == "csv" else [1])
        assert [reason.split(":")[0] for reason in found.values()] == ["account", "group", "user name"][: len(found)]
        assert all(repr(value) in reason and "--allow-damaged" in reason for reason in found.values())
        assert [row for row in rows if isinstance(row, Row)] == ([Row("g", "3")] if kind == "csv" else [])
        allowed = list(RowFile(io.BytesIO(text.encode()), allow_damaged=True, **options))
        assert allowed[0] == Row("g", value)
        assert not reasons(allowed)


@pytest.mark.parametrize("value", SOUND)
def test_accounts_that_only_resemble_damaged_cells_are_accounts(value):
    assert list(RowFile(io.BytesIO(f"group,account\ng,{value}\n".encode()))) == [Row("g", value)]
    assert list(RowFile(io.BytesIO(value.encode()), kind="text", group="g")) == [Row("g", value)]


@given(st.from_regex(r"[-+0-9.,eEa#N/\\A!NULnul()<>]{1,12}", fullmatch=True) | st.sampled_from(DAMAGED + SOUND))
def test_the_quick_look_at_many_lines_misses_no_damaged_value(value):
    assert damage_of(value) is None or may_be_damaged(["x,1\n", f'g,"{value}",x\n'])


# --- limits of cells and of bad rows


def test_a_cell_may_be_as_long_as_a_line():
    for size in ((1 << 17) - 1, (1 << 17) + 1, MEBIBYTE - 8):
        for note in ("x" * size, '"' + "x" * (size - 2) + '"'):
            body = f"group,account,note\ng,1,{note}\ng,2,\n".encode()
            assert list(RowFile(io.BytesIO(body))) == [Row("g", "1"), Row("g", "2")]
    assert list(RowFile(io.BytesIO(b"group,account," + b"x" * (1 << 18) + b"\ng,1,2\n"))) == [Row("g", "1")]


def test_the_limit_of_the_csv_module_is_never_lowered():
    before = csv.field_size_limit(1 << 30)
    try:
        list(RowFile(io.BytesIO(BODY)))
        assert csv.field_size_limit() == 1 << 30
    finally:
        csv.field_size_limit(before)


def with_bad(good, bad):
    return io.BytesIO(b"group,account\n" + b"g,1\n" * good + b"g,\n" * bad)


@pytest.mark.parametrize(
    ("limit", "good", "bad"), [(0, 5, 0), (2, 5, 2), (0.5, 2, 2), (1.0, 0, 3), (0.0, 3, 0), (None, 0, 9)]
)
def test_as_many_bad_rows_as_allowed_are_read(limit, good, bad):
    assert len(list(RowFile(with_bad(good, bad), max_bad=limit))) == good + bad


@pytest.mark.parametrize(
    ("limit", "good", "bad", "message"),
    [
        (0, 5, 1, "more than 0 rows are invalid, the first 1 among 6 rows"),
        (2, 5, 9, "more than 2 rows are invalid, the first 3 among 8 rows"),
        (0.25, 2, 2, "2 of 4 rows are invalid, more than 0.25 of all"),
        (0.0, 3, 1, "1 of 4 rows are invalid, more than 0 of all"),
    ],
)
def test_more_bad_rows_than_allowed_are_an_error(limit, good, bad, message):
    with pytest.raises(InvalidRequest) as caught:
        list(RowFile(with_bad(good, bad), max_bad=limit))
    assert message in str(caught.value)
    assert caught.value.field == "max_bad"


@pytest.mark.parametrize(
    "options", [{"max_bad": -1}, {"max_bad": 1.5}, {"max_bad": True}, {"max_bad": "1"}, {"allow_damaged": 1}]
)
def test_wrong_limits_are_refused(options):
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        RowFile(io.BytesIO(b""), **options)


# --- Chinese headers


@pytest.mark.parametrize("group", ["群", "群组", "群号", "群ID", "群 id", "群组ID", " 群组_ID ", "Group"])
@pytest.mark.parametrize("account", ["账号", "帐号", "手机号", "手机", "用户", "电话", "用户ID", "成员账号", " ACCOUNT "])
def test_usual_chinese_headers_are_found(group, account):
    body = f"姓名,{account},备注,{group}\n张三,1,x,g\n".encode()
    rows = RowFile(io.BytesIO(body))
    assert list(rows) == [Row("g", "1")]
    assert rows.format.columns() == [group.strip(), account.strip()]


def test_an_acting_account_in_chinese_is_found_and_the_name_of_a_person_is_none():
    body = "群号;账号;操作账号;操作人\ng;1;boss;张三\n".encode()
    assert list(RowFile(io.BytesIO(body))) == [Row("g", "1", "boss")]


def test_a_list_with_a_chinese_heading_is_no_account_of_that_name():
    for options in ({}, {"kind": "csv"}):
        assert list(RowFile(io.BytesIO("手机号\n1\n2\n".encode()), group="g", **options)) == [Row("g", "1"), Row("g", "2")]


def test_the_default_names_and_the_requested_ones_come_before_chinese_ones():
    body = "群,group,手机号,account\nx,g,y,1\n".encode()
    assert list(RowFile(io.BytesIO(body))) == [Row("g", "1")]
    assert list(RowFile(io.BytesIO(body), group_column="群", account_column="手机号")) == [Row("x", "y")]


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        ("群,账号,手机号", ["2 columns 'account', namely '账号', '手机号'", "--account-column"]),
        ("群,群号,账号", ["2 columns 'group', namely '群', '群号'", "--group-column"]),
        ("群,账号,操作账号,执行账号", ["2 columns 'user_name'", "--user-name-column"]),
    ],
)
def test_several_columns_that_fit_are_an_error_that_names_the_flag(header, parts):
    message = refused(f"{header}\n1,2,3,4\n".encode())
    assert [part for part in parts if part not in message] == []
