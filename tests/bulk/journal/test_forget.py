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
from helpers.tables import each_row
from rbim.bulk import InviteJob, RowFile, forget_job, read_report
from rbim.emulator.faults import Code
from rbim.errors import InvalidRequest
from rbim.storage.sqlite import Database

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
        made.plan(Code("999999"), times=1)
        journal = folder / "job"
        job = InviteJob(made.client, journal=journal, chunk=20, declared=f"for {MARK}", user_name=f"{MARK}-me")
        report = await job.run(RowFile(str(path)))
    return journal, report


def counts(report):
    document = report.to_dict()
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
    assert MARK not in json.dumps(after.to_dict())
    by_code = [sorted((each.state, each.code, each.error) for each in report.reasons) for report in (before, after)]
    assert sorted(set(by_code[0])) == by_code[1]
    with closing(sqlite3.connect(journal)) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        views = dict(plain.execute("SELECT state, count(*) FROM accounts GROUP BY state"))
        assert sum(views.values()) == before.accounts.total - before.accounts.bad - before.accounts.duplicate
    kept = journal.read_bytes()
    assert forget_job(journal) == at
    assert journal.read_bytes() == kept


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
@pytest.mark.ci
@pytest.mark.parametrize(
    "place", ["DELETE FROM bad_row", "UPDATE job SET options", "VACUUM", "PRAGMA wal_checkpoint", "UPDATE job SET erased"]
)
async def test_an_interrupted_erasure_is_said_and_completed_by_the_next(tmp_path, place):
    journal, before = await finished(tmp_path, rows=60)
    with closing(sqlite3.connect(journal)) as reader:  # keeps the log from being removed
        reader.execute("SELECT * FROM job").fetchall()
        killed = subprocess.run([sys.executable, "-c", KILLED, place, journal], timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
    if place in {"DELETE FROM bad_row", "UPDATE job SET options"}:  # nothing was committed
        assert counts(read_report(journal)) == counts(before)
        assert read_report(journal).erased is None
    else:
        with pytest.raises(InvalidRequest, match="the erasure of its accounts was interrupted: run rbim job forget again"):
            read_report(journal)
    forget_job(journal)
    assert leaks(tmp_path) == []
    assert counts(read_report(journal)) == counts(before)


@each_row("code", [f"E-{MARK}", "13800138000", "1234567", "x"])
async def test_a_code_that_may_name_an_account_is_erased(tmp_path, code):
    """The platform's codes have six digits; what stands in place of one can be anything."""
    folder = tmp_path / code
    folder.mkdir()
    journal, before = await finished(folder, rows=60)
    with closing(sqlite3.connect(journal)) as plain, plain:
        plain.execute("UPDATE reason SET code = ? WHERE id = (SELECT min(id) FROM reason)", (code,))
        kept = [each for (each,) in plain.execute("SELECT code FROM reason WHERE code <> ?", (code,))]
    forget_job(journal)
    assert leaks(folder) == []
    codes = {each.code for each in read_report(journal).reasons}
    assert code not in codes
    assert "other" in codes
    assert codes - {"other"} <= set(kept)
    assert counts(read_report(journal)) == counts(before)


async def test_a_reader_that_stays_is_said(tmp_path, monkeypatch):
    journal, _ = await finished(tmp_path, rows=30)
    monkeypatch.setattr("rbim.bulk.journal.forget.READER_TIMEOUT", 0.1)
    with closing(sqlite3.connect(journal, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM job").fetchall()
        with pytest.raises(InvalidRequest, match="another program reads the journal"):
            forget_job(journal)
    still_read, truncate = iter([True]), Database.truncate_log
    monkeypatch.setattr(Database, "truncate_log", lambda self: not next(still_read, False) and truncate(self))
    forget_job(journal)  # a reader that soon ends is waited for
    assert leaks(tmp_path) == []
