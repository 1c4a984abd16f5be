"""SQLite files of rbim: creation, identification, opening and transactions. Synchronous.

Threads share one connection; processes share the file.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
import weakref
from errno import ENOENT
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import frozen

from rbim._support.private_files import create_private, require_trusted
from rbim.errors import InvalidRequest
from rbim.storage.group_commit import CommandFailed, CommandFailure, call_all, run_apart, run_together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "CommandFailure",
    "Database",
    "FileKind",
    "InPlace",
    "MemoryDatabase",
    "log_of",
    "require_no_left_log",
    "require_trusted_logs",
    "schema_version",
]

T = TypeVar("T")

NAMES = {b"rbim": "an inbox", b"rbsp": "a spool", b"rbjb": "a job's journal"}
"""The kinds of files by their mark, which is SQLite's ``application_id``."""

LOGS = ("-wal", "-shm", "-journal")  # endings of the files that SQLite keeps beside a database
BUSY = 0.05  # seconds that SQLite waits for another process before SQLITE_BUSY
PAUSE = 0.001  # seconds between two such waits, in which other threads can use the connection
OPEN_TIMEOUT = 10.0  # seconds of waiting in all while a file is opened or read


@frozen(kw_only=True)
class FileKind:
    """A kind of file: its ``name`` with an article, its ``mark`` (``application_id``) and the statements of its ``schema``.

    Files with another ``version`` of it are refused. ``harmless`` are the errors that a command raises only before it has
    written anything.
    ``stays_in_place``: no transaction runs after the file was deleted, moved or replaced, for it could not be found again.
    """

    name: str
    mark: bytes
    schema: tuple[str, ...]
    version: int
    harmless: tuple[type[Exception], ...] = ()
    cache: int = 2000  # KiB of pages that SQLite keeps in memory
    secure_delete: bool = False  # overwrite what is deleted
    stays_in_place: bool = False
    log: str = "rbim"  # the logger for a file that was moved or replaced


class InPlace:
    """Notices that an open SQLite file, or its log, was deleted, moved or replaced.

    Otherwise the process would go on writing into a file without a name, which ends with it. ``what`` names the file in
    errors, and ``during`` the time. With ``grows`` a file that has become shorter was cut.
    """

    def __init__(self, path: Path, what: str, *, during: str = "while it was open", grows: bool = False) -> None:
        self._path = path
        self._what = what
        self._during = during
        self._grows = grows
        self._name = str(path)
        self._log: str | None = None
        self._file: os.stat_result | None = None
        self._log_file: os.stat_result | None = None

    def forget(self) -> None:
        """Forget the file: it was closed, and what is opened next may be another one."""
        self._file = self._log_file = None

    def require(self) -> None:
        """Raise FileNotFoundError if the file or its log is not the one of the first call."""
        found, before = _stat(self._name), self._file
        if before is None:
            self._file = found
        if found is None or (
            before is not None
            and (_identity(found) != _identity(before) or (self._grows and found.st_size < before.st_size))
        ):
            changed = "deleted, replaced or cut" if self._grows else "deleted, moved or replaced"
            raise FileNotFoundError(ENOENT, f"{self._what} was {changed} {self._during}", self._name)
        if self._grows:
            self._file = found
        if self._log is None:
            self._log = str(log_of(self._path))
        log = _stat(self._log)  # None before the first transaction
        if self._log_file is None:
            self._log_file = log
        elif log is None or _identity(log) != _identity(self._log_file):
            cause = f"the log (-wal) of {self._what} was deleted or replaced {self._during}"
            raise FileNotFoundError(ENOENT, cause, self._name)


