"""The erasure of a journal: no byte of a person is left in any file, and the counts are those from before."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime

import pytest

from helpers.jobs import world
from rbim.bulk import InviteJob, Row, RowFile, forget_job, open_job, read_report
from rbim.bulk.journal.lock import JobLock
from rbim.emulator.faults.requests import Status
from rbim.errors import InvalidRequest

MARK = "Wanda"
"""Part of every text in the job that is about a person."""

posix = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")


def leaks(folder):
    """The files that have a mark, as text in each encoding that SQLite and JSON may use."""
    forms = [MARK.encode(each) for each in ("utf-8", "utf-16-le", "utf-16-be")]
    return sorted(path.name for path in folder.iterdir() if any(form in path.read_bytes() for form in forms))


async def finished(folder, *, rows=300):
    """A job with accounts in each state, bad rows and duplicates; its input is in another folder."""
    source = folder.parent / "input"
    source.mkdir(exist_ok=True)
    text = "".join(f"{{group}},{MARK}{number % (rows - 7)},{MARK}-acting{number % 3}\n" for number in range(rows))
    async with world() as made:
        (group,) = made.groups
        path = source / f"{MARK}.csv"
        path.write_text(
            f"group,account,user_name\n{text.replace('{group}', group)},{MARK}-without-group,x\n", encoding="utf-8"
        )
        made.emulator.never_logged_in(f"{MARK}5")
        made.plan(Status(418), times=1)
        journal = folder / "job"
        job = InviteJob(made.client, journal=journal, chunk=20, declared=f"for {MARK}", user_name=f"{MARK}-me")
        report = await job.run(RowFile(str(path), kind="csv"))
    return journal, report


def counts(report):
    document = report.as_json()
    return {name: document[name] for name in ("accounts", "requests", "state", "skipped", "runs", "over_time", "seconds")}


async def test_no_byte_of_a_person_is_left_and_the_counts_stay(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir()
    journal, before = await finished(folder)
    assert before.accounts.refused
    assert before.accounts.bad == 1
    assert before.accounts.duplicate == 7
    assert leaks(folder) == ["job"]
    at = forget_job(journal)
    assert abs((datetime.now(UTC) - at).total_seconds()) < 60
    assert leaks(folder) == []
    after = read_report(journal)
    assert counts(after) == counts(before)
    assert after.erased == at
    assert MARK not in json.dumps(after.as_json())
    by_code = [sorted((each.state, each.code, each.error) for each in report.reasons) for report in (before, after)]
    assert sorted(set(by_code[0])) == by_code[1]
    with closing(sqlite3.connect(journal)) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        views = dict(plain.execute("SELECT state, count(*) FROM accounts GROUP BY state"))
        assert sum(views.values()) == before.accounts.total - before.accounts.bad - before.accounts.duplicate
    kept = journal.read_bytes()
    assert forget_job(journal) == at
    assert journal.read_bytes() == kept


async def test_an_erased_job_is_neither_continued_nor_begun_again(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir()
    journal, _ = await finished(folder)
    day = f"{forget_job(journal):%Y-%m-%d}"
    async with world() as made:
        job = InviteJob(made.client, journal=journal)
        for run in (job.run([Row("g", "a")]), job.resume(), job.retry()):
            with pytest.raises(InvalidRequest, match=f"its accounts were erased on {day}"):
                await run
        with pytest.raises(InvalidRequest, match=f"its accounts were erased on {day}"):
            open_job(made.client, journal)
        assert not made.sent()


async def test_an_unfinished_job_is_erased_only_on_demand(tmp_path):
    journal = tmp_path / "job"
    async with world() as made:
        (group,) = made.groups
        made.plan(Status(500))
        job = InviteJob(made.client, journal=journal, chunk=1, concurrency=1, max_failures=0)
        before = await job.run([Row(group, f"{MARK}{number}") for number in range(40)])
    assert before.accounts.not_sent
    with closing(sqlite3.connect(journal)) as plain:
        ((left,),) = plain.execute("SELECT count(*) FROM accounts WHERE state IN ('waiting', 'waiting again')")
    assert before.accounts.not_sent <= left < 40
    with pytest.raises(InvalidRequest, match=rf"{left} accounts still wait to be sent.*--unfinished"):
        forget_job(journal)
    assert leaks(tmp_path) == ["job"]
    forget_job(journal, unfinished=True)
    assert leaks(tmp_path) == []
    assert counts(read_report(journal)) == counts(before)


async def test_a_job_whose_input_was_not_read_to_its_end(tmp_path):
    journal, _ = await finished(tmp_path, rows=30)
    with closing(sqlite3.connect(journal)) as plain, plain:
        plain.execute("UPDATE job SET loaded = NULL")
        for table in ("chunk", "exception"):
            plain.execute(f"DELETE FROM {table}")
    with pytest.raises(InvalidRequest, match="its input was not read completely"):
        forget_job(journal)
    forget_job(journal, unfinished=True)
    assert leaks(tmp_path) == []
    assert read_report(journal).accounts.total == 30 + 1


async def test_an_erasure_that_cannot_be_noted_is_an_error_and_can_be_repeated(tmp_path):
    journal, _ = await finished(tmp_path, rows=30)
    full = "BEFORE UPDATE OF erased ON job WHEN new.erased > 0 BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    with closing(sqlite3.connect(journal)) as plain, plain:
        plain.execute(f"CREATE TRIGGER full {full}")
    with pytest.raises(InvalidRequest, match="disk full"):
        forget_job(journal)
    with closing(sqlite3.connect(journal)) as plain, plain:
        plain.execute("DROP TRIGGER full")
    with pytest.raises(InvalidRequest, match="was interrupted"):
        read_report(journal)
    at = forget_job(journal)
    assert read_report(journal).erased == at


async def test_a_job_that_runs_is_not_erased(tmp_path):
    journal, _ = await finished(tmp_path, rows=30)
    lock = JobLock(journal)
    lock.acquire()
    try:
        with pytest.raises(InvalidRequest, match="another process runs this job"):
            forget_job(journal, unfinished=True)
    finally:
        lock.release()
    assert leaks(tmp_path) == ["job"]


KILLED = """
import os, signal, sys
from rbim.bulk.journal import forget
from rbim.storage.sqlite import Database
place, journal = sys.argv[1:]
def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)
execute = Database.execute
def watched(self, statement, values=()):
    if statement.startswith(place):
        if place == "VACUUM":
            execute(self, statement, values)
        die()
    return execute(self, statement, values)
