"""An SQLite file of ours, seen from outside: by plain sqlite3, by its bytes and its mode, and by other processes."""

import asyncio
import os
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from functools import partial
from itertools import count

import pytest
from attrs import evolve

from helpers.tables import each_row
from rbim import InvalidRequest
from rbim.storage.sqlite import Database, FileKind

HERE = sys.modules[Database.__module__]

SCHEMA = ("CREATE TABLE pair (number INTEGER, half TEXT)", "CREATE INDEX pair_number ON pair (number)")
KIND = FileKind(name="a box of pairs", mark=b"rbxx", schema=SCHEMA, version=3)

# the beginning of a script that another process runs
THERE = f"""
import os, signal, sys
from pathlib import Path
from attrs import evolve
from {Database.__module__} import Database, CommandFailure, FileKind
SCHEMA = {SCHEMA!r}
KIND = FileKind(name="a box of pairs", mark=b"rbxx", schema=SCHEMA, version=3)
def pair(database, number):
    for half in "ab":
        database.execute("INSERT INTO pair (number, half) VALUES (?, ?)", (number, half))
"""

posix = pytest.mark.skipif(os.name != "posix", reason="modes and signals are those of POSIX")


def box(path, kind=KIND, *, clock=lambda: 0.0):
    return Database(path, kind, clock=clock)


@contextmanager
def opened(path, kind=KIND, **options):
    database = box(path, kind, **options)
    database.open()
    try:
        yield database
    finally:
        database.close()


@pytest.fixture
def database(path):
    with opened(path) as each:
        yield each


def pair(database, number):
    """Write two rows, which belong together."""
    for half in "ab":
        database.execute("INSERT INTO pair (number, half) VALUES (?, ?)", (number, half))
    return number


def pairs(database, *numbers):
    return [partial(pair, database, number) for number in numbers]


def failing(error):
    def fail():
        raise error

    return fail


@pytest.fixture
def numbers(rows):
    """Reads the numbers of the pairs, each of which must be whole."""

    def read():
        found = rows("SELECT number, group_concat(half, '') FROM pair GROUP BY number ORDER BY min(rowid)")
        assert {halves for _, halves in found} <= {"ab"}
        return [number for number, _ in found]

    return read


@pytest.fixture
def unlocks(monkeypatch):
    """Has something done at the first pause that the code under test makes, instead of any pause."""

    def arrange(do):
        pauses = []

        def sleep(_):
            pauses.append(None)
            assert len(pauses) < 1000
            if len(pauses) == 1:
                do()

        monkeypatch.setattr(HERE.time, "sleep", sleep)
        return pauses

    return arrange


# --------------------------------------------------------------------------------------- making it


@posix
@each_row("mask", [0o000, 0o077])
def test_a_new_file_and_its_log_are_for_the_user_alone_whatever_the_umask(tmp_path, mask):
    path = tmp_path / str(mask) / "file.db"
    path.parent.mkdir()
    before = os.umask(mask)
    try:
        with opened(path) as database:
            database.commit(pairs(database, 1))
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["file.db", "file.db-wal", "file.db-shm"], 0o600)


def test_the_header_of_a_new_file_tells_the_kind_the_version_and_the_log(path):
    with opened(path):
        pass
    header = path.read_bytes()[:100]
    assert header[:16] == b"SQLite format 3\0"
    assert header[18:20] == b"\2\2"  # both versions of the file format: with a write-ahead log
    assert struct.unpack(">I", header[60:64]) == (3,)  # user_version
    assert header[68:72] == b"rbxx"  # application_id


def test_a_connection_is_durable_and_has_the_cache_of_its_kind_each_time_it_is_opened(path):
    for kibibytes in (500, 700):
        with opened(path, evolve(KIND, cache=kibibytes)) as database:
            assert database.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
            assert database.execute("PRAGMA synchronous").fetchall() == [(2,)]  # FULL
            assert database.execute("PRAGMA cache_size").fetchall() == [(-kibibytes,)]


def test_the_last_close_leaves_one_file_which_holds_everything(path, numbers):
    with opened(path) as database:
        database.commit(pairs(database, 1, 2))
    assert [each.name for each in path.parent.iterdir()] == ["file.db"]
    assert numbers() == [1, 2]
    with opened(path) as database:
        database.commit(pairs(database, 3))
    assert numbers() == [1, 2, 3]


