"""``rbim demo``: its figures against the CSV file, counted here anew, and what it does with files of one's own."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter

import pytest

from rbim import InviteJoinGroup, QueryGroupDetail
from rbim.cli import Exit, run
from rbim.cli.demo import example
from rbim.emulator import Emulator
from rbim.emulator.faults import Code, Fault, InvalidJson


def figures_of(out):
    return json.loads(out.splitlines()[-1])


@pytest.fixture
def write(tmp_path):
    def write(rows, *, encoding="utf-8"):
        file = tmp_path / "rows.csv"
        lines = [rows] if isinstance(rows, str) else [",".join(row) + "\n" for row in rows]
        file.write_text("".join(lines), encoding=encoding, newline="")
        return str(file)

    return write


def demo(*tokens):
    return run(["demo", *tokens])


def test_the_demo_invites_the_shipped_file_over_http(capsys):
    rows = list(csv.DictReader(example()))
    strangers = Counter(row["group"] for row in rows if row["logged_in"] == "no")
    accounts = Counter(row["group"] for row in rows)

    assert demo("--json") == Exit.DONE

    out, err = capsys.readouterr()
    assert err == ""
    figures = figures_of(out)
    invited = len(rows) - strangers.total()
    assert figures["accounts"] == {
        "total": len(rows),
        "invited": invited,
        "refused": strangers.total(),
        "failed": 0,
        "unknown": 0,
        "duplicates": 0,
    }
    assert (len(rows), strangers.total()) == (5000, 40)
    assert figures["requests"] == {"invitations": 100, "sent": 100}
    assert figures["agrees"] is True
    assert figures["seconds"] > 0
    assert figures["accounts_per_second"] > figures["requests_per_second"] > 0
    assert {group["name"]: group["holds"] - 1 for group in figures["groups"]} == {
        name: count - strangers[name] for name, count in accounts.items()
    }
    assert {group["name"]: sum(group["reasons"].values()) for group in figures["groups"]} == strangers


def test_lines_and_tables_where_there_is_no_terminal(capsys):
    assert demo() == Exit.DONE

    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert [line for line in out.splitlines() if line.endswith(" of 5,000 accounts")][-1] == "5,000 of 5,000 accounts"
    table = [line.split() for line in out.splitlines() if line.startswith(("产品公告", "客户交流", "内部测试"))]
    assert table[0] == ["产品公告", "vip", "(2,000)", "1,900", "1,885", "15", "0", "0", "1,886"]
    assert "5,000 rows: 4,960 invited, 40 refused, 0 failed, 0 unknown, 0 duplicates." in out
    assert re.search(r"^100 requests in \d+\.\d\d s: [\d,]+ accounts/s, [\d,]+ requests/s\.$", out, re.MULTILINE)


def test_groups_get_the_smallest_type_that_fits(write, capsys):
    sizes = {"a": 99, "b": 100, "c": 299, "d": 999}
    rows = [(f"user-{number}", name) for name, size in sizes.items() for number in range(size)]

    assert demo("--csv", write([("account", "group"), *rows]), "--json") == Exit.DONE

    figures = figures_of(capsys.readouterr().out)
    assert {group["name"]: group["member_limit"] for group in figures["groups"]} == {"a": 100, "b": 300, "c": 300, "d": 1000}
    assert figures["accounts"]["invited"] == sum(sizes.values())


def test_bad_rows_are_named_by_line(write, capsys, tmp_path):
    wrong = []
    for text, said in [
        ("", "line 1: the first line must name the columns group and account"),
        ("account;group\nu1;a\n", "line 1: the first line must name"),
        ("group,account\n", "no accounts in the file"),
        ("group,account\na,u1\na,\n", "line 3: the account is missing"),
        ("group,account\na\n", "line 2: the account is missing"),
        ("group,account\n,u1\n", "line 2: the group is missing"),
        ("group,account\na,u1,yes\n", "line 2: more cells than columns"),
        ("group,account,logged_in\na,u1,maybe\n", "line 2: logged_in: invalid value 'maybe': use yes or no"),
        (f"group,account\n{'x' * 51},u1\n", "line 2: name: at most 50 characters, not 51"),
        ('group,account\na,"u1\n', "line 2: unexpected end of data"),
        ("group,account\n客户交流,u1\n", "not UTF-8"),
        (None, "No such file"),
    ]:
        file = str(tmp_path / "none.csv")
        if text is not None:
            file = write(text, encoding="gbk" if "UTF-8" in said else "utf-8")
        code = demo("--csv", file)
        out, err = capsys.readouterr()
        if (code, out) != (Exit.USAGE, "") or said not in err or err.splitlines()[1:] != ["See: rbim demo --help"]:
            wrong.append((text, code, out, err))
    assert wrong == []


class Troubled(Emulator):
    """Loses the answers to invitations of group b, refuses those of group c, and hides what group d holds."""

    def __init__(self, **options):
        super().__init__(**options)

        def about(name):
            return lambda op: self.state.groups[op.group_id].name == name

        self.faults.add(
            Fault(effect=InvalidJson(), operation=InviteJoinGroup, match=about("b")),
            Fault(effect=Code("900403", "not [today]"), operation=InviteJoinGroup, match=about("c")),
            Fault(effect=Code("900404"), operation=QueryGroupDetail, match=about("d")),
        )


def test_figures_that_do_not_agree_are_complained_of(monkeypatch, write, capsys):
    monkeypatch.setattr("rbim.cli.demo.Emulator", Troubled)
    rows = [(name, f"user-{number}") for name in "abcd" for number in range(3)]
    file = write([("group", "account"), *rows])

    assert demo("--csv", file, "--json") == Exit.REFUSED

    out, err = capsys.readouterr()
    figures = figures_of(out)
    assert figures["accounts"] == {"total": 12, "invited": 6, "refused": 0, "failed": 3, "unknown": 3, "duplicates": 0}
    assert figures["agrees"] is False
    assert figures["requests"]["sent"] > figures["requests"]["invitations"] == 4
    reasons = ["".join(group["reasons"]) for group in figures["groups"]]
    assert reasons[1].startswith("ProtocolError: HTTP 200, not JSON at character ")
    assert [reasons[0], *reasons[2:]] == ["", "ApiError: code 900403: not [today]", ""]
    assert err.splitlines() == [
        "rbim: b has 4 members, expected 1 (the invited accounts and the owner)",
        "rbim: d has an unknown number of members, expected 4 (the invited accounts and the owner)",
    ]

    assert demo("--csv", file) == Exit.REFUSED
    assert "not [today]" in capsys.readouterr().out