Database.execute = watched
forget.forget_job(journal)
"""


@posix
@pytest.mark.parametrize(
    "place", ["UPDATE bad_row", "UPDATE job SET options", "VACUUM", "PRAGMA wal_checkpoint", "UPDATE job SET erased"]
)
async def test_an_interrupted_erasure_is_said_and_completed_by_the_next(tmp_path, place):
    journal, before = await finished(tmp_path, rows=60)
    with closing(sqlite3.connect(journal)) as reader:  # keeps the log from being removed
        reader.execute("SELECT * FROM job").fetchall()
        killed = subprocess.run([sys.executable, "-c", KILLED, place, journal], timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
    if place in {"UPDATE bad_row", "UPDATE job SET options"}:  # nothing was committed
        assert counts(read_report(journal)) == counts(before)
        assert read_report(journal).erased is None
    else:
        with pytest.raises(InvalidRequest, match="the erasure of its accounts was interrupted: run rbim job forget again"):
            read_report(journal)
    forget_job(journal)
    assert leaks(tmp_path) == []
    assert counts(read_report(journal)) == counts(before)


@pytest.mark.parametrize("code", [f"E-{MARK}", "13800138000", "1234567", "x"])
async def test_a_code_that_may_name_an_account_is_erased(tmp_path, code):
    """The platform's codes have six digits; what stands in place of one can be anything."""
    journal, before = await finished(tmp_path, rows=60)
    with closing(sqlite3.connect(journal)) as plain, plain:
        plain.execute("UPDATE reason SET code = ? WHERE id = (SELECT min(id) FROM reason)", (code,))
        kept = [each for (each,) in plain.execute("SELECT code FROM reason WHERE code <> ?", (code,))]
    forget_job(journal)
    assert leaks(tmp_path) == []
    codes = {each.code for each in read_report(journal).reasons}
    assert code not in codes
    assert "other" in codes
    assert codes - {"other"} <= set(kept)
    assert counts(read_report(journal)) == counts(before)


async def test_a_reader_that_stays_is_said(tmp_path, monkeypatch):
    journal, _ = await finished(tmp_path, rows=30)
    monkeypatch.setattr("rbim.bulk.journal.forget.PATIENCE", 0.1)
    with closing(sqlite3.connect(journal, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM job").fetchall()
        with pytest.raises(InvalidRequest, match="another program reads the journal"):
            forget_job(journal)
    forget_job(journal)
    assert leaks(tmp_path) == []


def test_there_must_be_a_journal(tmp_path):
    with pytest.raises(InvalidRequest, match="there is no journal"):
        forget_job(tmp_path / "none")
    (tmp_path / "text").write_text("no database", encoding="utf-8")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        forget_job(tmp_path / "text")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
