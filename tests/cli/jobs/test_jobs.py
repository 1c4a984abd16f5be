"""``rbim invite``, ``rbim remove`` and ``rbim job`` in this process, against an emulator over HTTP."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from helpers.job_commands import ACCOUNTS, STRANGER, commands, invitations, members, rows_in, rows_of, write_csv
from rbim.bulk.journal.lock import JobLock
from rbim.bulk.progress import Snapshot
from rbim.cli import run
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs import progress as bulk_progress
from rbim.cli.jobs.progress import ProgressDisplay
from rbim.emulator.faults import Code, Fault, InvalidJson
from rbim.postgres import shared_rate
from rbim.transports.auto import AutoTransport

PATIENCE = 60
signals = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way")


# ---------------------------------------------------------------- a job, from its beginning to its end


def test_json_is_one_document_and_nothing_else_on_standard_output(cli, group):
    rows = [*rows_of(group, count=12), (group, STRANGER), (group, "u3"), ("", "u4")]
    write_csv("members.csv", rows)

    code, out, err = cli("invite", "members.csv", "--json")

    assert code == JobExit.INCOMPLETE
    document = json.loads(out)
    assert list(document["accounts"]) == ACCOUNTS
    assert document["accounts"] == dict(zip(ACCOUNTS, (15, 12, 1, 0, 0, 1, 1), strict=True))
    assert document["accounts"]["total"] == sum(document["accounts"][name] for name in ACCOUNTS[1:])
    assert document["state"] == "complete"
    assert "line 16: " in err
    assert commands(err) == [
        [
            "job",
            "report",
            str(Path("members.csv.invite.journal").absolute()),
            "--not-done",
            str(Path("members.csv.invite.not-done.csv").absolute()),
        ]
    ]


def test_standard_input_has_its_journal_in_the_working_directory(platform, cli, group, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("甲\n乙\n丙\n".encode("gb18030"))))

    code, out, err = cli("invite", "-", "--group", group, "--encoding", "gb18030", "--json")

    assert code == JobExit.DONE
    assert json.loads(out)["accounts"]["invited"] == 3
    assert members(platform, group) == {"甲", "乙", "丙"}
    (journal,) = Path().glob("*.journal")
    assert re.fullmatch(r"rbim-invite-[0-9]{8}-[0-9]{6}\.journal", journal.name)
    assert err == f"journal: {journal.absolute()}\n"


def test_options_reach_the_platform(platform, cli, group):
    write_csv("members.csv", rows_of(group, count=3))
    platform.requests.clear()

    tokens = ["--needs-confirmation", "--declared", "请加入", "--user-name", "admin", "--chunk", "2", "--journal", "j"]
    pacing = ["--rate", "500/s,9000/min", "--group-rate", "400/s", "--concurrency", "3"]
    giving_up = ["--max-failures", "100", "--patience", "9"]
    assert cli("invite", "members.csv", *tokens, *pacing, *giving_up)[0] == JobExit.DONE

    assert all(op.needs_confirmation and op.declared == "请加入" for op in invitations(platform))
    assert sorted(len(op.members) for op in invitations(platform)) == [1, 2]
    with closing(sqlite3.connect("j")) as database:
        settings = json.loads(database.execute("SELECT settings FROM job").fetchone()[0])
    assert [(rate["limit"], rate["per"], rate["each_group"]) for rate in settings["rates"]] == [
        (500, 1, False),
        (9000, 60, False),
        (400, 1, True),
    ]
    del settings["rates"]
    assert settings | {"concurrency": 3, "max_failures": 100, "patience": 9} == settings


# ---------------------------------------------------------------- a dry run


@pytest.mark.usefixtures("environment")
def test_a_dry_run_touches_nothing_and_needs_no_platform(cli):
    write_csv("members.csv", [*rows_of("g1", "g2", count=60), ("g1", "u0")])
    before = list(Path().iterdir())

    code, out, err = cli("invite", "members.csv", "--dry-run", "--rate", "1/s", "--rate", "10/s")

    assert (code, err) == (JobExit.DONE, "")
    assert "121 rows: 120 usable, 0 invalid, 1 duplicate\n" in out
    assert "2 groups" in out
    assert "4 requests of at most 50 accounts; at least 0:00:03" in out
    assert list(Path().iterdir()) == before


@pytest.mark.usefixtures("environment")
def test_a_dry_run_says_what_cannot_be_used(cli):
    write_csv("members.csv", [("g", "a"), *[("", f"u{number}") for number in range(12)]])

    code, out, _ = cli("remove", "members.csv", "--dry-run", "--group-rate", "1/s")
    assert code == JobExit.INCOMPLETE
    assert "input: CSV with commas; account: column 'account'; group: column 'group'\n  line 2, group g, account a\n" in out
    assert [int(line) for line in re.findall(r"^ +line ([0-9]+): ", out, re.MULTILINE)] == list(range(3, 13))
    assert "and 2 more" in out
    assert "as fast as the platform and the rate of each group allow" in out

    code, out, _ = cli("remove", "members.csv", "--dry-run", "--json")
    document = json.loads(out)
    assert document.pop("warnings") == []
    assert [row["line"] for row in document.pop("bad_rows")] == list(range(3, 13))
    assert document.pop("input").startswith("CSV with commas")
    assert document.pop("first_rows") == [{"line": 2, "group": "g", "account": "a", "user_name": None}]
    assert document == {
        "rows": 13,
        "usable": 1,
        "bad": 12,
        "duplicate": 0,
        "groups": 1,
        "requests": 1,
        "chunk": 50,
        "seconds": None,
    }
    assert "no rate given" in cli("remove", "members.csv", "--dry-run")[1]


# ---------------------------------------------------------------- ends that are no good ones, and going on


def test_a_job_that_fails_too_often_ends_and_is_resumed_by_the_printed_command(platform, cli, group):
    platform.faults.add(Fault(effect=Code("330107"), operation="InviteJoinGroup"))
    write_csv("members.csv", rows_of(group, count=30))

    code, out, err = cli("invite", "members.csv", "--chunk", "1", "--concurrency", "1", "--max-failures", "2", "--json")

    assert code == JobExit.GAVE_UP
    failed = json.loads(out)["accounts"]["failed"]
    assert failed in {3, 4}  # the next one leaves while the third is being recorded
    assert json.loads(out)["skipped"] == {"bad_rows": 0, "not_sent": 30 - failed}
    journal = str(Path("members.csv.invite.journal").absolute())
    assert commands(err) == [["job", "resume", journal]]

    platform.faults.clear()
    code, out, err = cli(*commands(err)[0], "--json")
    assert code == JobExit.INCOMPLETE
    assert json.loads(out)["accounts"] == dict(zip(ACCOUNTS, (30, 30 - failed, 0, failed, 0, 0, 0), strict=True))
    retry, report = commands(err)
    assert retry == ["job", "retry", journal]
    assert cli(*report)[0] == JobExit.DONE
    assert [row["state"] for row in rows_in(report[-1])] == ["failed"] * failed

    code, _, err = cli(*retry, "--rate", "1000/s")
    assert (code, commands(err)) == (JobExit.DONE, [])
    assert len(members(platform, group)) == 30


def test_a_platform_that_does_not_answer_ends_a_job(cli, group, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()
    monkeypatch.setenv("RBIM_BASE_URL", "http://{}:{}".format(*nobody))
    write_csv("members.csv", rows_of(group))

    code, _, err = cli("invite", "members.csv", "--patience", "0.2")

    assert code == JobExit.GAVE_UP
    assert "rbim: no connection was possible: cannot connect to {}:{} (refused)".format(*nobody) in err
    assert [words[:2] for words in commands(err)] == [["job", "resume"]]

    code, out, err = cli(*commands(err)[0], "--patience", "0.2", "--json")
    assert code == JobExit.GAVE_UP
    (reason,) = json.loads(out)["reasons"]
    assert (reason["state"], reason["error"], reason["accounts"]) == ("waiting", "NotSent", 7)
    assert "cannot connect to {}:{} (refused)".format(*nobody) in reason["text"]


def test_credentials_that_are_refused_end_a_job_which_others_resume(platform, cli, group, monkeypatch):
    write_csv("members.csv", rows_of(group))
    with monkeypatch.context() as wrong:
        wrong.setenv("RBIM_APP_TOKEN", "another")
        code, out, err = cli("invite", "members.csv", "--json")
    assert code == JobExit.REFUSED
    assert json.loads(out)["accounts"]["invited"] == 0
    assert "RBIM_APP_TOKEN" in err
    assert cli(*commands(err)[0])[0] == JobExit.DONE
    assert len(members(platform, group)) == 7


def test_what_is_unknown_has_an_exit_code_and_is_retried(platform, cli, group):
    platform.faults.add(
        Fault(effect=InvalidJson(), operation="InviteJoinGroup", nth=(1,)),
        Fault(effect=Code("330107"), operation="InviteJoinGroup", nth=(2,)),
    )
    write_csv("members.csv", [*rows_of(group, count=6), (group, STRANGER)])

    tokens = ["--confirm", "--chunk", "2", "--concurrency", "1", "--max-failures", "none", "--json"]
    code, out, err = cli("invite", "members.csv", *tokens)

    assert code == JobExit.UNKNOWN  # though others have failed, and one was refused
    assert json.loads(out)["accounts"] == dict(zip(ACCOUNTS, (7, 2, 1, 2, 2, 0, 0), strict=True))
    retry, _ = commands(err)
    assert json.loads(cli(*retry, "--only", "failed", "--json")[1])["accounts"]["unknown"] == 2
    code, out, _ = cli(*retry, "--only", "unknown", "--json")
    assert code == JobExit.INCOMPLETE
    assert json.loads(out)["accounts"] == dict(zip(ACCOUNTS, (7, 6, 1, 0, 0, 0, 0), strict=True))


def test_a_journal_that_takes_no_more_ends_a_job(platform, cli, group):
    platform.faults.add(Fault(effect=Code("999999"), operation="InviteJoinGroup"))
    write_csv("members.csv", rows_of(group))
    cli("invite", "members.csv")
    journal = Path("members.csv.invite.journal").absolute()
    with closing(sqlite3.connect(journal)) as database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON request BEGIN SELECT RAISE(FAIL, 'no room left'); END")

    code, _, err = cli("job", "retry", journal)

    assert code == JobExit.GAVE_UP
    assert "no room left" in err
    assert ["job", "resume", str(journal)] in commands(err)


def test_a_fault_of_our_own_is_shown_and_the_job_can_be_resumed(group, monkeypatch, capsys):
    async def broken(*_, **__):
        raise ZeroDivisionError

    write_csv("members.csv", rows_of(group))
    with monkeypatch.context() as patched:
        patched.setattr(AutoTransport, "send", broken)
        assert run(["invite", "members.csv"]) == JobExit.FAULT
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert run(commands(err)[0]) == JobExit.DONE


def test_a_job_is_resumed_in_its_own_dialect_only(cli, group):
    write_csv("m.csv", rows_of(group))
    assert cli("invite", "m.csv", "--journal", "j")[0] == JobExit.DONE
    with closing(sqlite3.connect("j")) as database, database:
        database.execute(
            "UPDATE job SET settings = json_set(settings, '$.dialect', json('{\"members_shape\": \"nested\"}'))"
        )
    code, _, err = cli("job", "resume", "j")
    assert code == JobExit.USAGE
    assert "members_shape is nested in the journal and plain here" in err
    assert "To use the dialect of the journal: --dialect members_shape=nested" in err


# ---------------------------------------------------------------- signals


@contextmanager
def once_in_flight(platform, count, *numbers, at_once=False, heeded=True):
    """Send signals, each when the one before was heeded, as soon as so many requests are in flight.

    They are answered when the last signal was heeded, or, where that ends the job ``at_once``, after the block.
    """
    platform.door.holding = True
    platform.requests.clear()

    def wait(true):
        until = time.monotonic() + PATIENCE
        while not true() and time.monotonic() < until:
            time.sleep(0.005)

    def act():
        wait(lambda: len(invitations(platform)) == count)
        for place, number in enumerate(numbers, 1):
            os.kill(os.getpid(), number)
            if heeded and (place < len(numbers) or not at_once):
                wait(lambda: "stopping" in sys.stderr.getvalue())
        if not at_once:
            platform.door.holding = False

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        platform.door.holding = False


@signals
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)])
def test_the_first_signal_lets_what_is_in_flight_end(platform, cli, group, number):
    write_csv("members.csv", rows_of(group, count=10))

    with once_in_flight(platform, 2, number):
        code, out, err = cli("invite", "members.csv", "--chunk", "1", "--concurrency", "2", "--json")

    assert code == JobExit.INTERRUPTED
    assert "stopping: waiting for 2 requests in flight; Ctrl-C again to abandon them\n" in err
    assert json.loads(out)["accounts"] == dict(zip(ACCOUNTS, (10, 2, 0, 0, 0, 8, 0), strict=True))
    assert len(members(platform, group)) == 2

    assert cli(*commands(err)[0])[0] == JobExit.DONE
    assert len(members(platform, group)) == 10
    assert len(invitations(platform)) == 10  # nobody twice


@signals
def test_under_nohup_a_closed_terminal_ends_no_job(platform, cli, group):
    write_csv("members.csv", rows_of(group, count=10))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with once_in_flight(platform, 2, signal.SIGHUP, heeded=False):
            code, _, err = cli("invite", "members.csv", "--chunk", "1", "--concurrency", "2", "--json")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (code, "stopping" in err) == (JobExit.DONE, False)
    assert len(members(platform, group)) == 10


@signals
def test_the_second_signal_ends_a_job_at_once(platform, cli, group):
    write_csv("members.csv", rows_of(group, count=4))

    with once_in_flight(platform, 1, signal.SIGINT, signal.SIGTERM, at_once=True):
        code, out, err = cli("invite", "members.csv", "--chunk", "1", "--concurrency", "1", "--json")

    assert code == JobExit.INTERRUPTED
    assert json.loads(out)["accounts"]["unknown"] == 1
    assert "stopped at once" in err

    code, out, err = cli(*commands(err)[0], "--on-unknown", "report", "--json")
    assert code == JobExit.UNKNOWN
    assert json.loads(out)["accounts"] == dict(zip(ACCOUNTS, (4, 3, 0, 0, 1, 0, 0), strict=True))
    code, out, _ = cli(*commands(err)[0], "--json")
    assert code == JobExit.DONE
    assert json.loads(out)["accounts"]["invited"] == len(members(platform, group)) == 4


@signals
def test_a_signal_that_changes_nothing_any_more_is_no_interruption(platform, cli, group):
    write_csv("members.csv", rows_of(group))

    with once_in_flight(platform, 1, signal.SIGINT):
        code, _, err = cli("invite", "members.csv")

    assert code == JobExit.DONE
    assert commands(err) == []


class Stuck(io.RawIOBase):
    """A stream that gives something and is interrupted then."""

    def __init__(self, *parts):
        self.parts = list(parts)

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self.parts:
            raise KeyboardInterrupt
        part = self.parts.pop(0)
        buffer[: len(part)] = part
        return len(part)


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_ctrl_c_before_the_first_row_leaves_nothing(cli, monkeypatch, flags):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Stuck())))

    code, out, err = cli("invite", "-", *flags)

    assert (code, out) == (JobExit.INTERRUPTED, "")
    assert "nothing was sent" in err
    assert not list(Path().iterdir())


# ---------------------------------------------------------------- what is left behind


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_file_that_cannot_be_written_is_said_after_the_report(cli, group):
    write_csv("members.csv", rows_of(group))

    code, out, err = cli("invite", "members.csv", "--not-done", "/dev/full", "--json")

    assert code == JobExit.USAGE
    assert json.loads(out)["accounts"]["invited"] == 7
    assert "--not-done: cannot write /dev/full" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_output_that_cannot_be_written_costs_no_file_and_no_next_step(cli, group, monkeypatch, flags):
    write_csv("members.csv", [*rows_of(group), (group, STRANGER)])
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code, _, err = cli("invite", "members.csv", "--not-done", "left.csv", *flags)
    assert (code, "cannot write the output: No space left" in err) == (JobExit.USAGE, True)
    assert STRANGER in Path("left.csv").read_text(encoding="utf-8")


# ---------------------------------------------------------------- looking at a job


@pytest.fixture
def finished(cli, group):
    """A journal whose job is complete: three invited, one refused, one row that cannot be used."""
    write_csv("members.csv", [*rows_of(group, count=3), (group, STRANGER), ("", "nobody")])
    assert cli("invite", "members.csv")[0] == JobExit.INCOMPLETE
    return Path("members.csv.invite.journal").absolute()


def test_status_says_how_far_a_job_is_and_who_runs_it(finished, cli):
    code, out, _ = cli("job", "status", finished)
    assert code == JobExit.DONE
    assert "InviteJoinGroup of members.csv: complete; no process runs it" in out
    assert "5 rows: 3 invited, 1 refused, 0 failed, 0 unknown, 1 skipped, 0 duplicate" in out
    assert re.search(r"^last run: .* UTC, .* s, done$", out, re.MULTILINE)

    code, out, _ = cli("job", "status", finished, "--json")
    document = json.loads(out)
    assert code == JobExit.DONE
    assert list(document) == [
        "journal",
        "operation",
        "state",
        "complete",
        "accounts",
        "in_flight",
        "running",
        "last_run",
        "erased",
    ]
    assert (document["journal"], document["state"], document["running"]) == (str(finished), "complete", False)
    assert list(document["accounts"]) == ACCOUNTS
    assert document["last_run"]["why"] == "done"


def test_status_of_a_job_that_runs_and_of_one_that_was_killed(finished, cli):
    with closing(sqlite3.connect(finished)) as database, database:
        database.execute("UPDATE run SET ended = NULL, why = NULL")
        database.execute("UPDATE request SET outcome = 0, ended = NULL")
        database.execute("UPDATE chunk SET state = 0")
        database.execute("UPDATE account SET state = NULL")
    assert "was killed" in cli("job", "status", finished)[1]
    lock = JobLock(finished)
    lock.acquire()
    try:
        document = json.loads(cli("job", "status", finished, "--json")[1])
        assert (document["running"], document["state"], document["in_flight"]) == (True, "running", 4)
        out = cli("job", "status", finished)[1]
        assert "running; a process runs it" in out
        assert "4 of the unknown are in flight" in out
        assert "still running" in out
        code, _, err = cli("job", "resume", finished)
        assert code == JobExit.USAGE
        assert "another process runs this job" in err
    finally:
        lock.release()


def test_the_report_of_a_job_in_all_its_forms(finished, cli):
    code, text, _ = cli("job", "report", finished)
    assert code == JobExit.DONE
    assert re.search(r"^ +invited +3 ", text, re.MULTILINE)
    assert list(json.loads(cli("job", "report", finished, "--json")[1])["accounts"]) == ACCOUNTS

    code, out, _ = cli("job", "report", finished, "--csv", "-")
    assert code == JobExit.DONE
    assert [row["state"] for row in csv.DictReader(io.StringIO(out))] == ["invited"] * 3 + ["refused", "skipped"]
    code, again, _ = cli("job", "report", finished, "--csv", "all.csv")
    assert again == text
    assert Path("all.csv").read_bytes().decode("utf-8-sig").replace("\r\n", "\n") == out.replace("\r\n", "\n")

    code, out, _ = cli("job", "report", finished, "--not-done", "-")
    assert code == JobExit.DONE
    assert [row["account"] for row in csv.DictReader(io.StringIO(out))] == [STRANGER]


# ---------------------------------------------------------------- wrong input and configuration


WRONG = {
    "no such file": ["nix.csv"],
    "unknown option": ["--jsonn"],
    "no group rate": ["members.csv", "--group-rate", "1"],
    "no share": ["members.csv", "--max-failures", "20 %"],
    "too large a chunk": ["members.csv", "--chunk", "51"],
    "no patience": ["members.csv", "--patience", "0"],
    "too long a reason": ["members.csv", "--declared", "x" * 51],
    "no encoding": ["members.csv", "--encoding", "klingon"],
    "no such column": ["members.csv", "--account-column", "who"],
    "no workbook": ["members.csv", "--sheet", "x"],
    "no directory": ["members.csv", "--journal", "nowhere/journal"],
    "another file": ["members.csv", "--journal", "members.csv"],
    "nowhere": ["members.csv", "--not-done", "nowhere/rest.csv"],
    "a directory": ["members.csv", "--not-done", "."],
    "the input": ["members.csv", "--not-done", "./members.csv"],
    "the journal": ["members.csv", "--not-done", "members.csv.invite.journal"],
    "standard output": ["members.csv", "--not-done=-"],
}


def test_wrong_input_is_found_before_anything_is_sent(platform, cli, group):
    write_csv("members.csv", rows_of(group))
    platform.requests.clear()
    wrong = {}
    for name, tokens in WRONG.items():
        code, out, err = cli("invite", *tokens)
        if (code, out) != (JobExit.USAGE, "") or "rbim: " not in err or Path("members.csv.invite.journal").exists():
            wrong[name] = code, out, err
    assert wrong == {}
    assert not platform.requests.records
    assert Path("members.csv").read_text(encoding="utf-8").startswith("group,account")


def test_only_one_thing_goes_to_standard_output(finished, cli):
    for flags in (["--json", "--csv", "-"], ["--csv", "-", "--not-done", "-"], ["--json", "--not-done", "-"]):
        code, out, err = cli("job", "report", finished, *flags)
        assert (code, "error" in json.loads(out or '{"error": 0}'), bool(out)) == (JobExit.USAGE, True, "--json" in flags)
        assert "only one can use standard output" in err
    assert cli("job", "report", finished, "--csv", finished)[0] == JobExit.USAGE
    assert cli("job", "report", finished, "--not-done", "members.csv")[0] == JobExit.USAGE
    assert cli("job", "report", finished, "--plot", finished)[0] == JobExit.USAGE
    assert "use .png or .svg" in cli("job", "report", finished, "--plot", "course.pdf")[2]


def test_without_matplotlib_the_extra_is_named(finished, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = cli("job", "report", finished, "--plot", "course.svg")
    assert (code, "rbim[plot]" in err) == (JobExit.USAGE, True)


# ---------------------------------------------------------------- what is shown meanwhile


def snapshot(**values):
    counts = {"done": 40, "refused": 3, "failed": 2, "unknown": 0, "skipped": 4, "duplicate": 1, "waiting": 150}
    made = {"phase": "running", "in_flight": 7, "requests": 9, "throttled": 0, "rate": 30.0, "request_rate": 1234.56}
    made |= counts | {"concurrency": 8, "elapsed": 3.0, "eta": 3725.4, "total": sum(counts.values())}
    return Snapshot(**(made | values))


def lines_of(made, width):
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(made)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_fits_the_terminal(width):
    bar, figures = lines_of(bulk_progress._bar(snapshot()), width)
    assert len(bar.rstrip()) <= width
    assert bar.rstrip().endswith("50/200  25%  1:02:05 left")
    assert figures == "1,234.6 requests/s, 7 of 8 in flight, 3 refused, 2 failed"

    cause = "cannot connect to 127.0.0.1:9 (refused): is the emulator running? (rbim emulator)" + "x" * 100
    halted = snapshot(phase="halted", throttled=5, unknown=6, eta=None, cause=cause)
    *_, state = lines_of(bulk_progress._bar(halted), width)
    assert state.startswith("paused: cannot connect to 127.0.0.1:9 (refused): is the emulator")
    assert len(state) <= width
    assert "-:--:-- left" in lines_of(bulk_progress._bar(snapshot(eta=None)), width)[0]
    assert "left" not in lines_of(bulk_progress._bar(snapshot(waiting=0)), width)[0]
    assert lines_of(bulk_progress._bar(snapshot(phase="loading")), width) == ["reading: 200 rows"]


def test_lines_come_every_few_seconds(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(bulk_progress.time, "monotonic", lambda: now[0])
    with ProgressDisplay(None, quiet=False) as progress:
        for _ in range(24):
            progress.update(snapshot(phase="draining"))
            now[0] += 0.5
    line = "stopping; 50 of 200 rows; 1,234.6 requests/s, 7 of 8 in flight, 3 refused, 2 failed, 1:02:05 left"
    assert capsys.readouterr().err.splitlines() == [line] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal_has_a_bar(cli, group, monkeypatch):
    write_csv("members.csv", [*rows_of(group), ("", "x")])
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    parts = []

    def look():
        with suppress(OSError):  # nobody has it open any more
            while part := os.read(ours, 4096):
                parts.append(part)

    thread = threading.Thread(target=look)
    with open(theirs, "w", encoding="utf-8") as terminal:  # noqa: PTH123
        thread.start()
        monkeypatch.setattr(sys, "stderr", terminal)
        assert cli("invite", "members.csv")[0] == JobExit.INCOMPLETE
    thread.join()
    os.close(ours)
    text = b"".join(parts).decode()
    assert "line 9: " in text
    assert "8/8" in text
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("8/8")  # the cursor is back


def test_what_is_left_never_goes_into_the_jobs_own_input(cli, group):
    before = Path(write_csv("m.csv", rows_of(group))).read_bytes()
    cli("invite", "m.csv")
    for command in (["job", "resume"], ["job", "retry"], ["job", "report"]):
        code, _, err = cli(*command, "m.csv.invite.journal", "--not-done", "m.csv")
        assert (code, "is the input of this job" in err) == (JobExit.USAGE, True)
    assert Path("m.csv").read_bytes() == before


def test_rates_of_the_kind_that_is_not_told_go_on(cli, group):
    write_csv("m.csv", rows_of(group))
    cli("invite", "m.csv", "--rate", "500/s", "--rate", "9000/min", "--limit", "1")
    cli("invite", "m.csv", "--limit", "1")  # the same command without its rates does not send faster
    cli("job", "resume", "m.csv.invite.journal", "--group-rate", "70/s")
    cli("job", "resume", "m.csv.invite.journal", "--rate", "400/s")
    with closing(sqlite3.connect("m.csv.invite.journal")) as file:
        settings = [json.loads(text) for (text,) in file.execute("SELECT settings FROM run ORDER BY id")]
    told = [[(rate["limit"], rate["each_group"]) for rate in each["rates"]] for each in settings]
    assert told == [
        [(500, False), (9000, False)],
        [(500, False), (9000, False)],
        [(500, False), (9000, False), (70, True)],
        [(400, False), (70, True)],
    ]


class Slots:
    """A source of slots for shared rates, all of which may be used at once; ``asked`` has the rates."""

    asked: ClassVar = set()
    name, place = "calls", "db"

    def __init__(self, address, *, spacing):
        self.key = (address, round(1 / spacing))

    def start(self, tell):
        self._tell = tell

    def ask(self, number):
        self.asked.add(self.key)
        self._tell([time.monotonic()] * number, "")

    def close(self):
        pass


def test_a_shared_rate_is_kept_by_the_client_of_a_job(cli, group, monkeypatch):
    monkeypatch.setattr(shared_rate, "SlotSource", Slots)
    monkeypatch.setattr(Slots, "asked", set())
    write_csv("m.csv", rows_of(group, count=6))
    assert cli("invite", "m.csv", "--chunk", "2", "--limit", "1", "--rate", "51/s@postgresql://db#calls")[0] in JobExit
    assert Slots.asked == {("postgresql://db#calls", 50)}
    monkeypatch.setenv("RBIM_RATES", "102/s@postgresql://db#calls")
    assert cli("job", "resume", "m.csv.invite.journal", "--group-rate", "70/s")[0] == JobExit.DONE
    assert Slots.asked == {("postgresql://db#calls", 50), ("postgresql://db#calls", 100)}
    with closing(sqlite3.connect("m.csv.invite.journal")) as file:
        settings = [json.loads(text) for (text,) in file.execute("SELECT settings FROM run ORDER BY id")]
    assert [[rate["limit"] for rate in each["rates"]] for each in settings] == [[], [70]]


@pytest.mark.parametrize("stream", ["stdin", "stderr"])
def test_a_standard_stream_may_be_closed(cli, group, monkeypatch, stream):
    write_csv("m.csv", rows_of(group))
    monkeypatch.setattr(sys, stream, None)
    code, _, err = cli("invite", "-" if stream == "stdin" else "m.csv")
    if stream == "stderr":
        sys.stderr.close()
    assert code == (JobExit.USAGE if stream == "stdin" else JobExit.DONE)
    assert ("standard input is closed" in err) == (stream == "stdin")
