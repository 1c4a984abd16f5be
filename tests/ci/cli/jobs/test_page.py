"""``--page`` of the commands for jobs: a page in a process of its own, beside a job in another one."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.job_commands import STRANGER, commands, made_group, members, rows_of, write_csv
from helpers_ci.page_jobs import running
from rbim.cli.exit_codes import JobExit
from rbim.emulator.faults import Code, Fault

signals = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

STATES = ("waiting", "done", "refused", "failed", "unknown", "skipped", "duplicate")
HOSTILE = "<img src=x onerror=alert(1)>"


def adds_up(progress):
    return progress["total"] == sum(progress[name] for name in STATES)


@pytest.fixture
def held(platform):
    """The platform keeps its answers back until the test lets it go."""
    platform.door.holding = True
    return platform


@pytest.fixture
def mixed(platform, group):
    """A file with rows of every kind: done, refused, failed, unusable, and one that repeats another."""
    bad = made_group(platform)
    platform.faults.add(
        Fault(effect=Code("980015", "content is rejected"), operation="InviteJoinGroup", match={"group_id": bad})
    )
    rows = [
        *rows_of(group, count=30),
        (group, STRANGER),
        (bad, "b1"),
        (bad, "b2"),
        ("", "nobody"),
        (group, "u1"),
        (group, HOSTILE),
    ]
    return write_csv("members.csv", rows)


def seen(events):
    """Return the last levels and the items of each stream, when the page has ended."""
    levels, streams = None, {}
    for event in events:
        levels = event.get("levels", levels)
        for name, part in event["streams"].items():
            streams.setdefault(name, []).extend(part["items"])
        if levels is not None and levels["progress"]:
            assert adds_up(levels["progress"]), levels
    return levels, streams


# ---------------------------------------------------------------- from the beginning to the end


def test_the_page_shows_the_job_from_its_first_request_to_its_exit_code(held, cli, mixed):
    with running("invite", mixed, "--chunk", "10") as job, job.page.events() as events:
        first = next(each for each in events if each.get("levels", {}).get("progress"))["levels"]
        assert first["command"] == "rbim invite"
        assert first["journal"].endswith("members.csv.invite.journal")
        assert adds_up(first["progress"])
        held.door.holding = False
        levels, streams = seen(events)
        code, out, err = job.ended()

    assert code == JobExit.INCOMPLETE
    assert levels["progress"]["phase"] == "ended"
    assert levels["progress"]["total"] == 36
    (end,) = streams["end"]
    assert (end["code"], end["meaning"]) == (3, JobExit.INCOMPLETE.meaning)
    assert [step["command"] for step in end["steps"]] == [f"rbim {shlex.join(each)}" for each in commands(err)]
    assert [step["kind"] for step in end["steps"]] == ["retry", "list"]
    report = streams["report"][-1]
    assert {key: report[key] for key in ("accounts", "complete", "state", "adds_up")} == {
        "accounts": {"total": 36, "invited": 31, "refused": 1, "failed": 2, "unknown": 0, "skipped": 1, "duplicate": 1},
        "complete": True,
        "state": "complete",
        "adds_up": True,
    }
    assert report["done_word"] == "invited"
    assert json.loads(cli("job", "report", "members.csv.invite.journal", "--json")[1]) == {
        name: value for name, value in report.items() if name != "done_word"
    }
    assert {(each["state"], each["code"], each["accounts"]) for each in report["reasons"]} == {
        ("refused", "", 1),
        ("failed", "980015", 2),
    }
    assert "InviteJoinGroup" in out


@signals
def test_an_interrupted_job_says_how_to_resume_and_the_resumed_one_has_a_page_too(held, group):
    write_csv("members.csv", rows_of(group, count=40))
    with running("invite", "members.csv", "--chunk", "5", "--concurrency", "2") as job, job.page.events() as events:
        next(each for each in events if (each.get("levels", {}).get("progress") or {}).get("in_flight"))
        job.popen.send_signal(signal.SIGINT)
        held.door.holding = False
        levels, streams = seen(events)
        code, _, err = job.ended()
    assert code == JobExit.INTERRUPTED
    (end,) = streams["end"]
    (step,) = end["steps"]
    assert (end["code"], step["kind"], step["reason"]) == (130, "resume", "stopped")
    assert step["command"] in err
    assert step["left"]["not sent"] == levels["progress"]["waiting"] > 0

    held.door.holding = True
    with running(*shlex.split(step["command"])[1:]) as resumed, resumed.page.events() as events:
        held.door.holding = False
        levels, streams = seen(events)
        assert resumed.ended()[0] == JobExit.DONE
    assert (levels["command"], streams["end"][0]["code"], streams["end"][0]["steps"]) == ("rbim job resume", 0, [])
    assert len(streams["report"][-1]["runs"]) == 2


@signals
def test_the_page_of_a_killed_command_says_so_and_ends(held, group):
    write_csv("members.csv", rows_of(group))
    with running("invite", "members.csv") as job, job.page.events() as events:
        next(each for each in events if (each.get("levels", {}).get("progress") or {}).get("in_flight"))
        job.popen.kill()
        _, streams = seen(events)
        held.door.holding = False
        assert streams["end"] == [{"code": None, "report": False}]
        _until_closed(job.page.port)


def _until_closed(port):
    for _ in range(1000):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    raise AssertionError("the page still listens")


# ---------------------------------------------------------------- accounts


ROWS = 60_000
MEASURED = """
import resource, sys
from pathlib import Path
from rbim.bulk.report.rows import RowChoice
from rbim.cli.jobs.page.process import accounts_page, csv_of
journal = Path(sys.argv[1])
accounts_page(journal, RowChoice(), 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with csv_of(journal, RowChoice(state="skipped")) as file:
    size = file.seek(0, 2)
    file.seek(0)
    lines = sum(1 for _ in file)
accounts_page(journal, RowChoice(text="no such account"), 0)
print(lines, size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@linux
def test_a_download_of_many_rows_needs_little_memory(cli, group):
    write_csv("members.csv", [(group, f"1380{number:08}") for number in range(ROWS)])
    assert "limit of this run" in cli("invite", "members.csv", "--limit", "500")[2]
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, "members.csv.invite.journal"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    lines, size, grown = map(int, ran.stdout.split())
    assert lines > ROWS - 1000
    assert size > 40 * lines
    assert grown < 12 * 1024, f"{grown} KiB for a file of {size} bytes"


# ---------------------------------------------------------------- nothing holds up the job


def test_a_page_that_died_costs_the_job_nothing(held, group):
    write_csv("members.csv", rows_of(group))
    with running("invite", "members.csv") as job:
        if sys.platform.startswith("linux"):
            os.kill(*children(job.popen.pid), signal.SIGKILL)
        held.door.holding = False
        assert job.ended()[0] == JobExit.DONE
    assert len(members(held, group)) == 7


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# ---------------------------------------------------------------- what the page's process knows


@linux
def test_the_process_of_the_page_has_no_credentials_and_shows_no_token(held, group):
    write_csv("members.csv", rows_of(group))
    with running("invite", "members.csv") as job:
        (page,) = children(job.popen.pid)
        for process in (page, job.popen.pid):
            assert job.page.token.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()
            assert job.page.token.encode() not in Path(f"/proc/{process}/environ").read_bytes()
        assert b"the-token" not in Path(f"/proc/{page}/environ").read_bytes()
        assert b"RBIM_" not in Path(f"/proc/{page}/environ").read_bytes()
        held.door.holding = False
        assert job.ended()[0] == JobExit.DONE
