"""``rbim demo`` as a process: at a terminal, and interrupted."""

import os
import signal

from rich.cells import cell_len

from helpers_ci.terminal import ANSI, Terminal
from rbim.cli import Exit


def on_a_terminal(*flags, width=80):
    """Run the demo with a terminal as its standard output and return its lines as they are seen at the end."""
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    with Terminal("demo", *flags, env=environment | {"TERM": "xterm"}, columns=width) as shown:
        code = shown.end()
    text = ANSI.sub("", shown.raw)
    return code, [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n")]


def test_an_interrupt_ends_it_at_once():
    one_each = {"RBIM_DIALECT": "invite_limit=1"}  # 5,000 requests, so that it is still at work
    with Terminal("demo", env={**os.environ, **one_each, "TERM": "xterm"}) as shown:
        shown.see(r"[1-9][0-9]*/5000")
        shown.process.send_signal(signal.SIGINT)
        code = shown.end()

    assert code == Exit.INTERRUPTED
    assert "Traceback" not in shown.text


def test_a_terminal_shows_a_bar_and_tables_within_its_width():
    width = 80
    code, lines = on_a_terminal(width=width)

    assert code == Exit.DONE
    assert lines[0].startswith("Inviting ━")
    assert "5000/5000 accounts" in lines[0]
    assert max(map(cell_len, lines)) <= width
    heading, _, *rows = next(lines[i : i + 5] for i, line in enumerate(lines) if line.startswith("group "))
    assert {cell_len(row.rstrip()) for row in rows} == {cell_len(heading.rstrip())}
    assert [row.split()[0] for row in rows] == ["产品公告", "客户交流", "内部测试"]
    assert "each group has the invited accounts and its owner" in "\n".join(lines)


def test_a_narrow_terminal_cuts_no_number():
    code, lines = on_a_terminal(width=40)

    assert code == Exit.DONE
    assert max(map(cell_len, lines[1:])) <= 40
    assert [line.strip() for line in lines if "accounts: 1," in line] == [f"accounts: 1,{n}00" for n in (9, 7, 4)]
    assert lines.count("  invited: 1,885") == lines.count("  members: 1,886") == 1
