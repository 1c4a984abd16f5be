"""Input of jobs: what other programs write is read back, any bytes are rows or one clear error, what is left is written."""

import csv
import gzip
import io
import json
import re
import tracemalloc
import unicodedata
import zipfile
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import patch

import pytest
from attrs import asdict
from hypothesis import example, given, settings, strategies as st

from helpers.tables import each_row
from rbim.bulk.input.content import GZIP, NO_ROWS, OLE, ZIP, codec
from rbim.bulk.input.file import RowFile, in_batches, source_of
from rbim.bulk.input.rows import BadRow, Format, Row, cleaned, unescaped
from rbim.bulk.report.rows import ReportRow, write_rows
from rbim.errors import InvalidRequest

MEBIBYTE = 1 << 20


class Trickle(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a slow pipe does."""

    def __init__(self, body, sizes=(1, 2, 3, 5, 8)):
        self.body, self.sizes, self.at = body, list(sizes), 0

    def read(self, _=-1):
        size = self.sizes[self.at % len(self.sizes)]
        self.at += 1
        part, self.body = self.body[:size], self.body[size:]
        return part


def encoded(body):
    return body.encode() if isinstance(body, str) else body


def read(body, **options):
    """Return the rows of a body, read at once, in small parts and in batches, which must not differ."""
    body = encoded(body)
    rows = list(RowFile(io.BytesIO(body), **options))
    assert list(RowFile(Trickle(body), **options)) == rows
    with patch("rbim.bulk.input.table.BLOCK", 2), patch("rbim.bulk.input.file.BATCH", 3):
        batches = [list(batch.rows()) for batch in in_batches(RowFile(io.BytesIO(body), **options))]
    assert list(chain.from_iterable(batches)) == rows
    assert max(map(len, batches), default=0) <= 4
    return rows


def refused(body, **options):
    """Return the text of the error that a body is refused with, at once and in small parts."""
    texts = set()
    for source in (io.BytesIO(encoded(body)), Trickle(encoded(body)), Trickle(encoded(body), [1])):
        with pytest.raises(InvalidRequest) as caught:
            list(RowFile(source, **options))
        texts.add(str(caught.value))
    (text,) = texts
    return text


def bad(rows):
    return {row.line: row.reason for row in rows if isinstance(row, BadRow)}


def good(rows):
    return [row for row in rows if isinstance(row, Row)]


# --- made on another road, read back

# texts that are cells: no control characters, no white space around, something there
PRINTABLE = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufeff")
CELL = st.text(PRINTABLE, min_size=1, max_size=12).map(cleaned).filter(lambda cell: cell and unescaped(cell) == cell)
NOTE = st.text(st.sampled_from('ab\n\r",; \t|'), max_size=12)
SHAPES = st.sampled_from([("utf-8", False), ("utf-8", True), ("gb18030", False), ("gb18030", True)])
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@given(
    rows=st.lists(st.tuples(CELL, CELL, st.none() | CELL, NOTE), min_size=1, max_size=8),
    shape=SHAPES,
    delimiter=st.sampled_from(",;\t|"),
    line_end=ENDS,
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)
def test_what_the_csv_module_writes_is_read_back(rows, shape, delimiter, line_end, quoting):
    (encoding, mark), out = shape, io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=line_end, quoting=quoting)
    writer.writerow(["note", " ACCOUNT ", "Group", "user_name"])
    lines = []
    for group, account, user_name, note in rows:
        lines.append(1 + len(list(io.StringIO(out.getvalue(), newline=None))))
        writer.writerow((note, account, group, user_name))
    body = ("\ufeff" if mark else "").encode(encoding) + out.getvalue().encode(encoding)
    assert read(body, encoding=encoding, allow_damaged=True) == [Row(*row[:3]) for row in rows]
    again = RowFile(io.BytesIO(body), encoding=encoding, allow_damaged=True)
    assert [line for batch in in_batches(again) for line in batch.lines] == lines
    columns = {"group": "Group", "account": "ACCOUNT", "user_name": "user_name"}
    form = Format(encoding=encoding, bom=mark, delimiter=delimiter, line_end=line_end, columns=columns)
    assert source_of(again)["format"] == asdict(form)


@given(
    rows=st.lists(st.tuples(CELL, CELL | st.integers(0, 10**30), st.none() | CELL), min_size=1, max_size=8),
    ascii_only=st.booleans(),
    shape=SHAPES,
    array=st.booleans(),
)
def test_what_the_json_module_writes_is_read_back(rows, ascii_only, shape, array):
    encoding, mark = shape
    items = [{"account": account, "x": [1], "user_name": name, "group": group} for group, account, name in rows]
    text = json.dumps(items, ensure_ascii=ascii_only, indent=1)
    if not array:
        text = "\n".join(json.dumps(item, ensure_ascii=ascii_only) for item in items)
    body = ("\ufeff" if mark else "").encode(encoding) + text.encode(encoding)
    assert read(body, encoding=encoding, allow_damaged=True) == [Row(g, str(a), u) for g, a, u in rows]


FORMULA = st.builds(
    str.__add__, st.sampled_from(["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "''", "+86", "-5"]), CELL
)
LEFT = st.builds(
    ReportRow,
    st.just(1),
    CELL | FORMULA,
    CELL | FORMULA,
    st.just("") | CELL | FORMULA,
    st.sampled_from(["refused", "failed", "unknown", "skipped"]),
    st.text(max_size=30) | FORMULA,
)


@given(
    rows=st.lists(LEFT, max_size=8),
    kind=st.sampled_from(["csv", "jsonl"]),
    one_group=st.booleans(),
    shape=SHAPES,
    delimiter=st.sampled_from(",;\t|"),
    line_end=ENDS,
)
def test_what_is_written_back_is_read_again_and_other_readers_find_the_reason(
    rows, kind, one_group, shape, delimiter, line_end
):
    encoding, mark = shape
    group = "g" if one_group else None
    rows = [row._replace(group=group or row.group) for row in rows]
    columns = {name: name for name in ("group", "account", "user_name")[one_group:]}
    form = Format(kind=kind, encoding=encoding, bom=mark, delimiter=delimiter, line_end=line_end, columns=columns)
    out = io.BytesIO()
    write_rows(out, Format(**json.loads(json.dumps(asdict(form)))), rows)
    body = out.getvalue()
    wanted = [Row(row.group, row.account, row.user_name or None) for row in rows]
    if rows or kind == "csv":  # otherwise it is empty, which is no input
        assert read(body, encoding=encoding, group=group, allow_damaged=True) == wanted
    text = body.decode(encoding)
    assert text.startswith("\ufeff") == mark
    text = text.removeprefix("\ufeff")
    if kind == "csv":
        records = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))
        found = [[record["state"], record["reason"]] for record in records]
        exact = [Row(record.get("group", group), record["account"], record["user_name"] or None) for record in records]
        assert exact == wanted, "another program reads the same accounts"
        begun = [unicodedata.normalize("NFKC", reason).strip() for _, reason in found]
        assert not [each for each in begun if each[:1] in set("=+-@") and not each.lstrip("+-").isdecimal()]
    else:
        found = [list(json.loads(line).values())[-2:] for line in text.split(line_end)[:-1]]
    assert [state for state, _ in found] == [row.state for row in rows]
    assert all(reason.isprintable() for _, reason in found)


# --- anything at all

SOUP = st.lists(
    st.sampled_from(
        [
            b",",
            b'"',
            b"\n",
            b"\r\n",
            b"\r",
            b"\t",
            b" ",
            b"a",
            b"g,1\n",
            b"\xff",
            b"\x81",
            b"\0",
            b"\xe4\xbd\xa0",
            b"{}",
            b"[",
        ]
    ),
    max_size=40,
).map(b"".join)


@given(
    body=st.binary(max_size=300) | SOUP,
    encoding=st.sampled_from([None, "gb18030"]),
    group=st.none() | st.just("g"),
    header=st.sampled_from([None, 0, 1, 2]),
)
@example(body=b'\xef\xbb\xbf"account"', encoding=None, group="g", header=None)
@example(body=b"\xff\xfea\0", encoding=None, group=None, header=None)
@example(body=b"[" * 100_000, encoding=None, group=None, header=None)
@settings(max_examples=300)
def test_any_bytes_are_rows_or_one_error(body, encoding, group, header):
    try:
        rows = list(RowFile(io.BytesIO(body), encoding=encoding, group=group, header=header))
    except InvalidRequest:
        return
    assert {type(row) for row in rows} <= {Row, BadRow}
    assert all(len(row.raw) <= 200 and row.raw.isprintable() for row in rows if isinstance(row, BadRow))


@given(body=st.binary(max_size=300) | SOUP, encoding=st.sampled_from(["utf-8", "gb18030"]))
@settings(max_examples=300)
def test_every_line_that_is_not_blank_gives_one_row(body, encoding):
    body = b"group,account\r\n" + body.replace(b'"', b"'")
    rows = read(body, encoding=encoding)
    lines = body.decode(encoding, "surrogateescape").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    blank = [not any(map(cleaned, line.split(","))) for line in lines]
    assert len(rows) == blank.count(False) - 1
    found = [row.line for row in rows if isinstance(row, BadRow)]
    assert found == sorted(set(found))
    assert not any(blank[line - 1] for line in found)


MARKS = [GZIP, OLE, ZIP, b"PK\x05\x06", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\xfd7zXZ\0", b"BZh91AY&SY"]
MARKS += [
    b"\x28\xb5\x2f\xfd",
    b"%PDF-",
    b"SQLite format 3\0",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"PAR1",
    b"#!/bin/sh",
    b"{\\rtf1",
]
MARKS += [b"\xef\xbb\xbf <html>", "\ufeff<table>".encode("utf-16-le"), b"-- MySQL dump", b"INSERT INTO "]


@each_row("mark", MARKS)
def test_what_begins_as_another_kind_of_file_is_refused_whatever_follows(mark):
    for options in ({}, {"group": "g"}, {"group": "g", "encoding": "gb18030"}):
        for body in (mark, mark + b"\n1001\n1002\n", mark + bytes(range(256))):
            assert "--encoding gb18030" not in refused(body, **options)
    assert len(MARKS) >= len(NO_ROWS)


@each_row("name, least", [("xlwt.xls", 600), ("libreoffice.xls", 600), ("openpyxl.xlsx", 30), ("libreoffice.ods", 30)])
def test_a_workbook_that_is_cut_off_or_damaged_is_refused_or_read(name, least):
    body = Path(__file__).with_name("corpus").joinpath(name).read_bytes()
    for end in range(0, len(body), 200):
        assert refused(body[:end] + b"\xf6" * 3, group="g")
    for at in range(least, len(body), 97):
        try:
            rows = list(RowFile(io.BytesIO(body[:at] + b"\xf6" + body[at + 1 :])))
        except InvalidRequest:
            continue
        assert {type(row) for row in rows} <= {Row, BadRow}


def test_lost_digits_of_a_workbook_are_never_accepted():
    body = (Path(__file__).with_name("corpus") / "openpyxl-long-numbers.xlsx").read_bytes()
    for found in (read(body), read(body, allow_damaged=True), read(body, allow_damaged=True, group="g1")):
        assert bad(found)[2] == "account: 1.23457E+18 is a rounded number, its digits are lost: enter such numbers as text"
        assert Row("g1", "1234567890123456789") in found  # one that was entered as text


def changed(name, pattern, by):
    """Return a workbook of the corpus with other XML in its sheets."""
    made = io.BytesIO()
    with zipfile.ZipFile(Path(__file__).with_name("corpus") / name) as old, zipfile.ZipFile(made, "w") as new:
        for each in old.namelist():
            text, count = re.subn(pattern, by, old.read(each))
            assert count or not each.startswith("xl/worksheets/")
            new.writestr(each, text if each.startswith("xl/worksheets/") else old.read(each))
    return made.getvalue()


def test_a_sheet_with_a_cell_far_away_does_not_fill_the_memory():
    made = changed("openpyxl.xlsx", rb'<dimension ref="[^"]+"', b'<dimension ref="A1:ZZ1048576"')
    assert "1,048,576 rows and 702 columns" in refused(made)


def test_a_cell_that_is_no_number_although_it_says_so_ends_nothing():
    for number in (b"NaN", b"inf"):
        rows = read(changed("openpyxl-long-numbers.xlsx", rb"<v>138\.5</v>", b"<v>%b</v>" % number))
        assert (len(rows), (5 in bad(rows)), Row("g1", "nan") in rows) == (7, number == b"inf", number == b"NaN")


# --- compressed


def test_gzip_that_is_damaged_or_cut_off_is_one_clear_error():
    whole = gzip.compress(b"group,account\n" + b"".join(b"g,%d\n" % (number * 7919 % 99991) for number in range(20_000)))
    assert len(list(RowFile(Trickle(whole, [999])))) == 20_000
    for body, what in [
        (whole[: len(whole) // 2], "cut off"),
        (whole[:-4], "cut off"),
        (whole[:3000] + bytes(40) + whole[3040:], "damaged"),
        (whole[:-8] + bytes(4) + whole[-4:], "damaged"),  # the checksum
        (whole + b"more", "damaged"),
        (gzip.compress(whole), "twice"),
    ]:
        assert what in refused(body)


@each_row("packed", [False, True])
def test_a_line_without_an_end_is_one_bad_row_in_little_memory(packed):
    body = b"group,account\ng,1\ng," + b"x" * (32 * MEBIBYTE)
    stream = io.BytesIO(gzip.compress(body, 9) if packed else body)
    tracemalloc.start()
    rows = list(RowFile(stream))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (rows[0], bad(rows)) == (Row("g", "1"), {3: "invalid CSV: a line longer than 1 MiB"})
    assert peak < 10 * MEBIBYTE


# --- bad rows


def test_each_bad_row_says_what_is_wrong_and_on_which_line():
    body = (
        b"group,account,note\n"
        b"g,1,\n"
        b",2,\n"
        b"g, \xe3\x80\x80 ,x\n"
        b"\n"
        b"g,4\n"
        b"g,5,x,y\n"
        b"g,\xff6,\n"
        b'g,"7\n7",\n'
        b"g,8\0,\n"
        b'g,9,"a\nb\nc"\n'
        b'g,"10"x,\n'
        b"   \n"
        b"g,11,\n"
        b'g,"12,\n'
        b"g,13,"
    )
    rows = read(body)
    assert good(rows) == [Row("g", "1"), Row("g", "9"), Row("g", "11"), Row("g", "13")]
    assert bad(rows) == {
        3: "empty group",
        4: "empty account",
        6: "2 cells, but the header has 3",
        7: "4 cells, but the header has 3",
        8: "not utf-8 at byte 1",
        9: "account: contains a line break",
        11: "account: contains the character U+0000",
        15: """invalid CSV: ',' expected after '"'""",
        18: "a quote is not closed",
    }


def test_each_bad_json_row_says_what_is_wrong():
    reasons = {
        '{"group": "g", "account": 12345678901234567890123}': None,
        '{"group": "g", "account": true}': "account: invalid value True: use a string or a whole number",
        '{"group": {}, "account": "1"}': "group: invalid value {}: use a string",
        '{"account": "1"}': "empty group",
        "{}": "no account",
        "[1]": "not a JSON object",
        '{"group": "g", "account": "1"': "invalid JSON: not JSON at character",
        '{"group": "g", "account": "a\\ud800"}': "account: contains the character U+D800",
        '{"GROUP": "g", "Account ": 7, "user_name": ["x"]}': "user name: invalid value ['x']: use a string",
        '{"GROUP": "g", "Account ": 7, "user_name": ""}': None,
        "[" * 100_000: "invalid JSON",
    }
    rows = read("\n".join(reasons))
    assert good(rows) == [Row("g", "12345678901234567890123"), Row("g", "7")]
    found = bad(rows)
    assert list(found) == [line for line, reason in enumerate(reasons.values(), 1) if reason]
    assert [line for line, reason in enumerate(reasons.values(), 1) if reason and reason not in found[line]] == []
    rows = read('[{"group": "g", "account": "1"}, null, [true, "群"]]')
    assert [each for each in rows if isinstance(each, BadRow)] == [
        BadRow(2, "not a JSON object", "null"),
        BadRow(3, "not a JSON object", '[true, "群"]'),
    ]


def test_a_quote_that_is_not_closed_costs_one_line_however_much_follows():
    lines = [f"g,{number}" for number in range(2, 4_000)]
    lines[10] = '"g,oops'
    lines[3_000] = 'g,"oops'
    lines[-5] = 'g,"oops'
    rows = read("group,account\n" + "\n".join(lines) + "\n")
    assert bad(rows) == dict.fromkeys([12, 3_002, len(lines) - 3], "a quote is not closed")
    assert good(rows) == [Row("g", each[2:]) for each in lines if '"' not in each]


def test_a_row_for_another_group_than_the_given_one_is_bad():
    assert bad(read("account,group\na,other\n", group="g")) == {2: "group: 'other', but 'g' is given for all rows"}
    assert read('{"account":"a"}\n{"account":"a","group":"g"}', group="g") == [Row("g", "a")] * 2
    assert list(bad(read('{"account":"a"}\n{"account":"a","group":"x"}', group="g"))) == [2]


def test_chinese_rows_below_an_ascii_header_name_the_encoding():
    found = bad(read("group,account\ng,张三\ng,2\n".encode("gbk")))
    assert (list(found), "--encoding gb18030" in found[2]) == ([2], True)
    for line in ("Müller", "café", "naïve Ünïcôde ÀÉÎÕÜ"):  # western letters are no Chinese
        (row,) = read(b"group,account\ng," + line.encode("latin-1"))
        assert "gb18030" not in row.reason
        assert "gb18030" not in refused(line.encode("latin-1"), group="g")


# --- damage

DAMAGED = ["1.38123E+10", "1.38E+10", "1E+10", "1.380013e+10", "1,38E+10", "13800138000.0", "13800138000.00", "1,380,013"]
DAMAGED += ["1.3800138E10", "1.380013e10", "1.0E7", "-1.38E12", "1.5e100", "2024-01-02", "2024/1/2 10:00", "TRUE"]
DAMAGED += ["#N/A", "#REF!", "#VALUE!", "#NAME?", "#DIV/0!", "#NUM!", "#NULL!", "#SPILL!", "########"]
DAMAGED += ["NULL", "null", "(null)", "<null>", "[NULL]", r"\N", "NaN", "N/A", "<NA>", "None", "Null", "undefined"]
DAMAGED += ["=A1", "'0138", '"0138"', "张\ufffd", "1\u200b2", "\u3164", "1\u00a02", "❤\ufe0f", "=\u200b"]
SOUND = ["1E5", "1e10", "1.5E3", "1.5E6", "1.38E010", "1.2.3E10", "v1.2E10", "E10", "E+10", "u1.0", "1.0.0", "v.01", "a#N/A"]
SOUND += ["#1", "#", "NULLS", "none", "nan", "Nannan", "n/a", "N/A1", "nULL", "13800138000", "+8613800138000", "0138"]
SOUND += ["o'neill", "a=b", "a b", "张三", "ü@x.de", "20240102", "1,2", "❤"]


@each_row("value", DAMAGED)
def test_damaged_values_are_bad_rows_unless_they_are_allowed(value):
    made = io.StringIO()
    csv.writer(made).writerows([("group", "account", "user_name", "note"), ("g", value, "", ""), (value, "1", "", "")])
    csv.writer(made).writerows([("g", "2", value, ""), ("g", "3", "", value)])
    object_ = json.dumps({"group": "g", "account": value})
    for body, lines in ((made.getvalue(), [2, 3, 4]), (object_, [1]), (f"[{object_}]", [1])):
        rows = read(body)
        assert list(bad(rows)) == lines
        assert all("--allow-damaged" in reason for reason in bad(rows).values())
        assert good(rows) == ([Row("g", "3")] if len(lines) > 1 else [])
        allowed = read(body, allow_damaged=True)
        assert (allowed[0], bad(allowed)) == (Row("g", value), {})


@each_row("value", SOUND)
def test_values_that_only_resemble_damage_are_accounts(value):
    made = io.StringIO()
    csv.writer(made).writerows([("group", "account"), ("g", value)])
    assert read(made.getvalue()) == [Row("g", value)]


# --- limits of bad rows


def with_bad(sound, damaged):
    return io.BytesIO(b"group,account\n" + b"g,1\n" * sound + b"g,\n" * damaged)


@each_row("limit, sound, damaged", [(0, 5, 0), (2, 5, 2), (0.5, 2, 2), (1.0, 0, 3), (0.0, 3, 0), (None, 0, 9)])
def test_as_many_bad_rows_as_allowed_are_read(limit, sound, damaged):
    assert len(list(RowFile(with_bad(sound, damaged), max_bad=limit))) == sound + damaged


@each_row(
    "limit, sound, damaged, message",
    [
        (0, 5, 1, "1 of 6 rows are invalid, more than 0 "),
        (2, 5, 9, "9 of 14 rows are invalid, more than 2 "),
        (0.25, 2, 2, "2 of 4 rows are invalid, more than 0.25 of all"),
        (0.0, 3, 1, "1 of 4 rows are invalid, more than 0 of all"),
    ],
)
def test_more_bad_rows_than_allowed_are_an_error(limit, sound, damaged, message):
    with pytest.raises(InvalidRequest) as caught:
        list(RowFile(with_bad(sound, damaged), max_bad=limit))
    assert message in str(caught.value)
    assert caught.value.field == "max_bad"


# --- headers


@each_row(
    "header, line, options",
    [
        (" GROUP ;\u3000Account", "g;a", {}),
        ('"group";"x,y,z,u";account', "g;;a", {}),
        ('"a|b"|"group"|"account"', "|g|a", {}),
        ("group\taccount\tfirst, last", "g\ta\tx, y", {}),
        ('"note\n(free)",account,group', ",a,g", {}),
        ("account;note", "a;", {"group": " g "}),
        ("account,group", "a,", {"group": "g"}),
        ("sep=^\naccount^group", "a^g", {}),
        ("\n \n\ngroup,account", "g,a", {}),
        ("姓名,账号,备注,群号", "张三,a,x,g", {}),
        ("群号;账号;操作人", "g;a;张三", {}),  # the name of a person is no acting account
        *((f"{each},账号", "g,a", {}) for each in ("群", "群组", "群ID", "群 id", " 群组_ID ", "groupId", "group-no")),
        *((f"群,{each}", "g,a", {}) for each in ("帐号", "手机号", "用户ID", " ACCOUNT ", "member_id", "Phone Number")),
        ("群,group,手机号,account", "x,g,y,a", {}),  # the default names come first
        ("群,group,手机号,account", "g,x,a,y", {"group_column": "群", "account_column": " 手机号 "}),
        ("1001,1002", "g,a", {"group_column": "1001", "account_column": "1002", "header": 1}),
    ],
)
def test_headers_that_are_understood(header, line, options):
    assert read(f"{header}\n{line}\n", **options) == [Row("g", "a")]


def test_an_acting_account_in_chinese_is_found():
    assert read("群号;账号;操作账号\ng;1;boss\n") == [Row("g", "1", "boss")]
    assert read("g,1,boss\n", header=0, group_column="1", account_column="2", user_name_column="3") == [
        Row("g", "1", "boss")
    ]


@each_row(
    "body, options, parts",
    [
        ("name,town\n", {}, ["line 1: no column 'account'", "'name', 'town'", "--account-column"]),
        ("名单 2024\ngroup,account\ng,1\n", {}, ["line 1 is not the header, but line 2 may be: --header-line 2"]),
        ("account,name\n", {}, ["'group'", "'account', 'name'", "--group-column", "--group"]),
        ("account,phone\n", {"group": "g", "group_column": "team"}, ["'team'", "--group-column"]),
        ("account,group\n", {"user_name_column": "by"}, ["'by'", "user_name_column"]),
        ("群,群号,账号\n", {}, ["2 columns 'group', namely '群', '群号'", "--group-column"]),
        ("群,账号,操作账号,执行账号\n", {}, ["2 columns 'user_name'", "user_name_column"]),
        ("1001,a\n", {"group": "g", "account_column": "1001"}, ["looks like data", "--no-header", "--header-line 1"]),
        ("a,b\n1,2\n", {"header": 0, "account_column": "3"}, ["no column '3' among '1', '2'"]),
        ("1001,x\n1002,y\n", {"header": 0, "group": "g"}, ["no column 'account' among '1', '2'", "--account-column"]),
        ("a,b\n1,2\n", {"header": 9}, ["line 9", "no header"]),
        ('"account,group\n', {}, ["not valid CSV", '"account,group']),
        (b"\xef\xbb\xbfaccount,group", {"encoding": "gbk"}, ["UTF-8", "gb18030", "--encoding"]),
        (b"\xff\xfeacc,\n", {"encoding": "gb18030"}, ["no column"]),
        ("group,reason\n", {"account_column": "reason"}, ["different names"]),
        ("\n \r\n\t\n", {}, ["the input is empty"]),
        ("[]", {}, ["nothing is in the array"]),
    ],
)
def test_headers_that_are_refused_say_what_to_do(body, options, parts):
    text = refused(body, **options)
    assert [part for part in parts if part not in text] == []


# --- opening


def test_what_cannot_be_opened_is_named(tmp_path):
    for path in (tmp_path / "missing.csv", tmp_path, "a\0b"):
        with pytest.raises(InvalidRequest, match=r"cannot be (opened|read)") as caught, RowFile(path) as rows:
            iter(rows)
        assert caught.value.field == "source"
        assert str(path).replace("\0", "\ufffd") in str(caught.value)


def test_a_disk_that_fails_on_the_way_is_told():
    stream = io.RawIOBase()
    parts = chain([b"group,account\n", b"g,1\n" * 100_000], repeat(None))

    def failing(_):
        if part := next(parts):
            return part
        raise OSError(5, "Input/output error")

    stream.read = failing
    rows = iter(RowFile(stream))
    assert next(rows) == Row("g", "1")
    with pytest.raises(InvalidRequest, match="the input: cannot be read: Input/output error"):
        list(rows)


def test_a_stream_of_text_is_refused():
    with pytest.raises(InvalidRequest, match=r"sys\.stdin\.buffer"):
        iter(RowFile(io.StringIO("group,account")))


@each_row(
    "options",
    [
        *({"encoding": "nope"}, {"group": " "}, {"group": 5}, {"header": -1}),
        *({"max_bad": -1}, {"max_bad": 1.5}, {"max_bad": True}, {"max_bad": "1"}, {"allow_damaged": 1}, {"header": "1"}),
    ],
)
def test_options_are_checked(options):
    with pytest.raises(InvalidRequest) as caught:
        RowFile("x.csv", **options)
    assert caught.value.field == next(iter(options))


# --- encodings


def test_other_encodings_are_refused_and_names_of_the_same_one_are_known():
    for name in ("utf-16", "utf-32", "utf-7", "cp037", "latin-1", "big5", "rot13", "nope", "", "a\0b", 5):
        with pytest.raises(InvalidRequest, match="iconv") as caught:
            codec(name)
        assert (name, caught.value.field) == (name, "encoding")
    assert {codec(name) for name in (None, "utf-8", "UTF8", "utf-8-sig")} == {"utf-8"}
    assert {codec(name) for name in ("gb18030", "GBK", "cp936", "gb2312")} == {"gb18030"}
