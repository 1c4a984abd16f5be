"""The lock of a job: of the journal's file, whatever its name, and of no one but a living holder."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest

from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.lock import JobLock, is_locked
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks of an open file description")
posix = pytest.mark.skipif(os.name == "nt", reason="needs fork")

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


@linux
def test_every_name_of_a_journal_meets_its_lock(journal, tmp_path):
    JobLock(journal).acquire()
    os.link(journal, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(journal)
    names = [journal, tmp_path / "hard", tmp_path / "soft"]
    assert [taken(name) for name in names] == [True] * 3
    for name in (tmp_path / "other", tmp_path / "second"):
        with holder(name):
            os.link(name, tmp_path / f"{name.name}-hard")
            assert taken(tmp_path / f"{name.name}-hard")
        assert not taken(tmp_path / f"{name.name}-hard")


@linux
def test_no_other_file_is_made_or_needed(journal, tmp_path):
    with holder(journal):
        assert {path.name for path in tmp_path.iterdir()} <= {"journal", "journal-wal", "journal-shm"}
        (tmp_path / "journal-lock").write_bytes(b"of an earlier version")
        assert taken(journal)
    assert not taken(journal)


@posix
def test_a_forked_child_does_not_keep_the_lock(journal):
    with holder(journal, "fork") as process:
        assert taken(journal)
        process.kill()
        process.wait()
        try:
            assert not taken(journal)
        finally:
            process.stdin.close()  # the child ends


@posix
def test_the_lock_of_this_process_stays_when_a_child_is_forked(journal):
    lock = JobLock(journal)
    lock.acquire()
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    look = "import sys; from pathlib import Path; from rbim.bulk.journal.lock import is_locked"
    command = [sys.executable, "-c", f"{look}; print(is_locked(Path(sys.argv[1])))", journal]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    lock.release()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_looking_at_a_lock_does_not_release_the_locks_of_sqlite(journal):
    """Closing any descriptor of a file releases the locks that the process holds on it."""
    lock = JobLock(journal)
    lock.acquire()
    mine = Journal(journal, clock=SystemClock())
    mine.open()
    assert taken(journal)
    assert is_locked(journal)
    other = "import sys, sqlite3; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM job').fetchall(); c.close()"
    subprocess.run([sys.executable, "-c", other, journal], check=True)
    assert journal.with_name("journal-wal").exists()  # the last connection would have removed it
    mine.close()
    lock.release()


@linux
@pytest.mark.parametrize("act", ["release", "refused", "look", "many journals"])
def test_nothing_that_the_lock_does_releases_the_locks_of_sqlite_in_another_thread(journal, tmp_path, monkeypatch, act):
    """A report is read while a run ends: if its lock went, another process would delete the log of the next run."""
    lock = JobLock(journal)
    lock.acquire()
    mine = Journal(journal, clock=SystemClock())
    mine.open()
    with closing(sqlite3.connect(journal)) as reader:
        assert reader.execute("SELECT count(*) FROM job").fetchone() == (0,)
        mine.close()
        lock.release()
        if act == "refused":
            with holder(tmp_path / "other"), pytest.raises(InvalidRequest, match="another process runs"):
                JobLock(tmp_path / "other").acquire()
        elif act == "look":
            assert not is_locked(journal)
        elif act == "many journals":
            monkeypatch.setattr("rbim.bulk.journal.lock.MOST_IDLE", 0)
            for number in range(3):
                another = JobLock(tmp_path / f"another {number}")
                another.acquire()
                another.release()
        other = "import sys, sqlite3; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM job').fetchall(); c.close()"
        subprocess.run([sys.executable, "-c", other, journal], check=True)
        assert journal.with_name("journal-wal").exists()  # the last connection of all processes would have removed it


@linux
def test_descriptors_of_many_journals_are_closed_again(tmp_path):
    """A deleted journal keeps its place on the disk as long as a descriptor of it is open."""
    descriptors = [len(os.listdir("/proc/self/fd"))]  # noqa: PTH208  # as the code
    for number in range(40):
        lock = JobLock(tmp_path / f"{number}")
        lock.acquire()
        assert is_locked(tmp_path / f"{number}")
        lock.release()
        assert not is_locked(tmp_path / f"{number}")
        descriptors.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    assert max(descriptors) <= descriptors[0] + 12


@linux
def test_looking_does_not_take_the_lock(journal):
    JobLock(journal).acquire()
    look = """
import sys
from pathlib import Path
from rbim.bulk.journal.lock import is_locked
print("looks", flush=True)
while not is_locked(Path(sys.argv[1])):
    pass
"""
    path = journal.with_name("looked-at")
    path.touch()
    with subprocess.Popen([sys.executable, "-c", look, path], stdout=subprocess.PIPE, text=True) as looker:
        try:
            looker.stdout.readline()
            for _ in range(200):
                lock = JobLock(path)
                lock.acquire()
                lock.release()
        finally:
            looker.send_signal(signal.SIGKILL)


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


def test_a_journal_is_private_from_its_first_byte(journal):
    old = os.umask(0)
    try:
        lock = JobLock(journal)
        lock.acquire()
        lock.release()
    finally:
        os.umask(old)
    assert journal.stat().st_mode & 0o777 == 0o600 or os.name == "nt"
    with closing(sqlite3.connect(journal)) as plain:
        assert plain.execute("SELECT * FROM sqlite_master").fetchall() == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_where_files_have_no_such_locks_a_file_beside_the_journal_is_locked(tmp_path, monkeypatch, code):
    """Some sandboxes refuse locks of open files with one of these errors."""

    def refuse(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("rbim.bulk.journal.lock._take_file", refuse)
    monkeypatch.setattr("rbim.bulk.journal.lock._is_file_taken", refuse)
    journal = tmp_path / "job"
    first, second = JobLock(journal), JobLock(journal)
    assert not is_locked(journal)
    first.acquire()
    assert is_locked(journal)
    with pytest.raises(InvalidRequest, match="another process runs this job"):
        second.acquire()
    first.release()
    assert not is_locked(journal)
    second.acquire()
    second.release()
    assert (tmp_path / "job-lock").stat().st_mode & 0o777 == 0o600
