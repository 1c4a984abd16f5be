"""``--page`` of the commands for jobs in this process: what it needs, what it cannot hold up, and what it says."""

from __future__ import annotations

import csv
import io
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from helpers.job_commands import STRANGER, invitations, made_group, rows_of, write_csv
from rbim.bulk.progress import Snapshot
from rbim.bulk.report.rows import RowChoice
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.page import command as page_command
from rbim.cli.jobs.page.command import JobPage
from rbim.cli.jobs.page.process import accounts_page, csv_of, reason_of_pace
from rbim.emulator.faults import Code, Fault

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def test_accounts_are_found_by_outcome_reason_and_name_and_downloaded(platform, cli, group):
    bad, hostile = made_group(platform), "<img src=x onerror=alert(1)>"
    rejected = Code("980015", "content is rejected")
    platform.faults.add(Fault(effect=rejected, operation="InviteJoinGroup", match={"group_id": bad}))
    others = [(group, STRANGER), (bad, "b1"), ("", "nobody"), (group, "u1"), (group, hostile)]
    write_csv("m.csv", [*rows_of(group, count=250), *others])
    assert cli("invite", "m.csv", "--max-failures", "none")[0] == JobExit.INCOMPLETE
    whole = list(csv.DictReader(io.StringIO(cli("job", "report", "m.csv.invite.journal", "--csv", "-")[1])))
    journal = Path("m.csv.invite.journal")
    refusal = next(row["reason"] for row in whole if row["state"] == "failed")
    choices = [
        ({"state": state}, lambda row, state=state: row["state"] == state) for state in {row["state"] for row in whole}
    ]
    for choice, accepts in [
        *choices,
        ({}, lambda _: True),
        ({"state": "failed", "reason": refusal}, lambda row: row["state"] == "failed"),
        ({"code": "980015"}, lambda row: row["state"] == "failed"),
        ({"text": "U2"}, lambda row: "u2" in row["account"]),
        ({"text": "onerror"}, lambda row: row["account"] == hostile),
        ({"text": "%"}, lambda _: False),
        ({"text": group, "state": "refused"}, lambda row: row["group"] == group and row["state"] == "refused"),
    ]:
        shown, after, more = [], 0, True
        while more:
            found = accounts_page(journal, RowChoice(**choice), after)
            shown += [(each["row"], each["account"], each["state"], each["reason"]) for each in found["rows"]]
            after, more = (shown[-1][0], found["more"]) if shown else (0, False)
        rows = [row for row in whole if row["account"] and accepts(row)]
        assert shown == [(int(row["row"]), row["account"], row["state"], row["reason"]) for row in rows], choice
        with csv_of(journal, RowChoice(**choice)) as file:
            file.seek(0)
            downloaded = list(csv.DictReader(io.StringIO(file.read().decode("utf-8-sig"))))
        assert [row for row in downloaded if row["account"]] == rows, choice


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are POSIX's")
def test_the_file_of_a_download_has_no_name_and_no_reader(cli, group, tmp_path, monkeypatch):
    write_csv("members.csv", rows_of(group))
    assert cli("invite", "members.csv")[0] == JobExit.DONE
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = os.umask(0)
    try:
        with csv_of(Path("members.csv.invite.journal"), RowChoice()) as file:
            found = os.fstat(file.fileno())
            assert (found.st_nlink, stat.S_IMODE(found.st_mode), list(folder.iterdir())) == (0, 0o600, [])
            assert len(file.read().splitlines()) == 0
            file.seek(0)
            assert len(file.read().splitlines()) == 8
    finally:
        os.umask(before)


NUMBERS = (
    *("done", "refused", "failed", "unknown", "skipped", "duplicate", "in_flight", "requests", "throttled"),
    *("rate", "request_rate", "concurrency", "elapsed"),
)


@linux
def test_a_stuck_page_never_holds_up_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(page_command, "ENDS_WITHIN", 0.2)
    snapshot = Snapshot(phase="running", total=1, waiting=1, **dict.fromkeys(NUMBERS, 0), eta=None, cause="x" * 900)
    with JobPage(tmp_path / "journal", "rbim invite") as page:
        process = page._process
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(1000):  # more than a pipe holds
            page.update(snapshot)
        page.end({"code": 0})
    assert time.monotonic() - began < 10
    assert process.returncode == -signal.SIGKILL


def test_a_dry_run_has_no_page(cli, group):
    write_csv("members.csv", rows_of(group))
    code, _, err = cli("invite", "members.csv", "--page", "--dry-run")
    assert code == JobExit.USAGE
    assert "--page: it shows a job that runs: leave out --dry-run" in err


class Ended(subprocess.Popen):
    """A process that has ended before anything is written to it."""

    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        self.wait()


def test_a_page_that_cannot_be_started_sends_nothing(platform, cli, group, monkeypatch):
    write_csv("members.csv", rows_of(group))
    platform.requests.clear()
    for program, kind in (("import sys; sys.stdin.readline()", subprocess.Popen), ("raise SystemExit", Ended)):
        monkeypatch.setattr(page_command, "_CODE", program)
        monkeypatch.setattr(page_command.subprocess, "Popen", kind)
        code, _, err = cli("invite", "members.csv", "--page")
        assert code == JobExit.USAGE
        assert "--page: the page's process ended at once: run the command without --page" in err
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    code, _, err = cli("invite", "members.csv", "--page")
    assert code == JobExit.USAGE
    assert "--page: the page cannot be started: No such file or directory" in err
    assert not invitations(platform)


RATE = {"limit": 600, "per": 60, "each_group": False}


EACH = {"limit": 1, "per": 1, "each_group": True}


USUAL = {
    "phase": "running",
    "waiting": 10,
    "throttled": 0,
    "adaptive_rate": None,
    "request_rate": 5.0,
    "in_flight": 3,
    "concurrency": 10,
}


def test_the_page_says_what_limits_the_job():
    for changed, rates, expected in [
        ({}, [], "full"),
        ({"in_flight": 9}, [], "concurrency"),
        ({"in_flight": 8}, [], "full"),
        ({"request_rate": 9.0}, [RATE], "rate"),
        ({"request_rate": 8.9}, [RATE], "full"),
        ({"adaptive_rate": 7.0, "in_flight": 10}, [], "begins"),
        ({"adaptive_rate": 7.0, "in_flight": 10, "throttled": 1}, [], "throttled"),
        ({"waiting": 0, "in_flight": 10}, [], "ending"),
        ({}, [EACH], "rate of groups"),
        ({"phase": "halted", "adaptive_rate": 7.0}, [], "halted"),
        ({"phase": "draining"}, [RATE], "draining"),
        ({"phase": "loading"}, [], "loading"),
        ({"phase": "ended"}, [], "ended"),
    ]:
        assert (changed, rates, reason_of_pace(USUAL | changed, rates)) == (changed, rates, expected)