def log_of(path: Path, suffix: str = "-wal") -> Path:
    """Return the path of a log of SQLite: it is beside the file, not beside a link to it."""
    real = path.resolve()
    return real.with_name(f"{real.name}{suffix}")


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116  # Path.stat takes twice as long
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class Database:
    """One connection for all threads of a process, open from the first ``open`` to the last ``close``.

    :meth:`query` has a connection of its own, so that a long search holds up no transaction.
    What a transaction deletes stays in unused parts of the file, and in the log, until :meth:`rewrite` and
    :meth:`truncate_log`.
    ``now`` is the time of the current transaction, in epoch seconds. If a command sets ``news``, the listeners are called
    after the commit. ``purge`` is called at the end of each transaction.
    """

    def __init__(self, path: Path, kind: FileKind, *, clock: Callable[[], float]) -> None:
        self.path = path
        self._kind = kind
        self.clock = clock
        self.now = 0.0
        self.news = False
        self.purge: Callable[[], object] = bool
        self._in_place = InPlace(path, f"the {kind.name.partition(' ')[2]}") if kind.stays_in_place else None
        self._gone = False
        self._lock = Lock()
        self._users = 0
        self._connection: sqlite3.Connection | None = None
        self._querying = Lock()
        self._query_connection: sqlite3.Connection | None = None
        self.listeners: dict[Callable[[], object], None] = {}

    def open(self) -> None:
        """Open the file; create it if it is missing.

        Raises InvalidRequest if the file is of another kind or another version.
        """
        with self._lock:
            if self._connection is None:
                self._connection = _connect(self.path, self._kind)
            self._users += 1
            first = self._users == 1
        if first and self._in_place is not None:
            self._gone = False
            self._in_place.forget()
            try:
                self._in_place.require()
                self.query("SELECT 1 FROM sqlite_master LIMIT 0")  # opens its connection while the file is in place
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Reverse one ``open``; without one, do nothing."""
        with self._querying, self._lock:
            if not self._users:
                return
            self._users -= 1
            if not self._users and self._query_connection is not None:
                self._query_connection.close()
                self._query_connection = None
            if not self._users and self._connection is not None:
                self._connection.close()  # the last connection of all processes writes the log back into the file
                self._connection = None

    def require_in_place(self) -> None:
        """Raise FileNotFoundError, and log it once, if the open file is not the one at its path any more."""
        if self._in_place is None or not self._users:
            return
        try:
            self._in_place.require()
        except FileNotFoundError as error:
            if not self._gone:
                self._gone = True
                text = "%s: %s: restore the file, or restart this process"
                logging.getLogger(self._kind.log).error(text, error.filename, error.strerror)  # noqa: TRY400  # it says all
            raise
        self._gone = False

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:  # values of the placeholders
        """Execute one statement, inside a command or a read."""
        if self._connection is None:
            raise RuntimeError(f"{self.path} is not open")
        return self._connection.execute(statement, values)

    def executemany(self, statement: str, values: Any) -> int:  # values of the placeholders, for each execution
        """Execute one statement for each of the values, inside a command; return the number of changed rows."""
        if self._connection is None:
            raise RuntimeError(f"{self.path} is not open")
        return max(0, self._connection.executemany(statement, values).rowcount)

    def read(self, reads: Callable[[], T]) -> T:
        """Run a function that reads, outside any transaction, and return its result."""
        give_up = time.monotonic() + OPEN_TIMEOUT
        while True:
            try:
                with self._lock:
                    return reads()
            except sqlite3.OperationalError as error:
                if not _busy(error) or time.monotonic() > give_up:
                    raise
            time.sleep(PAUSE)

    def query(self, statement: str, values: Any = ()) -> list[Any]:  # values of the placeholders; rows
        """Return the rows of a search that may take long. Transactions go on meanwhile; searches follow each other."""
        give_up = time.monotonic() + OPEN_TIMEOUT
        with self._querying:
            while True:
                try:
                    if not self._users:
                        raise RuntimeError(f"{self.path} is not open")
                    if self._query_connection is None:
                        self._query_connection = _existing(self.path)
                        self._query_connection.execute("PRAGMA query_only = ON")
                    return self._query_connection.execute(statement, values).fetchall()
                except sqlite3.OperationalError as error:
                    if not _busy(error) or time.monotonic() > give_up:
                        raise
                time.sleep(PAUSE)

    def commit(
        self,
        commands: Sequence[Callable[[], Any]],
        *,
        hurried: Callable[[], bool] = bool,
        apart: bool = True,
    ) -> list[Any]:
        """Run commands in one durable transaction; return the result of each, or its CommandFailure.

        While another process writes, wait until ``hurried`` returns True. Raises if the whole transaction was rolled back;
        without ``apart``, one failing command rolls it back. Raises FileNotFoundError if the file is not in its place.
        """
        self.require_in_place()
        try:
            return self._transaction(commands, hurried, together=True)
        except CommandFailed as failed:
            if not apart and failed.__cause__ is not None:
                raise failed.__cause__ from None
            return self._transaction(commands, hurried, together=False)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        with self._lock:
            ((pages,),) = self.execute("PRAGMA page_count").fetchall()
            ((each,),) = self.execute("PRAGMA page_size").fetchall()
        return cast("int", pages) * cast("int", each)

    def rewrite(self) -> None:
        """Write every page anew, so that no unused part of the file has deleted content.

        SQLite's ``secure_delete`` is not enough: it leaves copies in pages that it has divided or joined. Takes disk space
        for two more copies, and seconds for a gigabyte. Raises ``sqlite3.Error``, also while another process writes.
        """
        with self._lock:
            self.execute("VACUUM")

    def truncate_log(self) -> bool:
        """Write the log back into the file and empty it; return False if another process uses the file now."""
        with self._lock:
            ((blocked, _, _),) = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return not blocked

    def _transaction(
        self, commands: Sequence[Callable[[], Any]], hurried: Callable[[], bool], *, together: bool
    ) -> list[Any]:
        while True:
            self._lock.acquire()
            try:
                self.execute("BEGIN IMMEDIATE")
            except BaseException as error:
                self._lock.release()
                if not _busy(error) or hurried():
                    raise
            else:
                break
            time.sleep(PAUSE)
        try:
            self.now, self.news = self.clock(), False
            if together:
                results = run_together(commands, self._kind.harmless)
            else:
                results = run_apart(commands, self.execute, lambda: self._in_transaction)
            self.purge()
            self.execute("COMMIT")
            news = self.news
        except BaseException:
            if self._in_transaction:
                self.execute("ROLLBACK")
            raise
        finally:
            self._lock.release()
        if news:
            call_all(self.listeners, self.path)
        return results

    @property
    def _in_transaction(self) -> bool:
        return self._connection is not None and self._connection.in_transaction


_UNUSABLE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}


def _code(error: BaseException) -> int | None:
    """Return SQLite's primary error code, or None for another error."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _busy(error: BaseException) -> bool:
    return _code(error) == sqlite3.SQLITE_BUSY


