"""Input of bulk jobs: files in every shape, made by other tools, and what was not done written back."""

import csv
import io
import json
import os
import subprocess
import sys
import unicodedata
from itertools import chain, islice, repeat

import pytest
from hypothesis import HealthCheck, assume, example, given, settings, strategies as st

from rbim.bulk.input.content import GZIP, OTHERS
from rbim.bulk.input.file import RowFile, in_batches
from rbim.bulk.input.format import Format, NotDone, codec, write_rows
from rbim.bulk.input.rows import BadRow, Row, cleaned
from rbim.errors import InvalidRequest

LONGEST = 1 << 20


class Trickle(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a slow pipe does."""

    def __init__(self, body, sizes=(1, 2, 3, 5, 8)):
        self.body, self.sizes, self.at = body, list(sizes), 0

    def read(self, _=-1):
        size = self.sizes[self.at % len(self.sizes)]
        self.at += 1
        part, self.body = self.body[:size], self.body[size:]
        return part


def read(body, **options):
    """Return the rows of a body, read at once, in small parts and in batches, which must not differ."""
    body = body.encode() if isinstance(body, str) else body
    rows = list(RowFile(io.BytesIO(body), **options))
    assert list(RowFile(Trickle(body), **options)) == rows
    for source in (io.BytesIO(body), Trickle(body)):
        batches = [list(batch.rows()) for batch in in_batches(RowFile(source, **options), 3)]
        assert batches == [rows[at : at + 3] for at in range(0, len(rows), 3)]
    return rows


def refused(body, **options):
    """Return the text of the error that a body is refused with, at once and in small parts."""
    body = body.encode() if isinstance(body, str) else body
    texts = set()
    for source in (io.BytesIO(body), Trickle(body), Trickle(body, [1])):
        with pytest.raises(InvalidRequest) as caught:
            list(RowFile(source, **options))
        texts.add(str(caught.value))
    (text,) = texts
    return text


def bad(rows):
    return {row.line: row.reason for row in rows if isinstance(row, BadRow)}


# texts that are cells: no control characters, no white space around, something there
PRINTABLE = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufeff")
CELL = st.text(PRINTABLE, min_size=1, max_size=12).map(cleaned).filter(bool)
NOTE = st.text(st.sampled_from('ab\n\r",; \t|'), max_size=12)
SHAPES = st.sampled_from([("utf-8", False), ("utf-8", True), ("gb18030", False), ("gb18030", True)])


# --- made on another road, read back


@given(
    rows=st.lists(st.tuples(CELL, CELL, st.none() | CELL, NOTE), min_size=1, max_size=8),
    shape=SHAPES,
    delimiter=st.sampled_from(",;\t|"),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)
def test_what_the_csv_module_writes_is_read_back(rows, shape, delimiter, line_end, quoting):
    (encoding, mark), out = shape, io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=line_end, quoting=quoting)
    writer.writerow(["note", " ACCOUNT ", "Group", "user_name"])
    writer.writerows((note, account, group, user_name) for group, account, user_name, note in rows)
    body = ("\ufeff" if mark else "").encode(encoding) + out.getvalue().encode(encoding)
    assert read(body, encoding=encoding, allow_damaged=True) == [Row(*row[:3]) for row in rows]
    shape = RowFile(io.BytesIO(body), encoding=encoding).format
    assert (shape.kind, shape.encoding, shape.bom, shape.delimiter, shape.line_end) == (
        "csv",
        encoding,
        mark,
        delimiter,
        line_end,
    )
    assert shape.columns() == ["Group", "ACCOUNT", "user_name"]


@given(
    rows=st.lists(st.tuples(CELL, CELL | st.integers(0, 10**30), st.none() | CELL), min_size=1, max_size=8),
    ascii_only=st.booleans(),
    shape=SHAPES,
)
def test_what_the_json_module_writes_is_read_back(rows, ascii_only, shape):
    encoding, mark = shape
    lines = [json.dumps({"account": a, "x": [1], "user_name": u, "group": g}, ensure_ascii=ascii_only) for g, a, u in rows]
    body = ("\ufeff" if mark else "").encode(encoding) + "\n".join(lines).encode(encoding)
    assert read(body, encoding=encoding, allow_damaged=True) == [Row(g, str(a), u) for g, a, u in rows]


@given(st.lists(CELL.filter(lambda cell: "\t" not in cell), min_size=1, max_size=8))
def test_text_is_one_account_a_line(accounts):
    body = "\n".join(f"  {each}\u3000" for each in accounts) + "\n-"
    assert read(body, kind="text", group="g", allow_damaged=True) == [Row("g", a) for a in [*accounts, "-"]]


FORMULA = st.builds(
    str.__add__, st.sampled_from(["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'=", "''", "+86", "-5"]), CELL
)
REJECTED = st.lists(
    st.builds(
        NotDone,
        CELL | FORMULA,
        CELL | FORMULA,
        st.none() | CELL | FORMULA,
        st.sampled_from(["refused", "failed", "unknown", "skipped"]),
        st.text(max_size=30) | FORMULA,
    ),
    max_size=8,
)


@given(
    rows=REJECTED,
    kind=st.sampled_from(["csv", "jsonl", "text"]),
    one_group=st.booleans(),
    shape=SHAPES,
    delimiter=st.sampled_from(",;\t|"),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_is_written_back_is_read_again_and_other_readers_find_the_reason(
    rows, kind, one_group, shape, delimiter, line_end
):
    encoding, mark = shape
    group = "g" if one_group or kind == "text" else None
    rows = [row._replace(group=group or row.group, user_name=None if kind == "text" else row.user_name) for row in rows]
    form = Format(kind=kind, encoding=encoding, bom=mark, delimiter=delimiter, line_end=line_end, group=group)
    out = io.BytesIO()
    assert write_rows(out, form, rows) == len(rows)
    body = out.getvalue()
    wanted = [Row(row.group, row.account, row.user_name) for row in rows]
    if rows or kind == "csv":  # otherwise it is empty, which is no input
        assert read(body, kind=kind, encoding=encoding, group=group, allow_damaged=True) == wanted
    text = body.decode(encoding)
    assert text.startswith("\ufeff") == mark
    text = text.removeprefix("\ufeff")
    if kind == "csv":
        records = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))
        found = [[record["state"], record["reason"]] for record in records]
        exact = [Row(record.get("group", group), record["account"], record["user_name"] or None) for record in records]
        assert exact == wanted, "another program reads the same accounts"
    elif kind == "jsonl":
        found = [list(json.loads(line).values())[-2:] for line in text.split(line_end)[:-1]]
    else:
        found = [line.split("\t")[1:] for line in text.split(line_end)[:-1]]
    assert [state for state, _ in found] == [row.state for row in rows]
    assert all(reason.isprintable() for _, reason in found)
    if kind != "jsonl":
        begun = [unicodedata.normalize("NFKC", reason).strip() for _, reason in found]
        assert not [each for each in begun if each[:1] in set("=+-@") and not each.lstrip("+-").isdecimal()]
    if (kind != "jsonl" or line_end != "\r") and rows:
        again = RowFile(io.BytesIO(body), kind=kind, encoding=encoding, group=group).format
        assert (again.bom, again.line_end) == (mark, line_end)


# --- anything at all

SOUP = st.lists(
    st.sampled_from(
        [b",", b'"', b"\n", b"\r\n", b"\r", b"\t", b" ", b"a", b"g,1\n", b"\xff", b"\x81", b"\0", b"\xe4\xbd\xa0", b"{}"]
    ),
    max_size=40,
).map(b"".join)


def physical(body):
    return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


@given(
    body=st.binary(max_size=300) | SOUP,
    encoding=st.sampled_from([None, "gb18030", "latin-1", "gbk"]),
    group=st.none() | st.just("g"),
)
@example(body=b'\xef\xbb\xbf"account"', encoding=None, group="g")
@example(body=b"\xff\xfea\0", encoding=None, group=None)
@settings(max_examples=300)
def test_nothing_that_is_read_raises_but_for_the_header(body, encoding, group):
    for kind in (None, "csv", "jsonl", "text"):
        rows = RowFile(io.BytesIO(body), kind=kind, encoding=encoding, group=group)
        try:
            iterator = iter(rows)
        except InvalidRequest:
            continue
        assert {type(row) for row in iterator} <= {Row, BadRow}


@given(body=st.binary(max_size=300) | SOUP, kind=st.sampled_from(["csv", "jsonl", "text"]))
@settings(max_examples=300)
def test_every_line_that_is_not_blank_gives_one_row(body, kind):
    if kind == "csv":
        body = b"group,account\r\n" + body.replace(b'"', b"'")
    assume(not body.startswith((b"\xff\xfe", b"\xfe\xff", GZIP, *OTHERS)))
    blank = [not cleaned(line.decode("utf-8", "backslashreplace")) for line in physical(body)]
    assume(not all(blank))
    rows = read(body, kind=kind, group=None if kind == "csv" else "g")
    assert len(rows) == blank.count(False) - (kind == "csv")
    lines = [row.line for row in rows if isinstance(row, BadRow)]
    assert lines == sorted(set(lines))
    assert all(not blank[line - 1] for line in lines)
    assert all(len(row.raw) <= 200 and row.raw.isprintable() for row in rows if isinstance(row, BadRow))


@given(st.lists(st.sampled_from(["g,a\n", '"g",a\n', 'g,"a"x\n', 'g,"a\n', '"x\ny",a\n', "g\n", "\n"]), max_size=30))
def test_each_line_is_accounted_for_whatever_the_quotes(parts):
    body = "group,account\n" + "".join(parts)
    rows = read(body)
    lines = [row.line for row in rows if isinstance(row, BadRow)]
    assert lines == sorted(set(lines))
    assert set(lines) <= {number for number, line in enumerate(body.splitlines(), 1) if number > 1 and line}
    # a plain row is lost only between two quotes that close each other
    assert len(rows) >= (0 if any('"' in part for part in parts) else sum(part != "\n" for part in parts))


# --- bad rows


def test_each_bad_row_says_what_is_wrong_and_on_which_line():
    body = (
        b"group,account,note\n"
        b"g,1,\n"
        b",2,\n"
        b"g, \xe3\x80\x80 ,\n"
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
    assert [row for row in rows if isinstance(row, Row)] == [Row("g", "1"), Row("g", "9"), Row("g", "11"), Row("g", "13")]
    assert bad(rows) == {
        3: "empty group",
        4: "empty account",
        6: "2 cells, but the header has 3",
        7: "4 cells, but the header has 3",
        8: "not utf-8 at byte 3 of the line",
        9: "account: contains a line break",
        11: "account: contains the character U+0000",
        15: """invalid CSV: ',' expected after '"'""",
        18: "a quote is not closed",
    }
    assert [row.raw for row in rows if isinstance(row, BadRow) and row.line in {8, 9}] == [r"g,\xff6,", 'g,"7 7",']


def test_each_bad_json_row_says_what_is_wrong():
    lines = [
        '{"group": "g", "account": 12345678901234567890123}',
        '{"group": "g", "account": true}',
        '{"group": "g", "account": 1.5}',
        '{"group": {}, "account": "1"}',
        '{"group": "g", "user_name": "x"}',
        '{"account": "1"}',
        "{}",
        "[1]",
        '{"group": "g", "account": "1"',
        '{"group": "g", "account": "a\\ud800"}',
        '{"GROUP": "g", "Account ": 7, "user_name": ["x"]}',
        '{"GROUP": "g", "Account ": 7, "user_name": ""}',
        '{"group": null, "account": "1"}',
        '{"group": "", "account": "1"}',
        "[" * 100_000,
    ]
    rows = read("\n".join(lines))
    assert [row for row in rows if isinstance(row, Row)] == [Row("g", "12345678901234567890123"), Row("g", "7")]
    reasons = bad(rows)
    assert len(reasons) == len(lines) - 2
    for line, part in {
        2: "account: invalid value True: use a string or a whole number",
        3: "account: invalid value 1.5",
        4: "group: invalid value {}: use a string",
        5: "no 'account' among 'group', 'user_name'",
        6: "no 'group' among 'account'",
        7: "no 'account' among no keys",
        8: "not a JSON object",
        9: "invalid JSON: not JSON at character",
        10: "account: contains the character U+D800",
        11: "user name: invalid value ['x']: use a string",
        13: "no 'group' among",
        14: "empty group",
        15: "invalid JSON",
    }.items():
        assert part in reasons[line]


def test_a_quote_that_is_not_closed_costs_one_line_however_much_follows():
    lines = [f"g,{number}" for number in range(2, 60_000)]
    lines[10] = '"g,oops'
    lines[40_000] = 'g,"oops'
    lines[-5] = 'g,"oops'
    rows = read("group,account\n" + "\n".join(lines) + "\n")
    assert bad(rows) == dict.fromkeys([12, 40_002, len(lines) - 3], "a quote is not closed")
    assert [row for row in rows if isinstance(row, Row)] == [Row("g", each[2:]) for each in lines if '"' not in each]


def test_a_row_may_go_on_over_a_hundred_lines_but_no_further():
    cell = "\n".join(["x"] * 100)
    body = f'group,account,note\ng,1,"{cell}"\ng,2,"x\n{cell}"\ng,3,\n'
    rows = read(body)
    assert [row for row in rows if isinstance(row, Row)] == [Row("g", "1"), Row("g", "3")]
    assert bad(rows)[102] == "a quote is not closed"
    assert len(bad(rows)) == 102 - 1
    assert max(bad(rows)) == 102 + 100


@pytest.mark.parametrize("sizes", [(7,), (1000, 13), (1 << 17,)])
def test_rows_of_many_lines_are_read_wherever_the_parts_of_a_file_end(sizes):
    notes = ["\n".join(["x;"] * (number % 9)) for number in range(20_000)]
    out = io.StringIO(newline="")
    csv.writer(out).writerows([("group", "note", "account"), *(("g", note, number) for number, note in enumerate(notes))])
    rows = list(RowFile(Trickle(out.getvalue().encode()[:200_000], sizes)))
    wanted = list(csv.reader(io.StringIO(out.getvalue()[:200_000], newline="")))[1:]
    assert len(wanted) > 5000
    assert rows[: len(wanted) - 1] == [Row("g", cells[2]) for cells in wanted[:-1]]


def test_undecodable_lines_do_not_cost_the_next_ones():
    for encoding, junk in (("utf-8", b"\xe4\xbd"), ("gb18030", b"\xff\xff"), ("gb18030", b"\x81")):
        body = "group,account\n甲,一\n乙,".encode(encoding) + junk + "\n丙,三\n".encode(encoding)
        rows = read(body, encoding=encoding)
        assert [row for row in rows if isinstance(row, Row)] == [Row("甲", "一"), Row("丙", "三")]
        assert list(bad(rows)) == [3]
        assert bad(rows)[3].startswith(f"not {encoding} at byte ")
    assert list(bad(read(b'group,account,note\ng,1,"a\n\xff"\ng,2,x\n'))) == [2]


# --- long lines


class Endless(io.RawIOBase):
    """A line without an end, and how much of it was taken."""

    def __init__(self, head, limit):
        self.head, self.left = head, limit

    def read(self, size=-1):
        head, self.head = self.head, b""
        if head:
            return head
        self.left -= size
        return b"x" * size if self.left > 0 else b""


@pytest.mark.parametrize("kind", ["csv", "jsonl", "text"])
def test_a_line_without_an_end_is_one_bad_row_in_little_memory(kind):
    import tracemalloc

    head = b"group,account\ng,1\ng," if kind == "csv" else b""
    tracemalloc.start()
    rows = list(RowFile(Endless(head, 60 * LONGEST), kind=kind, group=None if kind == "csv" else "g"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row.reason for row in rows if isinstance(row, BadRow)] == ["a line longer than 1 MiB"]
    assert rows[-1].raw.endswith("xxx...")
    assert rows[-1].line == (3 if kind == "csv" else 1)
    assert peak < 8 * LONGEST


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("extra", range(-2, 4))
def test_a_line_may_have_a_mebibyte(extra, line_end):
    note = b"{" + b" " * (LONGEST + extra - 30)
    line = note + b'"group":"g","account":"a"}'.rjust(29)
    assert len(line) == LONGEST + extra
    body = line_end.join([b'{"group":"g","account":"b"}', line, b'{"group":"g","account":"c"}', b""])
    rows = list(RowFile(io.BytesIO(body), kind="jsonl"))
    good = [row.account for row in rows if isinstance(row, Row)]
    assert good == (["b", "a", "c"] if extra <= 0 else ["b", "c"])
    assert list(bad(rows)) == ([] if extra <= 0 else [2])
    sizes = (4096, LONGEST - 1000, 1, 1, 1, 2, 997, 7)
    assert list(RowFile(Trickle(body, sizes), kind="jsonl")) == rows


@pytest.mark.parametrize("plain", [True, False])
def test_a_file_that_was_read_in_part_goes_on_where_it_was(plain):
    body = "group,account\n" + "".join(f"g,a{n}\n" for n in range(50)) + ("" if plain else 'g,"b"\n')
    rows = RowFile(io.BytesIO(body.encode()))
    first = [next(iter(rows)), next(iter(rows))]

    rest = [row for batch in in_batches(rows, 7) for row in batch.rows()]

    assert first + rest == read(body)


def test_batches_stop_at_too_many_bad_rows_too():
    body = "group,account\n" + "g,a\n" * 20 + "g\n" * 3
    assert sum(len(batch.accounts) for batch in in_batches(RowFile(io.BytesIO(body.encode()), max_bad=3), 5)) == 23
    with pytest.raises(InvalidRequest, match="more than 2 rows are invalid"):
        list(in_batches(RowFile(io.BytesIO(body.encode()), max_bad=2), 5))


def test_rows_come_before_the_input_has_ended():
    def blocks():
        yield b"group,account\n"
        for number in range(10**9):
            yield b"g,%d\n" % number

    stream = io.RawIOBase()
    source = blocks()
    stream.read = lambda _: next(source)
    with RowFile(stream) as rows:
        assert list(islice(rows, 1000)) == [Row("g", str(number)) for number in range(1000)]
    assert not stream.closed


# --- headers and kinds


@pytest.mark.parametrize(
    ("header", "line", "options"),
    [
        ("group,account", "g,a", {}),
        (" GROUP ;\u3000Account", "g;a", {}),
        ('"group";"x,y,z,u";account', "g;;a", {}),
        ('"a|b"|"group"|"account"', "|g|a", {}),
        ("group\taccount\tfirst, last", "g\ta\tx, y", {}),
        ("群,账号", "g,a", {"group_column": "群", "account_column": " 账号 "}),
        ('"note\n(free)",account,group', ",a,g", {}),
        ("account", "a", {"group": "g"}),
        ("account;note", "a;", {"group": " g "}),
        ("account,group", "a,", {"group": "g"}),
        ("account,group", "a,g", {"group": "g"}),
        ("account^group", "a^g", {"delimiter": "^"}),
        ("\n \n\ngroup,account", "g,a", {}),
    ],
)
def test_headers_that_are_understood(header, line, options):
    assert read(f"{header}\n{line}\n", kind="csv", **options) == [Row("g", "a")]


@pytest.mark.parametrize("delimiter", ",;\t|")
@pytest.mark.parametrize("name", ["note\nmore", "\n\n", "a\r\nb"])
def test_a_header_of_several_lines_may_come_line_by_line(delimiter, name):
    """Its first line alone would be a header with another delimiter."""
    header = delimiter.join(["group", "account", f'"{name}"'])
    assert read(f"{header}\ng{delimiter}a{delimiter}x\n", kind="csv") == [Row("g", "a")]


def test_a_quote_in_a_header_that_is_not_closed_is_told_after_a_hundred_lines():
    body = '"group,account\n' + "g,a\n" * 200
    stream = Trickle(body.encode(), [4])
    with pytest.raises(InvalidRequest, match='the header is not valid CSV: "group,account'):
        list(RowFile(stream, kind="csv"))
    assert stream.body.count(b"\n") > 90


def test_a_row_for_another_group_than_the_given_one_is_bad():
    assert bad(read("account,group\na,other\n", group="g")) == {2: "group: 'other', but 'g' is given for all rows"}
    assert read('{"account":"a"}\n{"account":"a","group":"g"}', group="g") == [Row("g", "a")] * 2
    assert list(bad(read('{"account":"a","group":"x"}', group="g"))) == [1]


@pytest.mark.parametrize(
    ("body", "options", "parts"),
    [
        ("name,phone\n", {}, ["'account'", "'name', 'phone'", "--account-column"]),
        ("account,phone\n", {}, ["'group'", "'account', 'phone'", "--group-column", "--group"]),
        ("account,phone\n", {"group": "g", "group_column": "team"}, ["'team'", "--group-column"]),
        ("account,group\n", {"user_name_column": "by"}, ["'by'", "--user-name-column"]),
        ("account,group,Account\n", {}, ["2 columns have the name 'account'", "rename"]),
        ("手机,group,电话\n", {}, ["2 columns 'account', namely '手机', '电话'", "--account-column"]),
        ("123\n", {"group": "g", "account_column": "id", "kind": "csv"}, ["'id'", "'123'"]),
        ("123\n", {}, ["'account'", "'123'"]),
        ('"account,group\n', {}, ["not valid CSV", '"account,group']),
        (b"\xff\xfea\0", {}, ["UTF-16", "iconv"]),
        (b"\xfe\xff\0a", {"encoding": "latin-1"}, ["UTF-16"]),
        (b"\xef\xbb\xbfaccount,group", {"encoding": "gbk"}, ["UTF-8", "gbk", "--encoding"]),
        ("群,账号\n".encode("gbk"), {}, ["not utf-8", "--encoding gb18030"]),
        ("a\n", {"kind": "text"}, ["--group"]),
        ("group,reason\n", {"account_column": "reason"}, ["different names"]),
    ],
)
def test_headers_that_are_refused_say_what_to_do(body, options, parts):
    text = refused(body, **options)
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize(
    ("body", "options", "kind", "rows"),
    [
        ("10001\n=10002\n#3\n", {"group": "g"}, "text", ["10001", "=10002", "#3"]),
        ("10001\trefused\tno such account\n", {"group": "g"}, "text", ["10001"]),
        ('{"account": 1}\n', {"group": "g"}, "jsonl", ["1"]),
        ("account\n1\n", {"group": "g"}, "csv", ["1"]),
        ('name|"Account"\nx|1\n', {"group": "g"}, "csv", ["1"]),
        ("10001\n10002\n", {"group": "g", "kind": "csv"}, "csv", ["10001", "10002"]),
        ("10001\n10002\n", {"group": "g", "delimiter": ";"}, "csv", ["10001", "10002"]),
        ("group,account\n", {}, "csv", []),
    ],
)
def test_the_kind_is_told_from_the_first_line(body, options, kind, rows):
    assert read(body, **options) == [Row("g", each) for each in rows]
    assert RowFile(io.BytesIO(body.encode()), **options).format.kind == kind


@pytest.mark.parametrize(
    ("name", "body", "kind"),
    [
        ("a.csv", "account\n1", "csv"),
        ("a.CSV", "1", "csv"),
        ("a.tsv", "account\n1", "csv"),
        ("a.jsonl", '{"account":1}', "jsonl"),
        ("a.ndjson", '{"account":1}', "jsonl"),
        ("a.txt", "1\t{}", "text"),
        ("a.data", "1", "text"),
    ],
)
def test_the_kind_is_told_from_the_name(tmp_path, name, body, kind):
    path = tmp_path / name
    path.write_text(body, encoding="utf-8")
    for source in (path, str(path)):
        with RowFile(source, group="g") as rows:
            assert (rows.format.kind, list(rows)) == (kind, [Row("g", "1")])
    with path.open("rb") as stream:
        with RowFile(stream, group="g") as rows:
            assert (rows.name, rows.format.kind) == (str(path), kind)
        assert not stream.closed
    assert RowFile(path, group="g").format.delimiter == ("\t" if name == "a.tsv" else ",")


def test_a_single_column_without_a_header_is_written_back_with_one():
    rows = RowFile(io.BytesIO(b"1\n2\n"), kind="csv", group="g")
    out = io.BytesIO()
    write_rows(out, rows.format, [NotDone(*row, "failed", "") for row in rows])
    assert out.getvalue() == b"account,state,reason\n1,failed,\n2,failed,\n"


# --- made by other programs


def test_gb18030_as_iconv_makes_it(tmp_path):
    text = "群,账号,姓名\r\n研发一群,zhāng三,𠮷野\r\n销售,李四€,龘\r\n"
    made = subprocess.run(["iconv", "-f", "utf-8", "-t", "gb18030"], input=text.encode(), capture_output=True, check=True)
    path = tmp_path / "members.csv"
    path.write_bytes(made.stdout)
    with RowFile(path, encoding="GB18030", group_column="群", account_column="账号") as rows:
        assert list(rows) == [Row("研发一群", "zhāng三"), Row("销售", "李四€")]
        out = io.BytesIO()
        write_rows(out, rows.format, [NotDone("销售", "李四€", None, "refused", "用户不存在")])
    back = subprocess.run(["iconv", "-f", "gb18030", "-t", "utf-8"], input=out.getvalue(), capture_output=True, check=True)
    assert back.stdout.decode() == "群,账号,state,reason\r\n销售,李四€,refused,用户不存在\r\n"


def test_utf_16_as_iconv_makes_it_is_refused():
    made = subprocess.run(
        ["iconv", "-f", "utf-8", "-t", "utf-16"], input=b"group,account\n", capture_output=True, check=True
    )
    assert "UTF-16" in refused(made.stdout)


def test_a_byte_order_mark_as_printf_makes_it(tmp_path):
    path = tmp_path / "m.csv"
    subprocess.run(["sh", "-c", r"""printf '\357\273\277"group";"account"\ng;1\n\n' > "$0" """, path], check=True)
    with RowFile(path) as rows:
        assert list(rows) == [Row("g", "1")]
        assert rows.format.bom
        out = io.BytesIO()
        write_rows(out, rows.format, [NotDone("g", "1", None, "failed", "a;b")])
    assert out.getvalue() == b'\xef\xbb\xbfgroup;account;state;reason\ng;1;failed;"a;b"\n'


def test_standard_input_through_a_pipe():
    program = "import sys; from rbim.bulk import RowFile\nfor row in RowFile(sys.stdin.buffer): print(*row, flush=True)\n"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"group\taccount\ng\t1\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"g 1 None\n"  # before the pipe is closed
        assert process.communicate(b"g\t2\n\t3", timeout=30)[0] == b"g 2 None\n4 empty group 3\n"
        assert process.wait(30) == 0


# --- opening


def test_what_cannot_be_opened_is_named(tmp_path):
    for path in (tmp_path / "missing.csv", tmp_path, "a\0b"):
        with pytest.raises(InvalidRequest, match="cannot be opened") as caught, RowFile(path) as rows:
            iter(rows)
        assert caught.value.field == "source"
        assert str(path).replace("\0", "\ufffd") in str(caught.value)


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "secret.csv"
    path.touch(mode=0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(InvalidRequest, match=r"secret\.csv: cannot be opened: Permission denied"):
            list(RowFile(path))
    finally:
        if before == 0:
            os.seteuid(0)


def test_a_disk_that_fails_on_the_way_is_told():
    stream = io.RawIOBase()
    parts = chain([b"group,account\ng,1\n"], repeat(None))

    def failing(_):
        if part := next(parts):
            return part
        raise OSError(5, "Input/output error")

    stream.read = failing
    rows = iter(RowFile(stream))
    assert next(rows) == Row("g", "1")
    with pytest.raises(InvalidRequest, match="the input: cannot be read: Input/output error"):
        next(rows)


def test_a_file_is_closed_at_its_end_by_its_block_and_after_a_header_that_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("group,account\n" + "g,1\n" * 3, encoding="utf-8")
    rows = RowFile(path)
    assert len(list(rows)) == 3
    assert rows._opened.closed
    with RowFile(path) as rows:
        assert next(iter(rows)) == Row("g", "1")
        assert not rows._opened.closed
    assert rows._opened.closed
    assert list(rows) == []
    path.write_text("x,y\n", encoding="utf-8")
    rows = RowFile(path)
    with pytest.raises(InvalidRequest):
        iter(rows)
    assert rows._opened.closed


def test_a_stream_of_text_is_refused():
    with pytest.raises(InvalidRequest, match=r"sys\.stdin\.buffer"):
        iter(RowFile(io.StringIO("group,account")))


@pytest.mark.parametrize(
    "options", [{"kind": "xls"}, {"encoding": "nope"}, {"delimiter": ",,"}, {"delimiter": '"'}, {"group": " "}, {"group": 5}]
)
def test_options_are_checked(options):
    with pytest.raises(InvalidRequest) as caught:
        RowFile("x.csv", **options)
    assert caught.value.field == next(iter(options))


# --- formats


def test_white_space_is_what_str_strip_takes_and_the_byte_order_mark():
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    assert [c for c in every if not cleaned(c)] == [c for c in every if not c.strip() or c == "\ufeff"]


@pytest.mark.parametrize(
    "name", ["utf-16", "utf-32", "utf-7", "cp037", "rot13", "hex", "punycode", "idna", "nope", "", "a\0b", 5, None]
)
def test_encodings_that_lines_cannot_be_read_in_are_refused(name):
    with pytest.raises(InvalidRequest) as caught:
        codec(name)
    assert caught.value.field == "encoding"


def test_encodings_have_one_name():
    assert {codec(name) for name in ("UTF8", "utf-8", "u8", "utf_8_sig")} == {"utf-8"}
    assert codec("GB18030") == "gb18030"
    assert codec("GBK") == codec("cp936")


@given(
    kind=st.sampled_from(["csv", "jsonl", "text"]),
    shape=SHAPES,
    names=st.lists(CELL, min_size=2, max_size=3, unique_by=lambda name: name.casefold()),
    group=CELL,
)
def test_a_format_survives_json(kind, shape, names, group):
    assume(not {"state", "reason", "user_name"} & {name.casefold() for name in names})
    columns = dict(zip(("group_column", "account_column", "user_name_column"), names, strict=False))
    form = Format(kind=kind, encoding=shape[0], bom=shape[1], group=group, **columns)
    assert Format.from_json(json.loads(json.dumps(form.to_json()))) == form


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(JSON, st.sampled_from(["kind", *Format(kind="csv").to_json()]))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_junk_is_no_format(junk, key):
    for document in (junk, {**Format(kind="csv").to_json(), key: junk}, {"kind": "csv", "x": junk}):
        try:
            form = Format.from_json(document)
        except InvalidRequest:
            continue
        assert form.to_json().keys() == Format(kind="csv").to_json().keys()
        assert document[key] == junk
    with pytest.raises(InvalidRequest):
        Format.from_json({"kind": "csv", "x": junk})


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "text"},
        {"account_column": "Group "},
        {"account_column": "reason"},
        {"user_name_column": "State"},
        {"encoding": "latin-1", "bom": True},
        {"bom": 1},
        {"line_end": "x"},
        {"line_end": []},
        {"group": ""},
        {"group_column": "\ufeff"},
        {"delimiter": "\n"},
    ],
)
def test_formats_that_cannot_be_are_refused(fields):
    with pytest.raises(InvalidRequest):
        Format(**{"kind": "csv", **fields})


# --- what cannot be written


def written(form, *rows):
    out = io.BytesIO()
    write_rows(out, form, rows)
    return out.getvalue()


def test_what_an_encoding_has_no_characters_for():
    latin = Format(kind="csv", encoding="latin-1")
    assert written(latin, NotDone("g", "é", None, "refused", "不")).endswith(b"\ng,\xe9,,refused,\\u4e0d\n")
    with pytest.raises(InvalidRequest, match=r"iso8859-1 cannot encode .*张三"):
        written(latin, NotDone("g", "张三", None, "refused", ""))
    line = written(Format(kind="jsonl", encoding="latin-1"), NotDone("g", "张三", None, "refused", "不"))
    assert json.loads(line) == {"group": "g", "account": "张三", "state": "refused", "reason": "\\u4e0d"}
    with pytest.raises(InvalidRequest):
        written(Format(kind="csv"), NotDone("g", "\ud800", None, "refused", ""))


def test_what_a_file_has_no_column_for():
    row = NotDone("g", "a", "admin", "failed", "")
    for form in (Format(kind="text", group="g"), Format(kind="csv", user_name_column=None)):
        with pytest.raises(InvalidRequest) as caught:
            written(form, row)
        assert caught.value.field == "user_name"
    with pytest.raises(InvalidRequest) as caught:
        written(Format(kind="csv", group="h"), row)
    assert caught.value.field == "group"
    for account in ("a\tb", "a\nb", " a", ""):
        with pytest.raises(InvalidRequest) as caught:
            written(Format(kind="text", group="g"), row._replace(account=account, user_name=None))
        assert caught.value.field == "account"


def test_a_reason_is_no_formula_and_an_account_stays_what_it_is():
    rows = [NotDone("=g", "+861", "@me", "refused", f"{text}1") for text in ("=", " +x", "@", "\uff0dx", "x;=", "")]
    body = written(Format(kind="csv"), *rows).decode()
    assert body.splitlines()[1:] == [
        f"=g,+861,@me,refused,{reason}" for reason in ("'=1", "'+x1", "'@1", "'\uff0dx1", "x;'=1", "1")
    ]
    text = written(Format(kind="text", group="g"), NotDone("g", "=1", None, "refused", "=1")).decode()
    assert text == "=1\trefused\t'=1\n"
    line = json.loads(written(Format(kind="jsonl"), NotDone("g", "1", None, "refused", "=1")))
    assert line["reason"] == "=1"


def test_formulas_stay_what_they_are_and_odd_cells_are_quoted():
    body = written(Format(kind="csv"), *(NotDone("g", each, None, "failed", "") for each in ("=1+1", "@a", ' a"b', "a\rb")))
    assert body.splitlines(keepends=False)[1:3] == [b"g,=1+1,,failed,", b"g,@a,,failed,"]
    assert b'"g"," a""b","","failed",""\n' in body
    assert [row[1] for row in csv.reader(io.StringIO(body.decode(), newline=""), strict=True)][-2:] == [' a"b', "a\rb"]


def test_many_rows_are_written_in_parts():
    class Counting(io.BytesIO):
        writes = 0

        def write(self, body):
            self.writes += 1
            return super().write(body)

    out = Counting()
    assert write_rows(out, Format(kind="jsonl"), (NotDone("g", str(n), None, "failed", "") for n in range(5000))) == 5000
    assert out.writes <= 10
    assert sum(1 for _ in RowFile(io.BytesIO(out.getvalue()))) == 5000


@pytest.mark.slow
def test_a_million_rows_take_little_memory(tmp_path):
    import tracemalloc

    path = tmp_path / "m.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("group,account\n")
        file.writelines(f"g{number // 500},{number}\n" for number in range(1_000_000))
    tracemalloc.start()
    assert sum(isinstance(row, Row) for row in RowFile(path)) == 1_000_000
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
