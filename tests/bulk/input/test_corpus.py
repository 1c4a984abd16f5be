"""Files that people really have, and how each is read: `corpus` holds what programs wrote, most of it unchanged.

The names say which program: LibreOffice, pandas, openpyxl, xlwt. Excel's own formats and damage, the output of `psql` and
`mysql --batch`, and files that are no input, were made by hand.
"""

import io
from pathlib import Path

import pytest

from rbim.bulk import RowFile
from rbim.bulk.input.file import in_batches
from rbim.bulk.input.rows import BadRow
from rbim.errors import InvalidRequest

CORPUS = Path(__file__).with_name("corpus")

PHONES = ("13800138000", "13800138001", "13800138002")
LIST = {"group": "g1"}


def phones(*lines):
    """Return the three numbers that most files have, at these lines."""
    return dict(zip(lines, PHONES, strict=True))


LO = ("013800138000", "13800138001", "张三")  # LibreOffice's files
DATED = "looks like a date"
UNSEEN = "contains the invisible character"

READ = {
    # lists
    "list.txt": (LIST, phones(1, 2, 3), {}),
    "list-crlf-bom.txt": (LIST, phones(1, 2, 3), {}),
    "list-cr-no-end.txt": (LIST, phones(1, 2, 3), {}),
    "list-blank-lines.txt": (LIST, phones(2, 5, 7), {}),
    "list-known-header.txt": (LIST, phones(2, 3, 4), {}),
    "list-unknown-header.txt": (LIST | {"header": 1}, phones(2, 3, 4), {}),
    "list-quoted.txt": (LIST, phones(1, 2, 3), {}),
    "list-names.txt": (LIST, {1: "张三", 2: "li_si", 3: "王五@example.com"}, {}),
    "list-gb18030.txt": (LIST | {"encoding": "gb18030"}, {1: "张三", 2: "李四", 3: "王五"}, {}),
    "list-several-cells.txt": (LIST, {1: PHONES[0], 3: PHONES[2]}, {2: "several cells"}),
    "list-notepad-unicode.txt": (LIST, phones(1, 2, 3), {}),
    "list-utf-16-be.txt": (LIST, {1: "张三", 2: "李四"}, {}),
    "list-chat.txt": (
        LIST,
        {1: PHONES[0]},
        {
            2: f"{UNSEEN} U+200B ZERO WIDTH SPACE",
            3: f"{UNSEEN} U+202C",
            4: f"{UNSEEN} U+00A0 NO-BREAK SPACE",
            5: f"{UNSEEN} U+FE0F",
        },
    ),
    "not-done-of-a-list.csv": (LIST, {2: "1001", 3: "1002"}, {}),
    # CSV
    "comma.csv": ({}, phones(2, 3, 4), {}),
    "semicolon-excel.csv": ({}, phones(2, 3, 4), {}),
    "tabs-with-header.txt": ({}, phones(2, 3, 4), {}),
    "bars.csv": ({}, phones(2, 3, 4), {}),
    "sep.csv": ({}, phones(3, 4, 5), {}),
    "sep-tab.csv": ({}, phones(3, 4, 5), {}),
    "title.csv": ({"header": 3}, phones(4, 5, 6), {}),
    "no-header.csv": ({"header": 0}, phones(1, 2, 3), {}),
    "no-header-wide.csv": ({"header": 0, "group_column": "4", "account_column": "2"}, phones(1, 2, 3), {}),
    "newlines-in-cells.csv": ({}, {2: PHONES[0], 6: PHONES[2]}, {4: "empty account", 7: "empty account"}),
    "rows-of-delimiters.csv": ({}, {2: PHONES[0], 4: PHONES[1]}, {}),
    "trailing-delimiters.csv": ({}, phones(2, 3, 4), {5: "4 cells, but the header has 2"}),
    "quote-not-closed.csv": ({}, {2: PHONES[0], 4: PHONES[2], 6: "7"}, {3: "a quote is not closed", 5: "invalid CSV"}),
    "cut-off.csv": ({}, {2: "1001"}, {3: "2 cells, but the header has 3"}),
    "header-alone.csv": ({}, {}, {}),
    "acting.csv": ({}, {2: "1001", 3: "1002"}, {}),
    "usual-names.csv": ({}, phones(2, 3, 4), {}),
    "two-fitting-columns.csv": ({"account_column": "账号"}, {2: "a"}, {}),
    "gb18030.csv": ({"encoding": "gb18030"}, {2: "张三", 3: "李四"}, {}),
    "gb18030-other-column.csv": ({}, {2: "1001", 3: "1002"}, {}),
    "excel-unicode-text.txt": ({}, phones(2, 3, 4), {}),
    "report.csv": ({"allow_damaged": True}, {2: PHONES[0], 3: "+8613800138001", 4: "=odd"}, {5: "empty account"}),
    "pandas-bom.csv": ({}, phones(2, 3, 4), {}),
    "pandas.csv.gz": ({}, phones(2, 3, 4), {}),
    "libreoffice-quoted.csv": ({}, dict(zip((2, 3, 5), LO, strict=True)), {}),
    "libreoffice-tabs.csv": ({}, dict(zip((2, 3, 5), LO, strict=True)), {}),
    # damage
    "look-alikes.csv": (
        {},
        {6: "1001", 7: "10 01"},
        {
            2: f"account: {UNSEEN} U+200B",
            3: f"{UNSEEN} U+200D",
            4: f"group: {UNSEEN} U+00AD SOFT HYPHEN",
            5: f"{UNSEEN} U+3000",
            8: f"{UNSEEN} U+E0101",
            9: f"{UNSEEN} U+3164",
        },
    ),
    "kept-as-text.csv": (
        {},
        {2: "013800138000", 3: "0138", 6: PHONES[1]},
        {4: "looks like a formula", 5: "the apostrophe of a spreadsheet", 7: "'=x' looks like a formula"},
    ),
    "rounded.csv": (
        {},
        {6: "1E5"},
        {2: "a rounded number", 3: "a rounded number", 4: "decimals", 5: "thousands", 7: "an error of a spreadsheet"},
    ),
    "dates.csv": ({}, {5: "20240102"}, {2: DATED, 3: DATED, 4: "a truth value"}),
    "mysql-batch.txt": ({}, {2: PHONES[0]}, {3: "account: 'NULL'", 4: "group: 'NULL'", 5: "account: '\\\\N'"}),
    "psql.txt": ({}, {3: PHONES[0], 4: PHONES[1]}, {2: "1 cells, but the header has 2", 5: "1 cells"}),
    "lost-characters.csv": ({}, {3: "张三"}, {2: "a character that was lost"}),
    "pandas-float.csv": ({}, {}, dict.fromkeys((2, 3, 4), "a number with decimals")),
    # JSON
    "lines.jsonl": ({}, phones(1, 2, 3), {}),
    "lines-chinese-keys.jsonl": ({}, phones(1, 2, 3), {}),
    "lines-unknown-keys.jsonl": ({"account_column": "号码", "group_column": "组"}, phones(1, 2, 3), {}),
    "lines-damaged.jsonl": (
        {},
        {1: "1001", 6: "1002"},
        {2: "invalid value 13800138000.0", 3: "invalid JSON", 5: "no account"},
    ),
    "array-indented.json": ({}, phones(1, 2, 3), {4: "no account"}),
    "array-of-numbers.json": (LIST, phones(1, 2, 3), {}),
    "pandas-records.json": ({}, phones(1, 2, 3), {}),
    # workbooks
    "openpyxl.xlsx": ({}, phones(2, 3, 4), {}),
    "openpyxl-two-sheets.xlsx": ({"sheet": "名单"}, phones(2, 3, 4), {}),
    "openpyxl-title.xlsx": ({"header": 3}, phones(4, 5, 6), {}),
    "openpyxl-list.xlsx": (LIST, phones(1, 2, 3), {}),
    "openpyxl-long-numbers.xlsx": (
        {},
        {3: "123456789012345", 4: "1234567890123456789", 5: "138.5"},
        {2: "a rounded number, its digits are lost", 6: "a truth value", 7: DATED, 9: "empty account"},
    ),
    "pandas-workbook-named.csv": ({}, phones(2, 3, 4), {}),
    "xlwt.xls": ({}, phones(2, 3, 4), {}),
    **dict.fromkeys(
        ("libreoffice-errors.xlsx", "libreoffice-errors.ods"),
        ({}, {2: "u1", 7: "u7"}, {3: "'#DIV/0!' looks like an error", 4: "'#N/A'", 5: "user name: ", 6: "'#DIV/0!'"}),
    ),
    "libreoffice.ods": ({}, dict(zip((2, 3, 4), LO, strict=True)), {}),
    "libreoffice.xlsx": ({}, dict(zip((2, 3, 4), LO, strict=True)), {}),
    "libreoffice.xls": ({}, dict(zip((2, 3, 4), LO, strict=True)), {}),
}
"""The options, the accounts by line, and a part of the reason of each bad row."""

