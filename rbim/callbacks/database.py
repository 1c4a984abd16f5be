"""The SQLite file of an inbox: its schema, how it is opened, and its transactions. Synchronous.

Threads share one connection; processes share the file.
"""

from __future__ import annotations

import sqlite3
import time
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import frozen

from rbim.callbacks.delivery import LeaseLost
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["INBOX", "SPOOL", "Database", "Failure"]

T = TypeVar("T")

INBOX, SPOOL = b"rbim", b"rbsp"
"""What a file says it is, in SQLite's ``application_id``."""

BUSY = 0.05  # seconds that SQLite waits for another process before it says so
PAUSE = 0.001  # seconds between two such waits, in which other threads may have the connection
PATIENCE = 10.0  # seconds of all that while a file is opened or read

# state: 0 waiting, 1 done, 2 dead, 3 quarantined. The body comes last: what is looked for then never lies behind it.
# A lane is there while something waits in its conversation; ready says when it may be claimed, fence is 0 without a lease.
SCHEMA = (
    (
        """CREATE TABLE event (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT NOT NULL UNIQUE,
            conversation TEXT NOT NULL,
            app_id TEXT NOT NULL,
            class TEXT NOT NULL,
            msg_type TEXT NOT NULL,
            received REAL NOT NULL,
            state INTEGER NOT NULL,
            attempts INTEGER NOT NULL DEFAULT 0,
            replays INTEGER NOT NULL DEFAULT 0,
            finished REAL,
            error TEXT,
            body BLOB NOT NULL
        )""",
        "CREATE INDEX event_waiting ON event (conversation, seq) WHERE state = 0",
        "CREATE INDEX event_done ON event (finished) WHERE state = 1",
        "CREATE INDEX event_dead ON event (seq) WHERE state = 2",
        "CREATE INDEX event_quarantined ON event (seq) WHERE state = 3",
        "CREATE TABLE lane (conversation TEXT PRIMARY KEY, ready REAL NOT NULL, fence INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE INDEX lane_ready ON lane (ready)",
        "CREATE TABLE meta (fence INTEGER NOT NULL)",
        "INSERT INTO meta (fence) VALUES (0)",
    ),
)
"""The statements that lead from each version of the schema, counting from 0 for an empty file, to the next."""


@frozen
class Failure:
    """What a command of a transaction raised; the others were carried out."""

    error: Exception


class _Spoilt(Exception):
    """A command failed: the transaction is to be made again with care."""