@posix
def test_the_mode_of_a_file_that_is_there_is_left_to_its_owner(path, numbers):
    with opened(path):
        pass
    path.chmod(0o640)
    with opened(path) as database:
        database.commit(pairs(database, 1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert numbers() == [1]


@pytest.mark.parametrize("prepare", [lambda path, _: path.touch(), lambda _, rows: rows("VACUUM")])
def test_an_empty_file_and_an_empty_database_are_made_ours(path, rows, numbers, prepare):
    prepare(path, rows)
    with opened(path) as database:
        database.commit(pairs(database, 1))
    assert rows("PRAGMA application_id") == [(int.from_bytes(b"rbxx", "big"),)]
    assert rows("PRAGMA user_version") == [(3,)]
    assert numbers() == [1]


def test_the_log_of_a_file_that_was_moved_away_is_kept_and_named(path, tmp_path, numbers):
    other = tmp_path / "moved.db"
    with opened(path) as database:
        database.commit(pairs(database, 1))
        kept = {end: path.with_name(path.name + end).read_bytes() for end in ("", "-wal")}
    path.unlink()
    log = path.with_name("file.db-wal")
    log.write_bytes(kept["-wal"])
    for prepare in (lambda: None, path.touch):
        prepare()
        assert refused(path) == (
            f"{log} has changes of a file that was moved or deleted: move the log to that file, or delete the log"
        )
    assert log.read_bytes() == kept["-wal"]
    other.write_bytes(kept[""])
    log.rename(tmp_path / "moved.db-wal")
    with opened(other) as database:
        assert database.execute("SELECT number FROM pair").fetchall() == [(1,), (1,)]
    with opened(path) as database:
        database.commit(pairs(database, 2))
    assert numbers() == [2]


def test_threads_that_make_a_file_together_make_it_once(path, numbers):
    begin, failures = threading.Barrier(5), []

    def enter(number):
        try:
            begin.wait(10)
            with opened(path) as each:
                assert each.commit(pairs(each, number)) == [number]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert sorted(numbers()) == [0, 1, 2, 3, 4]


# ----------------------------------------------------------------------------- knowing it again


def refused(path, kind=KIND):
    """Return why a file is refused, once it is clear that it was left alone."""

    def state():
        return {each: each.read_bytes() for each in path.parent.rglob("*") if each.is_file()}

    before = state() if path.parent.is_dir() else None
    database = box(path, kind)
    with pytest.raises(InvalidRequest) as caught:
        database.open()
    assert (state() if path.parent.is_dir() else None) == before
    assert caught.value.field == "path"
    with pytest.raises(RuntimeError, match="is not open"):
        database.execute("SELECT 1")
    beginning, reason = str(caught.value).split(f"{path} cannot be {kind.name}: ")
    assert not beginning
    return reason


def test_what_is_not_a_file_of_this_kind_is_refused_in_words_and_left_alone(tmp_path):
    """Nothing of it is changed, nothing is made beside it, and code of its own kind opens it afterwards."""
    foreign = (
        "CREATE TABLE theirs (x)",
        "CREATE VIEW theirs AS SELECT 1",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = -2",
    )
    causes = {}
    for number, statement in enumerate(foreign):
        path = tmp_path / f"foreign{number}"
        with closing(sqlite3.connect(path, isolation_level=None)) as plain:
            plain.execute(statement)
        causes[path] = "it is a database of another application"
    for mark, cause in ((b"rbim", "it is an inbox"), (b"rbsp", "it is a spool"), (b"rbjb", "it is a job's journal")):
        path = tmp_path / mark.decode()
        with opened(path, evolve(KIND, mark=mark)):
            causes[path] = cause
    for number, content in enumerate((b"hello", b"SQLite format 3\0", b"no database " * 1000)):
        path = tmp_path / f"text{number}"
        path.write_bytes(content)
        causes[path] = "file is not a database"
    causes[tmp_path / "text0" / "file"] = f"there is no directory {tmp_path / 'text0'}"
    causes[tmp_path / "nowhere" / "file"] = f"there is no directory {tmp_path / 'nowhere'}"
    causes[tmp_path] = "it is a directory: name a file in it"
    (tmp_path / "device").symlink_to(os.devnull)
    causes[tmp_path / "device"] = "it is not a regular file: name another one"
    found = {path: refused(path) for path in causes}
    assert {path: said for path, said in found.items() if said != causes[path]} == {}
    assert not (tmp_path / "nowhere").exists()
    with opened(tmp_path / "rbim", evolve(KIND, mark=b"rbim")):
        pass


# ----------------------------------------------------------------------------------------- creating


def test_a_creation_that_fails_leaves_an_empty_file_which_is_made_later(path, numbers):
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        box(path, evolve(KIND, schema=(*SCHEMA, "CREATE nonsense"))).open()
    with opened(path) as database:
        database.commit(pairs(database, 1))
    assert numbers() == [1]


@posix
@pytest.mark.ci
def test_a_creation_that_is_killed_leaves_an_empty_file_which_is_made_later(path, start, numbers):
    script = (
        THERE
        + """
class Deadly:
    def __iter__(self):
        yield from SCHEMA
        os.kill(os.getpid(), signal.SIGKILL)
Database(Path(sys.argv[1]), evolve(KIND, schema=Deadly()), clock=lambda: 0.0).open()
"""
    )
    with start(script, path) as process:
        assert process.wait() == -signal.SIGKILL
    with opened(path) as database:
        database.commit(pairs(database, 1))
    assert numbers() == [1]


def test_a_creation_waits_for_another_process_that_writes(path, beside, numbers, unlocks):
    assert beside("PRAGMA journal_mode = WAL") == [["wal"]]
    assert beside("BEGIN IMMEDIATE") == []
    pauses = unlocks(lambda: beside("COMMIT"))
    with opened(path) as database:
        database.commit(pairs(database, 1))
    assert numbers() == [1]
    assert len(pauses) == 1


# ----------------------------------------------------------------------------------- opening twice


def test_who_opens_it_twice_closes_it_twice(path, database):
    database.open()
    database.close()
    assert database.commit(pairs(database, 1)) == [1]
    database.open()
    database.close()
    assert path.with_name("file.db-wal").exists()


PASSES_BY = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM pair").fetchall()
connection.close()  # SQLite removes the log where it is the last that has the file open
"""


@posix
def test_opening_and_closing_it_again_drops_no_lock_of_an_open_one(path, database, numbers):
    """POSIX drops every lock that a process has on a file when it closes any descriptor of that file."""
    database.commit(pairs(database, 1))
    log = path.with_name("file.db-wal")
    inode = log.stat().st_ino
    with opened(path):
        subprocess.run([sys.executable, "-c", PASSES_BY, path], check=True, timeout=30)
        assert log.stat().st_ino == inode
    subprocess.run([sys.executable, "-c", PASSES_BY, path], check=True, timeout=30)
    assert log.stat().st_ino == inode
    database.commit(pairs(database, 2))
    assert numbers() == [1, 2]


def test_another_process_writes_between_our_transactions_and_reads_what_is_committed_only(database, beside, numbers):
    seen = []

    def command():
        pair(database, 1)
        seen.append(beside("SELECT count(*) FROM pair"))
        seen.append(beside("INSERT INTO pair VALUES (2, 'a')"))

    database.commit([command])
    assert seen == [[[0]], "database is locked"]
    assert beside("SELECT count(*) FROM pair") == [[2]]
    assert beside("INSERT INTO pair VALUES (2, 'a'), (2, 'b')") == []
    database.commit(pairs(database, 3))
    assert numbers() == [1, 2, 3]


# ------------------------------------------------------------------------------------- transactions


def test_commands_are_carried_out_in_order_in_one_transaction_which_is_in_the_file_when_it_returns(path, numbers):
    ticks = count(100)
    with opened(path, clock=lambda: float(next(ticks))) as database:
        seen = []

        def look():
            seen.append((numbers(), database.now))
            return "looked"

        assert database.commit([*pairs(database, 3, 1), look, *pairs(database, 2), look]) == [3, 1, "looked", 2, "looked"]
        assert seen == [([], 100.0), ([], 100.0)]
        assert numbers() == [3, 1, 2]
        database.commit([look])
    assert seen[2:] == [([3, 1, 2], 101.0)]


def test_a_harmless_failure_has_nothing_made_again(path, numbers):
    with opened(path, evolve(KIND, harmless=(LookupError,))) as database:
        made = []

        def once(number):
            made.append(number)
            return pair(database, number)

        error = KeyError("not there")  # one of its subclasses
        results = database.commit([partial(once, 1), failing(error), partial(once, 2)])
        assert results[::2] == [1, 2]
        assert results[1].error is error
        assert made == [1, 2]
        assert numbers() == [1, 2]


def test_what_may_not_be_kept_apart_fails_together_with_the_commands_own_error(database, numbers):
    error = ValueError("a bad one")
    with pytest.raises(ValueError, match="a bad one") as caught:
        database.commit([*pairs(database, 1), failing(error), *pairs(database, 2)], apart=False)
    assert caught.value is error
    assert numbers() == []
    assert database.commit(pairs(database, 3, 4), apart=False) == [3, 4]
    assert numbers() == [3, 4]


@each_row(
    "error, apart, bad",
    [
        (KeyboardInterrupt(), True, False),
        (KeyboardInterrupt(), True, True),
        (SystemExit(3), False, False),
        (asyncio.CancelledError(), True, True),
    ],
)
def test_an_interruption_keeps_nothing_and_the_next_transaction_works(database, numbers, error, apart, bad):
    commands = [*pairs(database, 1), failing(error), *pairs(database, 2)]
    if bad:  # then it comes while each is made with care
        commands[:0] = [failing(ValueError())]
    with pytest.raises(type(error)) as caught:
        database.commit(commands, apart=apart)
    assert caught.value is error
    assert numbers() == []
    assert database.commit(pairs(database, 3)) == [3]
    assert numbers() == [3]
    database.commit([partial(database.execute, "DELETE FROM pair")])


def test_what_comes_last_belongs_to_the_transaction(database, numbers):
    seen = []

    def last():
        seen.append(database.execute("SELECT count(*) FROM pair").fetchone())
        pair(database, 9)

    database.purge = last
    database.commit(pairs(database, 1))
    assert seen == [(2,)]
    assert numbers() == [1, 9]
    database.purge = failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        database.commit(pairs(database, 2))
    assert numbers() == [1, 9]
    database.purge = bool
    assert database.commit(pairs(database, 3)) == [3]


@pytest.mark.parametrize("apart", [True, False])
def test_a_full_disk_keeps_nothing_and_the_next_transaction_works_once_there_is_room(database, numbers, apart):
    database.commit(pairs(database, 1))
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    large = partial(database.execute, "INSERT INTO pair VALUES (9, ?)", ("x" * 100_000,))
    with pytest.raises(sqlite3.OperationalError, match="full") as caught:
        database.commit([*pairs(database, 2), large, *pairs(database, 3)], apart=apart)
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_FULL
    assert numbers() == [1]
    database.execute("PRAGMA max_page_count = 100000")
    assert database.commit(pairs(database, 4)) == [4]
    assert numbers() == [1, 4]


# ------------------------------------------------------------------------------------------- news


def test_listeners_are_called_after_the_transactions_that_bring_news(database, numbers):
    heard = []

    def listener():
        heard.append((numbers(), database.read(lambda: "free")))

    def news(number):
        database.news = True
        return pair(database, number)

    database.listeners[listener] = None
    database.commit(pairs(database, 1))
    assert heard == []
    database.commit([partial(news, 2), *pairs(database, 3)])
    assert heard == [([1, 2, 3], "free")]  # it is durable by then, and the connection is free
    database.commit(pairs(database, 4))  # the news of the last transaction is none of this one
    with pytest.raises(KeyboardInterrupt):
        database.commit([partial(news, 5), failing(KeyboardInterrupt())])
    with pytest.raises(ValueError, match="no"):
        database.commit([partial(news, 6), failing(ValueError("no"))], apart=False)
    assert len(heard) == 1
    del database.listeners[listener]
    database.commit([partial(news, 7)])
    assert len(heard) == 1
    assert numbers() == [1, 2, 3, 4, 7]


def test_a_listener_that_fails_harms_neither_what_was_committed_nor_the_other_listeners(database, numbers, caplog):
    heard = []

    def news():
        database.news = True
        return pair(database, 1)

    database.listeners[failing(ValueError("deaf"))] = None
    database.listeners[lambda: heard.append(numbers())] = None
    assert database.commit([news]) == [1]
    assert heard == [[1]]
    assert [(record.levelname, record.exc_info[1].args) for record in caplog.records] == [("ERROR", ("deaf",))]


# ------------------------------------------------------------------------------- a busy file, threads


def test_a_commit_waits_for_another_process_and_lets_others_read_meanwhile(database, beside, numbers):
    database.commit(pairs(database, 1))
    beside("BEGIN IMMEDIATE")
    beside("INSERT INTO pair VALUES (2, 'a'), (2, 'b')")
    asked = []

    def hurried():
        asked.append(database.read(lambda: database.execute("SELECT max(number) FROM pair").fetchone()))
        if len(asked) == 3:
            beside("COMMIT")
        return False

    assert database.commit(pairs(database, 3), hurried=hurried) == [3]
    assert asked == [(1,)] * 3
    assert numbers() == [1, 2, 3]


def test_who_is_hurried_does_not_wait_for_another_process(database, beside, numbers):
    called = []
    beside("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="database is locked") as caught:
            database.commit([partial(called.append, 1)], hurried=lambda: True)
        assert caught.value.sqlite_errorcode == sqlite3.SQLITE_BUSY
    assert called == []
    beside("ROLLBACK")
    assert database.commit(pairs(database, 1), hurried=lambda: True) == [1]
    assert numbers() == [1]


def without_log(path, rows):
    """Make the file one in which who writes keeps others from reading."""
    with opened(path) as database:
        database.commit(pairs(database, 1))
    assert rows("PRAGMA journal_mode = DELETE") == [("delete",)]


def test_a_read_of_a_locked_file_is_made_again(path, beside, rows, unlocks):
    without_log(path, rows)
    with opened(path) as database:
        beside("BEGIN EXCLUSIVE")
        pauses = unlocks(lambda: beside("COMMIT"))
        assert database.read(lambda: database.execute("SELECT count(*) FROM pair").fetchone()) == (2,)
    assert len(pauses) == 1


def test_threads_take_turns(database, rows):
    rows("INSERT INTO pair VALUES (0, 'a')")
    failures = []

    def add():
        (number,) = database.execute("SELECT number FROM pair").fetchone()
        database.execute("UPDATE pair SET number = ?", (number + 1,))

    def work():
        try:
            for _ in range(20):
                assert database.commit([add]) == [None]
                database.read(lambda: database.execute("SELECT * FROM pair").fetchall())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert rows("SELECT number FROM pair") == [(80,)]


def test_closing_lets_a_transaction_of_another_thread_end(path, numbers):
    database = box(path)
    database.open()
    inside, closing_it, results = threading.Event(), threading.Event(), []

    def slow():
        pair(database, 1)
        inside.set()
        assert closing_it.wait(10)
        database.execute("UPDATE pair SET number = 2")

    def close():
        closing_it.set()
        database.close()

    writer = threading.Thread(target=lambda: results.extend(database.commit([slow])))
    writer.start()
    assert inside.wait(10)
    closer = threading.Thread(target=close)
    closer.start()
    for thread in (writer, closer):
        thread.join(20)
    assert results == [None]
    assert numbers() == [2]
    assert [each.name for each in path.parent.iterdir()] == ["file.db"]
    with pytest.raises(RuntimeError, match="is not open"):
        database.commit([])


# -------------------------------------------------------------------------------------- kill -9


@posix
@pytest.mark.ci
def test_what_was_committed_survives_a_kill_and_every_pair_is_whole(path, start, rows, numbers):
    script = (
        THERE
        + """
database = Database(Path(sys.argv[1]), KIND, clock=lambda: 0.0)
database.open()
number = 0
while True:
    database.commit([lambda each=each: pair(database, each) for each in range(number, number + 3)])
    number += 3
    print(number, flush=True)
"""
    )
    with start(script, path) as process:
        told = [process.stdout.readline() for _ in range(20)]
        process.kill()
        told += process.stdout  # up to its end
    acknowledged = int(told[-1])
    assert acknowledged >= 60
    assert rows("PRAGMA integrity_check") == [("ok",)]
    found = numbers()
    assert found == list(range(len(found)))
    assert len(found) in {acknowledged, acknowledged + 3}  # one more may have been committed and not be told
    with opened(path) as database:
        assert database.commit(pairs(database, -1)) == [-1]
    assert numbers() == [*found, -1]