REFUSED = {
    "list-unknown-header.txt": (LIST, "line 1, '会员编号', is not like the others", "--header-line 1", "--no-header"),
    "list-gb18030.txt": (LIST, "the first line is not utf-8", "'张三'", "'李四'", "--encoding gb18030"),
    "gb18030.csv": ({}, "'群号,账号,姓名'", "'研发群,张三,张三'", "--encoding gb18030"),
    "list-utf-16-without-mark.txt": (LIST, "UTF-16 without its mark", "iconv"),
    "title.csv": ({}, "line 1 is not the header, but line 3 may be: --header-line 3"),
    "no-header.csv": ({}, "line 1 looks like data", "--no-header"),
    "no-header-wide.csv": ({"header": 0}, "--account-column"),
    "comma.csv": ({"header": 0}, "line 1 is a header: leave out --no-header"),
    "bars.csv": ({"sheet": "s"}, "is no workbook"),
    "two-fitting-columns.csv": ({}, "2 columns 'account', namely '账号', '手机号'", "--account-column"),
    "same-name-twice.csv": ({}, "2 columns have the name 'account'", "rename"),
    "empty.csv": ({}, "the input is empty"),
    "lines-unknown-keys.jsonl": ({}, "line 1: no column 'account' among '组', '号码'", "--account-column"),
    "array-cut-off.json": ({}, "the JSON array is damaged or cut off: ", "line "),
    "object.json": ({}, "line 1: ", "one object in a line, or one array"),
    "openpyxl-two-sheets.xlsx": ({}, "row 1 of sheet '说明' (of 2 sheets: --sheet names another)"),
    "openpyxl.xlsx": ({"sheet": "x"}, "no sheet 'x' among 'Sheet1'", "--sheet"),
    "openpyxl-title.xlsx": ({}, "but row 3 may be: --header-line 3"),
    "libreoffice-errors.xls": ({}, "errors in cells", "save it as xlsx"),
    "libreoffice-far-cell.ods": ({}, "60,001 rows and 702 columns", "delete what is far from the table"),
    "openpyxl-empty.xlsx": ({}, "there is no header"),
    "pandas-html.xls": (LIST, "this is HTML, not a table: open it in a spreadsheet program and save it as CSV or xlsx"),
    "libreoffice-html.xls": (LIST, "this is HTML, not a table"),
    "spreadsheet-2003.xls": (LIST, "this is an XML spreadsheet", "CSV or xlsx"),
    "libreoffice.fods": (LIST, "this is XML"),
    "libreoffice.pdf": (LIST, "this is a PDF document"),
    "libreoffice.slk": (LIST, "this is a SYLK spreadsheet"),
    "web-page.mht": (LIST, "this is a web page (MHTML)"),
    "contacts.vcf": (LIST, "this is a list of contacts (vCard)"),
    "letter.rtf": (LIST, "this is an RTF document"),
    "letter.docx": (LIST, "this is a Word document"),
    "dump.sql": (LIST, "this is SQL"),
    "archive.zip": (LIST, "this is a zip archive: unpack it first"),
    "cut-off.xlsx": (LIST, "cut off or damaged"),
    "picture.png": (LIST, "this is a picture"),
    "program": (LIST, "the input is no text"),
}
"""The options, and what the message says."""


