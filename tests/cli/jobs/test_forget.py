"""``rbim job forget``, and what the other commands say of a journal without accounts or with damage."""

import json
import os
import sqlite3
from contextlib import closing

import anyio
import pytest

from helpers.jobs import world
from rbim.bulk import InviteJob, Row
from rbim.bulk.journal.lock import JobLock
from rbim.bulk.journal.schema import JOURNAL
from rbim.cli.exit_codes import JobExit
from rbim.emulator.faults import Status


@pytest.fixture(autouse=True)
def nowhere(bare_environment, tmp_path):
    bare_environment.chdir(tmp_path)
    for name, value in {"BASE_URL": "http://localhost:9", "APP_ID": "app", "APP_TOKEN": "token"}.items():
        bare_environment.setenv(f"RBIM_{name}", value)


def job(path, *, finished=True):
    async def send():
        async with world() as made:
            (group,) = made.groups
            if not finished:
                made.plan(Status(500))
            settings = {} if finished else {"chunk": 1, "concurrency": 1, "max_failures": 0}
            made_job = InviteJob(made.client, journal=path, **settings)
            return await made_job.run([Row(group, f"Wanda{number}") for number in range(9)])

    return anyio.run(send)


def has_accounts(path):
    return any(b"Wanda" in each.read_bytes() for each in path.parent.iterdir())


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "a.journal"
    job(path)
    return path


def test_it_asks_before_it_erases(cli, journal, monkeypatch):
    code, out, err = cli("job", "forget", journal)
    assert (code, out) == (JobExit.USAGE, "")
    assert f"nothing was erased: this would permanently erase 9 accounts from {journal}" in err
    assert f"rbim job forget {journal} --yes" in err
    assert has_accounts(journal)
    monkeypatch.setattr("rbim.cli.confirm.at_terminal", lambda: True)
    for answer, code in (("n\n", JobExit.USAGE), ("y\n", JobExit.DONE)):
        read, write = os.pipe()
        os.write(write, answer.encode())
        os.close(write)
        with os.fdopen(read) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert cli("job", "forget", journal)[0] == code
        assert has_accounts(journal) == (code is JobExit.USAGE)


def test_afterwards_only_counts_are_shown(cli, journal, tmp_path):
    before = json.loads(cli("job", "report", journal, "--json")[1])
    code, out, err = cli("job", "forget", journal, "--yes")
    assert (code, err) == (JobExit.DONE, "")
    assert out.startswith("the accounts were erased on ")
    assert cli("job", "forget", journal)[:2] == (JobExit.DONE, out)
    after = json.loads(cli("job", "report", journal, "--json")[1])
    assert after["accounts"] == before["accounts"]
    assert (before["job"]["erased"], after["job"]["erased"] is None) == (None, False)
    assert json.loads(cli("job", "status", journal, "--json")[1])["erased"] == after["job"]["erased"]
    assert "the accounts were erased on" in cli("job", "status", journal)[1]
    for command in (["resume"], ["retry"], ["report", "--csv", "x.csv"], ["report", "--not-done", "x.csv"]):
        code, out, err = cli("job", command[0], journal, *command[1:])
        assert (code, out) == (JobExit.USAGE, "")
        assert err.startswith(f"rbim: {journal}: its accounts were erased on {after['job']['erased'][:10]}")
    assert not (tmp_path / "x.csv").exists()


def test_an_unfinished_job_needs_a_flag_and_a_running_one_stays(cli, tmp_path):
    path = tmp_path / "b.journal"
    job(path, finished=False)
    code, _, err = cli("job", "forget", path, "--yes")
    assert (code, "accounts still wait to be sent" in err, "--unfinished" in err) == (JobExit.USAGE, True, True)
    lock = JobLock(path)
    lock.acquire()
    try:
        code, _, err = cli("job", "forget", path, "--yes", "--unfinished")
    finally:
        lock.release()
    assert (code, "another process runs this job" in err) == (JobExit.USAGE, True)
    assert has_accounts(path)
    assert "still wait to be sent" in cli("job", "forget", path, "--unfinished")[2]
    assert cli("job", "forget", path, "--yes", "--unfinished")[0] == JobExit.DONE
    assert not has_accounts(path)


def test_what_cannot_be_read_is_one_clear_line(cli, journal):
    before = journal.read_bytes()
    for change, said in [
        (
            "PRAGMA user_version = 99",
            f"its schema has version 99, and this rbim knows {JOURNAL.version} at most: update rbim",
        ),
        ("PRAGMA application_id = 1", "cannot be a job's journal: it is a database of another application"),
        ("UPDATE job SET settings = '{', source = '['", "it is damaged"),
        ("UPDATE job SET erased = 0", "the erasure of its accounts was interrupted"),
    ]:
        journal.write_bytes(before)
        with closing(sqlite3.connect(journal)) as plain, plain:
            plain.execute(change)
        for command in ("status", "report", "resume", "retry", "forget --yes"):
            word, *flags = command.split()
            code, out, err = cli("job", word, journal, *flags)
            if flags and "erased" in change:
                assert code == JobExit.DONE
                continue
            assert (code, out, "bug" in err, command) == (JobExit.USAGE, "", False, command)
            assert said in err.splitlines()[0]
