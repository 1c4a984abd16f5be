"""``--page`` of the commands for jobs: a page in a process of its own, beside a job in another one."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from helpers.job_commands import STRANGER, commands, invitations, made_group, members, rows_of, write_csv
from helpers.page_jobs import running
from rbim.bulk.progress import Snapshot
from rbim.bulk.report.rows import RowChoice
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.page import command as page_command
from rbim.cli.jobs.page.command import JobPage
from rbim.cli.jobs.page.content import csv_of, reason_of_pace
from rbim.emulator.faults.requests import Code, Fault

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


def test_the_address_is_printed_on_standard_error_and_json_stays_alone(group):
    write_csv("members.csv", rows_of(group))
    with running("invite", "members.csv", "--json", "--quiet") as job:
        code, out, err = job.ended()
    assert code == JobExit.DONE
    assert len(out.splitlines()) == 1
    assert json.loads(out)["accounts"]["invited"] == 7
    assert err == f"page: {job.page.address}\n"
    assert job.page.token not in out


def test_two_watchers_see_the_same(held, group):
    write_csv("members.csv", rows_of(group))
    with running("invite", "members.csv") as job, job.page.events() as one, job.page.events() as other:
        held.door.holding = False
        first, second = seen(one), seen(other)
        assert job.ended()[0] == JobExit.DONE
    assert first[0] == second[0]
    assert first[1]["end"] == second[1]["end"]
    assert first[1]["report"][-1] == second[1]["report"][-1]


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


@pytest.fixture
def waiting(held, mixed):
    """A job of which only one request is left: the last group's answer is kept back."""
    last = made_group_when_held(held)
    with Path(mixed).open("a", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerow([last, "late"])
    held.door.holding = False
    held.door.app, served = Keeping(held.door.app, last), held.door.app
    try:
        with running("invite", mixed, "--chunk", "10", "--max-failures", "none") as job:
            with job.page.events() as events:
                next(each for each in events if (each.get("levels", {}).get("progress") or {}).get("waiting") == 1)
            yield job
            held.door.app.keeping = False
            assert job.ended()[0] == JobExit.INCOMPLETE
    finally:
        held.door.app.keeping = False
        held.door.app = served


def made_group_when_held(platform):
    platform.door.holding = False
    return made_group(platform)


class Keeping:
    """Serves ``app``, but keeps requests back whose body names a group."""

    def __init__(self, app, group):
        self.app, self.group, self.keeping = app, group.encode(), True

    async def __call__(self, scope, receive, send):
        import anyio

        message = await receive() if scope["type"] == "http" else None
        if message is not None:
            while self.keeping and self.group in message.get("body", b""):
                await anyio.sleep(0.005)

        async def again():
            nonlocal message
            found, message = message, None
            return await receive() if found is None else found

        await self.app(scope, again, send)


def test_accounts_are_found_by_outcome_reason_and_name_and_downloaded(waiting, cli):
    page = waiting.page
    journal = json.loads(next(iter(page_lines(page))))["levels"]["journal"]
    out = cli("job", "report", journal, "--csv", "-")[1]
    whole = list(csv.DictReader(io.StringIO(out)))

    def shown(**query):
        answer = page.get("/accounts", **query).json()
        assert answer["more"] is False
        return [(each["row"], each["account"], each["state"], each["reason"]) for each in answer["rows"]]

    def expected(accepts):
        rows = [row for row in whole if row["account"] and accepts(row)]
        return [(int(row["row"]), row["account"], row["state"], row["reason"]) for row in rows]

    def downloaded(**wanted):
        found = page.post("/download", **wanted).json()
        answer = page.client.get(found["path"])
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert found["name"] in answer.headers["content-disposition"]
        assert page.client.get(found["path"]).status_code == 404
        return list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))

    assert {row["state"] for row in whole} == {"invited", "refused", "failed", "unknown", "skipped", "duplicate"}
    for state in {row["state"] for row in whole}:
        assert shown(state=state) == expected(lambda row, state=state: row["state"] == state)
        assert downloaded(state=state) == [row for row in whole if row["state"] == state]
    assert shown() == expected(lambda _: True)
    assert downloaded() == whole
    refusal = next(row["reason"] for row in whole if row["state"] == "failed")
    for choice in ({"state": "failed", "reason": refusal}, {"code": "980015"}):
        assert shown(**choice) == expected(lambda row: row["state"] == "failed")
        assert downloaded(**choice) == [row for row in whole if row["state"] == "failed"]
    assert shown(text="U2") == expected(lambda row: "u2" in row["account"])
    assert shown(text="onerror") == expected(lambda row: row["account"] == HOSTILE)
    assert shown(text="%") == shown(text="nobody here") == []
    group = whole[0]["group"]
    assert shown(text=group, state="refused") == expected(lambda row: row["group"] == group and row["state"] == "refused")