def _connect(path: Path, kind: FileKind) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise _unusable(path, kind, f"there is no directory {path.parent}")
    if path.exists() and not path.is_file():
        cause = "it is a directory: name a file in it" if path.is_dir() else "it is not a regular file: name another one"
        raise _unusable(path, kind, cause)
    give_up = time.monotonic() + OPEN_TIMEOUT
    while True:
        try:
            return _opened(path, kind)
        except sqlite3.DatabaseError as error:
            if _code(error) in _UNUSABLE:
                raise _unusable(path, kind, str(error)) from error
            if not _busy(error) or time.monotonic() > give_up:
                raise
        time.sleep(BUSY)


def _unusable(path: Path, kind: FileKind, cause: str) -> InvalidRequest:
    return InvalidRequest(f"{path} cannot be {kind.name}: {cause}", field="path")


def _existing(path: Path) -> sqlite3.Connection:
    """Open a file that exists; SQLite would create a missing one, such as the target of a link, with another mode."""
    name = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(name, uri=True, timeout=BUSY, isolation_level=None, check_same_thread=False)


def _opened(path: Path, kind: FileKind) -> sqlite3.Connection:
    _require_private(path, kind)
    connection = _existing(path)
    try:
        connection.execute("BEGIN")  # another process may be creating the file now
        version = schema_version(connection, path, kind)
        connection.execute("COMMIT")
        if not version:
            _create(connection, path, kind)
        _require_private(path, kind)  # again: the log files exist now, so that no other user can take their names any more
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{kind.cache}")
        connection.execute(f"PRAGMA secure_delete = {'ON' if kind.secure_delete else 'OFF'}")
    except BaseException:
        connection.close()
        raise
    return connection