@pytest.mark.parametrize("file", READ)
def test_a_file_of_the_corpus_is_read_whatever_its_name(file):
    options, accounts, faults = READ[file]
    body = (CORPUS / file).read_bytes()
    for source in (CORPUS / file, io.BytesIO(body)):
        found, bad = {}, {}
        with RowFile(source, **options) as rows:
            for columns in in_batches(rows):
                for line, row in zip(columns.lines, columns.rows(), strict=True):
                    if isinstance(row, BadRow):
                        bad[line] = row.reason
                        assert row.line == line
                    else:
                        found[line] = row.account
                        assert row.group in {"g1", "研发群", "g80000049837291"}
        assert (found, bad.keys()) == (accounts, faults.keys())
        assert [line for line, part in faults.items() if part not in bad[line]] == []


@pytest.mark.parametrize("file", REFUSED)
def test_a_file_of_the_corpus_is_refused_with_the_next_step(file):
    options, *parts = REFUSED[file]
    with pytest.raises(InvalidRequest) as caught, RowFile(CORPUS / file, **options) as rows:
        list(rows)
    assert [part for part in parts if part not in str(caught.value)] == []


def test_each_file_of_the_corpus_is_in_a_table():
    assert {path.name for path in CORPUS.iterdir()} - {".gitattributes"} == READ.keys() | REFUSED.keys()
