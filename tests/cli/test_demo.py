"""``rbim demo``: its figures against the CSV file, counted here anew, and what it does with files of one's own."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest
from rich.cells import cell_len

from rbim import InviteJoinGroup, QueryGroupDetail
from rbim.cli import Exit, run
from rbim.cli.demo import example
from rbim.emulator import Emulator
from rbim.emulator.faults.requests import Code, Fault, InvalidJson

DEMO = [sys.executable, "-c", "from rbim.cli import main; main()", "demo"]
PATIENCE = 120
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


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


def test_the_shipped_file_is_what_its_recipe_makes():
    lines, number = ["group,account,logged_in\n"], 0
    for group, accounts in (("产品公告", 1900), ("客户交流", 1700), ("内部测试", 1400)):
        for _ in range(accounts):
            number += 1
            lines.append(f"{group},user-{number:05d},{'no' if number % 125 == 0 else 'yes'}\n")

    assert "".join(example()) == "".join(lines)


def test_the_demo_invites_the_shipped_file_over_http():
    rows = list(csv.DictReader(example()))
    strangers = Counter(row["group"] for row in rows if row["logged_in"] == "no")
    accounts = Counter(row["group"] for row in rows)

    done = subprocess.run([*DEMO, "--json"], capture_output=True, timeout=PATIENCE, check=False, encoding="utf-8")

    assert (done.returncode, done.stderr) == (Exit.DONE, "")
    figures = figures_of(done.stdout)
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


def test_the_demo_has_the_dialect_of_its_flags(write, capsys):
    file = write([("group", "account"), *(("g", f"u{n}") for n in range(11))])
    assert (
        demo("--csv", file, "--json", "--invite-limit", "5", "--api-version", "2016-08-15", "--other-forms-refused", "yes")
        == 0
    )
    figures = figures_of(capsys.readouterr().out)
    assert (figures["requests"]["invitations"], figures["accounts"]["invited"]) == (3, 11)


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


def on_a_terminal(*flags, width=80):
    """Run the demo with a terminal as its standard output and return its lines as they are seen at the end."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, width))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    with subprocess.Popen(
        [*DEMO, *flags], stdin=theirs, stdout=theirs, stderr=theirs, env=environment | {"TERM": "xterm"}
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 65536):
                seen += part
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        code = process.wait(PATIENCE)
    text = CONTROLS.sub("", seen.decode())
    return code, [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n")]


@pytest.mark.skipif(os.name == "nt", reason="signals are sent otherwise there")
def test_an_interrupt_ends_it_at_once(write):
    file = write([("group", "account"), *((f"group-{number % 99}", f"user-{number}") for number in range(100_000))])

    with subprocess.Popen(
        [*DEMO, "--csv", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)

    assert first.endswith(" of 100,000 accounts\n")
    assert "100,000 of 100,000" not in out
    assert (process.returncode, err) == (Exit.INTERRUPTED, "")


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_a_bar_and_tables_within_its_width(width):
    code, lines = on_a_terminal(width=width)

    assert code == Exit.DONE
    assert lines[0].startswith("Inviting ━")
    assert "5000/5000 accounts" in lines[0]
    assert max(map(cell_len, lines)) <= width
    heading, _, *rows = next(lines[i : i + 5] for i, line in enumerate(lines) if line.startswith("group "))
    assert {cell_len(row.rstrip()) for row in rows} == {cell_len(heading.rstrip())}
    assert [row.split()[0] for row in rows] == ["产品公告", "客户交流", "内部测试"]
    assert "each group has the invited accounts and its owner" in "\n".join(lines)


def test_plain_on_a_terminal_shows_no_bar():
    code, lines = on_a_terminal("--plain")

    assert code == Exit.DONE
    assert "5,000 of 5,000 accounts" in lines
    assert not any("━" in line for line in lines)


def test_groups_get_the_smallest_type_that_fits(write, capsys):
    sizes = {"a": 99, "b": 100, "c": 299, "d": 999}
    rows = [(f"user-{number}", name) for name, size in sizes.items() for number in range(size)]

    assert demo("--csv", write([("account", "group"), *rows]), "--json") == Exit.DONE

    figures = figures_of(capsys.readouterr().out)
    assert {group["name"]: group["member_limit"] for group in figures["groups"]} == {"a": 100, "b": 300, "c": 300, "d": 1000}
    assert figures["accounts"]["invited"] == sum(sizes.values())


def test_what_a_group_cannot_hold_is_refused_and_shown(write, capsys):
    rows = [("big", f"user-{number}") for number in range(2100)]

    assert demo("--csv", write([("group", "account"), *rows])) == Exit.DONE

    out = capsys.readouterr().out
    assert "2,100 rows: 1,999 invited, 101 refused" in out
    assert re.search(r"^big +the group is full +101 *$", out, re.MULTILINE)


def test_rows_that_say_the_same_count_once(write, capsys):
    rows = "\ufeffgroup, account ,logged_in,remark\r\na,u1,yes,x\r\n\r\na,u1,,\r\nb,u1\r\na, u2 ,NO,\r\n"

    assert demo("--csv", write(rows), "--json") == Exit.DONE

    figures = figures_of(capsys.readouterr().out)
    assert figures["accounts"] == {"total": 4, "invited": 2, "refused": 1, "failed": 0, "unknown": 0, "duplicates": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
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
    ],
)
def test_bad_rows_are_named_by_line(write, capsys, text, said):
    assert demo("--csv", write(text)) == Exit.USAGE

    out, err = capsys.readouterr()
    assert out == ""
    assert "rows.csv" in err
    assert said in err
    assert err.splitlines()[1:] == ["See: rbim demo --help"]


@pytest.mark.parametrize(("encoding", "said"), [("gbk", "not UTF-8"), (None, "No such file")])
def test_files_that_cannot_be_read(write, capsys, tmp_path, encoding, said):
    file = write("group,account\n客户交流,u1\n", encoding=encoding) if encoding else str(tmp_path / "none.csv")

    assert demo("--csv", file) == Exit.USAGE

    assert said in capsys.readouterr().err


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
