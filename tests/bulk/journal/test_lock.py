"""The lock of a job: of the journal's file, whatever its name, and of no one but a living holder."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.lock import JobLock, is_locked
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest

posix = pytest.mark.skipif(os.name == "nt", reason="no flock, no fork")

HOLD = """
import os, sys
from pathlib import Path
from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.lock import JobLock
from rbim.clock import SystemClock
path = Path(sys.argv[1])
lock = JobLock(path)
lock.acquire()
journal = Journal(path, clock=SystemClock())
journal.open()
child = os.fork() if "fork" in sys.argv else None
if not child:  # the child, if there is one
    print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path, *words):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline().strip()
            yield process
        finally:
            process.kill()


def taken(path):
    """Whether the lock cannot be taken; looking does not take it."""
    said = is_locked(path)
    lock = JobLock(path)
    if said:
        with pytest.raises(InvalidRequest, match="another process runs this job"):
            lock.acquire()
    else:
        lock.acquire()
        lock.release()
    return said


@posix
def test_every_name_of_a_journal_meets_its_lock(journal, tmp_path):
    JobLock(journal).acquire()
    os.link(journal, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(journal)
    names = [journal, tmp_path / "hard", tmp_path / "soft"]
    assert [taken(name) for name in names] == [True] * 3
    assert not taken(tmp_path / "other")


def test_what_cannot_be_found_out_is_not_called_locked(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="cannot find out whether a process runs this job: Not a directory"):
        is_locked(tmp_path / "file" / "journal")


@posix
def test_a_link_to_a_missing_file_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    for open_it in (JobLock(tmp_path / "link").acquire, Journal(tmp_path / "link", clock=SystemClock()).open):
        with pytest.raises(InvalidRequest, match=r"symbolic link to .*unmounted, which does not exist"):
            open_it()
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_on_windows_a_file_beside_the_journal_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr("rbim.bulk.journal.lock._lock_file", lambda path: path.with_name(f"{path.name}-lock"))
    journal = tmp_path / "job"
    first, second = JobLock(journal), JobLock(journal)
    assert not is_locked(journal)
    first.acquire()
    assert journal.is_file()
    assert is_locked(journal)
    with pytest.raises(InvalidRequest, match="another process runs this job"):
        second.acquire()
    first.release()
    assert not taken(journal)
    assert (tmp_path / "job-lock").stat().st_mode & 0o777 == 0o600


def test_a_journal_is_private_from_its_first_byte(journal):
    old = os.umask(0)
    try:
        lock = JobLock(journal)
        for _ in range(2):  # it can be taken again
            lock.acquire()
            assert is_locked(journal)
            lock.release()
            assert not is_locked(journal)
    finally:
        os.umask(old)
    assert journal.stat().st_mode & 0o777 == 0o600 or os.name == "nt"


@posix
def test_who_looks_sees_a_run_and_no_other_that_looks(journal):
    """Locks of another opening of the file are as those of another process."""
    fcntl = pytest.importorskip("fcntl")
    journal.touch()
    for kind, said in ((fcntl.LOCK_EX, True), (fcntl.LOCK_SH, False)):
        with journal.open("rb") as other:
            fcntl.flock(other, kind)
            assert is_locked(journal) is said


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # threads of an earlier test
@posix
def test_a_forked_child_holds_no_lock_and_can_look(journal):
    lock = JobLock(journal)
    lock.acquire()
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        signal.alarm(20)  # if it waits for ever
        there.send(b"x")
        there.recv(1)
        os._exit(is_locked(journal))
    with here, there:
        here.recv(1)
        lock.release()
        assert not taken(journal)
        here.send(b"x")
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.ci
@posix
@pytest.mark.parametrize("word", ["alone", "fork"])
def test_the_lock_ends_with_its_holder_also_if_a_child_of_it_lives(journal, word):
    with holder(journal, word) as process:
        assert taken(journal)
        process.kill()
        process.wait()
        assert not taken(journal)
    lock = JobLock(journal)
    lock.acquire()
    assert taken(journal)
    lock.release()
    lock.release()
    assert not taken(journal)


@posix
def test_looking_at_the_lock_of_an_own_job_leaves_the_locks_of_sqlite_alone(journal):
    """A program of another process would otherwise think that it is the last one, and delete the log."""
    lock, made = JobLock(journal), Journal(journal, clock=SystemClock())
    lock.acquire()
    made.open()
    assert taken(journal)
    read = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM run').fetchall())"
    subprocess.run([sys.executable, "-c", read, journal], check=True)
    assert journal.with_name("journal-wal").exists()
    made.close()
    lock.release()