def _require_private(path: Path, kind: FileKind) -> None:
    """Create the file if it is missing, with mode 0600, and refuse one that belongs to another user."""
    try:
        require_no_left_log(path, kind)
        create_private(path)
        require_trusted_logs(path)
    except OSError as error:
        raise _unusable(path, kind, error.strerror or str(error)) from error


def require_no_left_log(path: Path, kind: FileKind) -> None:
    """Raise InvalidRequest for a log beside a missing or empty file: SQLite would delete it, with the changes in it."""
    log = log_of(path)
    found, file = _stat(str(log)), _stat(str(path))
    if found is not None and found.st_size and not (file is not None and file.st_size):
        cause = f"{log} has changes of a file that was moved or deleted"
        raise _unusable(path, kind, f"{cause}: move the log to that file, or delete the log")


def require_trusted_logs(path: Path) -> None:
    """Raise PermissionError if another user, who does not own the file either, owns one of its log files.

    SQLite gives the log files the mode of the file, but it opens by name, and believes, those that exist already. Users who
    can write to the file may own them, too: they share it.
    """
    found = path.stat()
    for suffix in LOGS:
        log = log_of(path, suffix)
        if _is_shared_by_group(found, log):
            continue
        try:
            require_trusted(log, found.st_uid)
        except PermissionError as error:
            raise PermissionError(error.errno, f"{log} is in its way: {error.strerror}", str(log)) from error


def _is_shared_by_group(found: os.stat_result, log: Path) -> bool:
    try:
        beside = log.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(beside.st_mode) and bool(found.st_mode & stat.S_IWGRP) and beside.st_gid == found.st_gid


def schema_version(connection: sqlite3.Connection, path: Path, kind: FileKind) -> int:
    """Return the version of a file's schema, 0 for an empty file.

    Raises InvalidRequest for a file of another kind or of another version.
    """

    def value(statement: str) -> int:
        ((found,),) = connection.execute(statement)
        return cast("int", found)

    mark, version = value("PRAGMA application_id").to_bytes(4, "big", signed=True), value("PRAGMA user_version")
    if mark != kind.mark and mark in NAMES:
        raise _unusable(path, kind, f"it is {NAMES[mark]}")
    if mark != kind.mark and (any(mark) or version or value("SELECT count(*) FROM sqlite_master")):
        raise _unusable(path, kind, "it is a database of another application")
    if version > kind.version:
        cause = f"its schema has version {version}, and this rbim knows {kind.version} at most: update rbim"
        raise _unusable(path, kind, cause)
    if 0 < version < kind.version:
        cause = f"its schema has version {version}, of an earlier rbim with other tables: go on with that rbim"
        raise _unusable(path, kind, f"{cause}, or begin again with another file")
    return version


def _create(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise _unusable(path, kind, f"its file system supports no write-ahead log (journal mode {mode})")
    connection.execute("BEGIN IMMEDIATE")
    if not schema_version(connection, path, kind):  # another process may have created it
        for statement in kind.schema:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {kind.version}")
        connection.execute(f"PRAGMA application_id = {int.from_bytes(kind.mark, 'big')}")
    connection.execute("COMMIT")


class MemoryDatabase(Database):
    """A database in memory, for all threads of a process. It is open from the beginning, and ends with this object."""

    def __init__(self, kind: FileKind, *, clock: Callable[[], float]) -> None:
        super().__init__(Path(":memory:"), kind, clock=clock)
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in kind.schema:
            connection.execute(statement)
        self._connection = connection
        weakref.finalize(self, connection.close)  # it has no end of its own

    def query(self, statement: str, values: Any = ()) -> list[Any]:
        """Return the rows of a search. Transactions wait meanwhile: they have the same connection."""
        return self.read(lambda: self.execute(statement, values).fetchall())