class Database:
    """One connection for all threads of a process, there between the first ``open`` and the last ``close``.

    ``now`` is the time of a transaction, in epoch seconds. A command that sets ``news`` has the listeners called.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float], mark: bytes = INBOX) -> None:
        self.path = path
        self._mark = mark
        self.clock = clock
        self.now = 0.0
        self.news = False
        self._lock = Lock()
        self._users = 0
        self._connection: sqlite3.Connection | None = None
        self._listeners: tuple[Callable[[], object], ...] = ()
        self._listening = Lock()  # never held for long: event loops take it

    def open(self) -> None:
        """Open the file, make it if need be. Raises InvalidRequest where it is no inbox, or one of a newer rbim."""
        with self._lock:
            if self._connection is None:
                self._connection = _connect(self.path, self._mark)
            self._users += 1

    def close(self) -> None:
        """Undo one ``open``."""
        with self._lock:
            self._users -= 1
            if not self._users and self._connection is not None:
                self._connection.close()  # the last one of all processes writes the log back into the file
                self._connection = None

    def listen(self, call: Callable[[], object]) -> None:
        """Have a function called, in any thread, after each transaction that brings news."""
        with self._listening:
            self._listeners = (*self._listeners, call)

    def unlisten(self, call: Callable[[], object]) -> None:
        """Undo a ``listen``."""
        with self._listening:
            self._listeners = tuple(each for each in self._listeners if each is not call)

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:  # what fills the placeholders
        """Execute one statement, inside a command or a read."""
        if self._connection is None:
            reason = f"{self.path} is not open"
            raise RuntimeError(reason)
        return self._connection.execute(statement, values)

    def read(self, reads: Callable[[], T]) -> T:
        """Return what a function reads, outside any transaction."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                with self._lock:
                    return reads()
            except sqlite3.OperationalError as error:
                if not _busy(error) or time.monotonic() > give_up:
                    raise
            time.sleep(PAUSE)

    def commit(
        self,
        commands: Sequence[Callable[[], Any]],
        *,
        last: Callable[[], object] = bool,
        hurried: Callable[[], bool] = bool,
    ) -> list[Any]:
        """Carry out commands in one transaction, durably; return what each returned, or the Failure that it came to.

        ``last`` is called at the end of it. Waits while another process writes, until ``hurried`` is true. Raises where
        nothing at all was kept.
        """
        try:
            return self._transaction([self._together(each) for each in commands], last, hurried)
        except _Spoilt:
            return self._transaction([self._apart(each) for each in commands], last, hurried)

    def _transaction(
        self, commands: Sequence[Callable[[], Any]], last: Callable[[], object], hurried: Callable[[], bool]
    ) -> list[Any]:
        self._begin(hurried)
        listeners: Sequence[Callable[[], object]] = ()
        try:
            self.now, self.news = self.clock(), False
            results = [command() for command in commands]
            last()
            self.execute("COMMIT")
            if self.news:
                listeners = self._listeners
        except BaseException:
            if self._in_transaction:
                self.execute("ROLLBACK")
            raise
        finally:
            self._lock.release()
        for call in listeners:
            call()
        return results

    def _begin(self, hurried: Callable[[], bool]) -> None:
        """Begin a transaction, and return with the lock held."""
        while True:
            self._lock.acquire()
            try:
                self.execute("BEGIN IMMEDIATE")
            except BaseException as error:
                self._lock.release()
                if not _busy(error) or hurried():
                    raise
            else:
                return
            time.sleep(PAUSE)

    def _together(self, command: Callable[[], T]) -> Callable[[], T | Failure]:
        def run() -> T | Failure:
            try:
                return command()
            except LeaseLost as error:  # before anything was written
                return Failure(error)
            except Exception as error:
                raise _Spoilt from error

        return run

    def _apart(self, command: Callable[[], T]) -> Callable[[], T | Failure]:
        def run() -> T | Failure:
            self.execute("SAVEPOINT command")
            result: T | Failure
            try:
                result = command()
            except Exception as error:
                if not self._in_transaction:
                    raise  # SQLite gave up all of it
                self.execute("ROLLBACK TO command")
                result = Failure(error)
            self.execute("RELEASE command")
            return result

        return run

    @property
    def _in_transaction(self) -> bool:
        return self._connection is not None and self._connection.in_transaction


_UNUSABLE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}


def _code(error: BaseException) -> int | None:
    """Return SQLite's primary code of an error."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _busy(error: BaseException) -> bool:
    return _code(error) == sqlite3.SQLITE_BUSY


def _connect(path: Path, mark: bytes) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise _unusable(path, f"there is no directory {path.parent}")
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return _opened(path, mark)
        except sqlite3.DatabaseError as error:
            if _code(error) in _UNUSABLE:
                raise _unusable(path, str(error)) from error
            if not _busy(error) or time.monotonic() > give_up:
                raise
        time.sleep(BUSY)


def _unusable(path: Path, why: str) -> InvalidRequest:
    return InvalidRequest(f"{path} cannot be an inbox: {why}", field="path")


def _opened(path: Path, mark: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN")  # another process may be making the file right now
        version = _version(connection, path, mark)
        connection.execute("COMMIT")
        if version < len(SCHEMA):
            _migrate(connection, path, mark)
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection, path: Path, mark: bytes) -> int:
    """Return the version of a file's schema, 0 of an empty one."""

    def value(statement: str) -> int:
        ((found,),) = connection.execute(statement)
        return cast("int", found)

    application, version = value("PRAGMA application_id"), value("PRAGMA user_version")
    if application == int.from_bytes(INBOX if mark == SPOOL else SPOOL, "big"):
        reason = f"{path} is {'an inbox, and no spool' if mark == SPOOL else 'a spool, and no inbox'}"
        raise InvalidRequest(reason, field="path")
    if application != int.from_bytes(mark, "big") and (
        application or version or value("SELECT count(*) FROM sqlite_master")
    ):
        raise _unusable(path, "it is a database of another application")
    if version > len(SCHEMA):
        raise _unusable(path, f"its schema has version {version}, and this rbim knows {len(SCHEMA)} at most")
    return version


def _migrate(connection: sqlite3.Connection, path: Path, mark: bytes) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise _unusable(path, f"its file system allows no write-ahead log (journal mode {mode})")
    connection.execute("BEGIN IMMEDIATE")
    for number in range(_version(connection, path, mark), len(SCHEMA)):  # another process may have been quicker
        for statement in SCHEMA[number]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")
    connection.execute(f"PRAGMA application_id = {int.from_bytes(mark, 'big')}")
    connection.execute("COMMIT")