def page_lines(page):
    with page.client.stream("GET", "/events", headers=page.authorization) as answer:
        yield from (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))


def test_a_list_of_accounts_goes_on_after_its_last_row(platform, group):
    write_csv("members.csv", rows_of(group, count=250))
    platform.door.holding = True
    with running("invite", "members.csv") as job:
        with job.page.events() as events:
            next(each for each in events if (each.get("levels", {}).get("progress") or {}).get("in_flight"))
        rows, after, pages = [], 0, 0
        while True:
            found = job.page.get("/accounts", after=after).json()
            rows += [each["account"] for each in found["rows"]]
            after, pages = found["rows"][-1]["row"], pages + 1
            if not found["more"]:
                break
        platform.door.holding = False
        assert job.ended()[0] == JobExit.DONE
    assert (rows, pages) == ([f"u{number}" for number in range(250)], 3)


@pytest.mark.parametrize("query", [{"after": "x"}, {"after": "-1"}])
def test_a_wrong_question_is_refused(held, group, query):
    write_csv("members.csv", rows_of(group))
    with running("invite", "members.csv") as job:
        assert job.page.get("/accounts", **query).status_code == 400
        assert job.page.post("/download", state=["done"]).status_code == 400
        held.door.holding = False
        assert job.ended()[0] == JobExit.DONE


ROWS = 200_000
MEASURED = """
import resource, sys
from pathlib import Path
from rbim.bulk.report.rows import RowChoice
from rbim.cli.jobs.page.content import accounts_page, csv_of
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


# ---------------------------------------------------------------- nothing holds up the job


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


NUMBERS = (
    *("done", "refused", "failed", "unknown", "skipped", "duplicate", "in_flight", "requests", "throttled"),
    *("rate", "request_rate", "concurrency", "elapsed"),
)


def test_a_watcher_that_reads_nothing_holds_up_nothing(held, group):
    write_csv("members.csv", rows_of(group, count=30))
    with (
        running("invite", "members.csv", "--chunk", "1") as job,
        socket.create_connection(("127.0.0.1", job.page.port)) as stuck,
    ):
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        stuck.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {job.page.token}\r\n\r\n".encode())
        held.door.holding = False
        assert job.ended()[0] == JobExit.DONE
        _until_closed(job.page.port)


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


# ---------------------------------------------------------------- wrong use


def test_a_dry_run_has_no_page(cli, group):
    write_csv("members.csv", rows_of(group))
    code, _, err = cli("invite", "members.csv", "--page", "--dry-run")
    assert code == JobExit.USAGE
    assert "--page: it shows a job that runs: leave out --dry-run" in err


@pytest.mark.parametrize(
    "words", [("invite", "members.csv"), ("remove", "members.csv", "--yes"), ("job", "retry", "x.journal")]
)
def test_without_uvicorn_the_command_says_what_to_install_and_sends_nothing(platform, cli, group, monkeypatch, words):
    write_csv("members.csv", rows_of(group))
    platform.requests.clear()
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = cli(*words, "--page")
    assert code == JobExit.USAGE
    assert err == 'rbim: this command needs uvicorn; install it with: python -m pip install "rbim[server]"\n'
    assert not invitations(platform)
    assert not list(Path().glob("*.journal"))


def test_a_page_that_cannot_be_started_sends_nothing(platform, cli, group, monkeypatch):
    write_csv("members.csv", rows_of(group))
    platform.requests.clear()
    monkeypatch.setattr(page_command, "_CODE", "raise SystemExit")
    code, _, err = cli("invite", "members.csv", "--page")
    assert code == JobExit.USAGE
    assert "--page: the page's process ended at once: run the command without --page" in err
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    code, _, err = cli("invite", "members.csv", "--page")
    assert code == JobExit.USAGE
    assert "--page: the page cannot be started: No such file or directory" in err
    assert not invitations(platform)


# ---------------------------------------------------------------- why it is as fast as it is


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


@pytest.mark.parametrize(
    ("changed", "rates", "expected"),
    [
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
    ],
)
def test_the_page_says_what_limits_the_job(changed, rates, expected):
    assert reason_of_pace(USUAL | changed, rates) == expected
