"""The disk, SQLite on it, and threads.

What a thread does happens at one instant, some time after it was asked for, and its end is heard of some time later still.
Two threads therefore never meet within a statement, and SQLite never has to wait for another connection.

SQLite itself is real, on files in a temporary folder. It is told not to sync them; instead it is noted which files hold
commits that a real machine would not have synced, and what was in them before. That is what a loss of power leaves.
"""

import asyncio
import os
import shutil
import sqlite3
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import anyio
from anyio._backends import _asyncio as anyio_backend

from rbim.storage import group_commit

from .process import Killed, current_process
from .virtual_time import TIME

real_connect = sqlite3.connect
_disk = None

BEFORE = 0.0002
"""Seconds, on average, from asking a thread for something until it happens."""

AFTER = 0.003
"""Seconds, on average, from then until the task that asked hears of it. A sync of the disk is most of it."""


class Disk:
    """Kinds of trouble: ``disk-stall`` (a thread takes up to ``stall`` seconds longer, with probability ``stalls``),
    ``disk-error`` (a transaction is refused, with probability ``errors``), ``disk-full`` (no commit succeeds between the
    times of ``full``).
    """

    def __init__(self, world):
        global _disk  # noqa: PLW0603  # one simulated machine to an interpreter
        self.world = world
        self.stall = self.stalls = self.errors = 0.0
        self.full = []
        self.commits = 0
        self._unsynced = {}
        self._delays = world.stream("threads")
        _disk = self

    def is_synced(self, path):
        """Tell whether a loss of power would leave the file as it is."""
        return os.fspath(path) not in self._unsynced

    def lose_power(self):
        """Leave of each file what was synced. Every process that has one open must be dead."""
        for path, before in self._unsynced.items():
            for end in ("", "-wal", "-shm"):
                Path(path + end).unlink(missing_ok=True)
            for end, content in before.items():
                Path(path + end).write_bytes(content)
        self._unsynced.clear()

    def delays(self):
        """Draw the seconds until a thread does its work, and from then until that is known."""
        before, after = self._delays.expovariate(1 / BEFORE), self._delays.expovariate(1 / AFTER)
        if self.stalls and self.world.happens("disk-stall", self.stalls):
            seconds = self.world.stream("disk-stall seconds").random() * self.stall
            self.world.note("disk", f"stalls for {seconds:.2f} s")
            before += seconds
        return before, after

    def execute(self, connection, sql, execute):
        """Carry out one statement of a process, which may be killed before or after it."""
        process = connection.process
        if not process.alive:
            if sql == "ROLLBACK":
                return execute()
            raise Killed
        process.statements += 1
        dies = process.statements == process.dies_at_statement
        if dies and self.world.stream("kill").random() < 0.5:
            self._die(process, f"before {_verb(sql)}")
        if sql.startswith("PRAGMA synchronous"):
            connection.syncs = sql.endswith(("FULL", "EXTRA"))
            sql, execute = "", list
        if sql in {"COMMIT", "BEGIN IMMEDIATE"}:
            self._refuse(process, sql)
        if sql.startswith("BEGIN"):
            connection.writes = sql == "BEGIN IMMEDIATE"
        if sql == "COMMIT" and connection.writes:
            self._committing(connection)
        result = execute()
        if dies:
            self._die(process, f"after {_verb(sql)}")
        return result

    def _die(self, process, how):
        process.kill(how)
        raise Killed

    def _refuse(self, process, sql):
        code = None
        if self.errors and self.world.happens("disk-error", self.errors):
            code, words = sqlite3.SQLITE_IOERR, "disk I/O error"
        if sql == "COMMIT" and self.world.is_on("disk-full") and any(begin <= TIME.now < end for begin, end in self.full):
            self.world.happened["disk-full"] += 1
            code, words = sqlite3.SQLITE_FULL, "database or disk is full"
        if code is not None:
            self.world.note("disk", f"{words}: {sql} of {process.name}")
            error = sqlite3.OperationalError(words)
            error.sqlite_errorcode = code
            raise error

    def _committing(self, connection):
        self.commits += 1
        if connection.syncs:
            self._unsynced.pop(connection.path, None)
        elif connection.path not in self._unsynced:
            ends = [end for end in ("", "-wal") if Path(connection.path + end).exists()]
            self._unsynced[connection.path] = {end: Path(connection.path + end).read_bytes() for end in ends}


class SimulatedConnection(sqlite3.Connection):
    """A connection of a simulated process: real SQLite, whose statements the disk sees first."""

    def __init__(self, path, *args, **options):
        process = current_process.get()
        assert process is not None
        super().__init__(path, *args, **options)
        super().execute("PRAGMA synchronous = OFF")
        self.process, self.path = process, os.fspath(path)
        self.syncs, self.writes = True, False
        process.connections.append(self)

    def execute(self, sql, *values):
        execute = super().execute
        return _disk.execute(self, sql, lambda: execute(sql, *values))

    def executemany(self, sql, *values):
        execute = super().executemany
        return _disk.execute(self, sql, lambda: execute(sql, *values))

    def abandon(self):
        """Close it as the system does when its process has ended: a transaction that is open is rolled back."""
        super().close()

    def close(self):
        if not self.process.alive:
            raise Killed
        super().close()
        self.process.connections.remove(self)


def _verb(sql):
    return sql.partition(" ")[0].strip() or "PRAGMA"


def _connect(path, *args, **options):
    if options.pop("uri", False):  # rbim's way to say that SQLite must not create the file
        path = url2pathname(urlsplit(path).path)
        if not Path(path).exists():
            raise sqlite3.OperationalError("unable to open database file")
    process = current_process.get()
    if process is None:
        return real_connect(path, *args, **options)
    if not process.alive:
        raise Killed
    return real_connect(path, *args, **{**options, "timeout": 0, "factory": SimulatedConnection})


async def _run_in_thread(
    cls,
    work,
    args,
    abandon_on_cancel=False,  # noqa: FBT002  # anyio's
    limiter=None,
):
    """Take the place of anyio's worker threads."""
    await cls.checkpoint()
    async with limiter or cls.current_default_thread_limiter():
        with anyio.CancelScope(shield=not abandon_on_cancel):
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            before, after = _disk.delays()

            def tell(result, error):
                if not future.done():
                    future.set_exception(error) if error is not None else future.set_result(result)

            def run():
                result = error = None
                try:
                    result = work(*args)
                except Killed:
                    return
                except BaseException as raised:
                    error = raised
                loop.call_later(after, tell, result, error)

            loop.call_later(before, run)
            return await future


class SimulatedExecutor:
    """Takes the place of the threads that write and read: one piece of work after the other, each at one instant."""

    def __init__(self, _, __):
        self._loop = asyncio.get_running_loop()
        self._queue = deque()

    def submit(self, work, done, *, last=False):
        del last
        self._queue.append((work, done))
        if len(self._queue) == 1:
            self._begin()

    def _begin(self):
        before, after = _disk.delays()
        self._loop.call_later(before, self._work, after)

    def _work(self, after):
        result = failure = None
        try:
            result = self._queue[0][0]()
        except Killed:
            return
        except BaseException as error:
            failure = error
        self._loop.call_later(after, self._tell, result, failure)

    def _tell(self, result, failure):
        _, done = self._queue.popleft()
        done(result, failure)
        if self._queue:
            self._begin()


def _note_locks():
    """Let a process know the locks of jobs that it takes, so that they end with it."""
    from rbim.bulk.journal.lock import JobLock

    acquire = JobLock.acquire

    def noted(self):
        acquire(self)
        if (process := current_process.get()) is not None:
            process.locks.append(self)

    JobLock.acquire = noted


def install():
    """Put SQLite, the locks of jobs, the threads of files and anyio's threads on the simulated disk."""
    _note_locks()
    sqlite3.connect = _connect
    group_commit.ExecutorThread = SimulatedExecutor
    anyio_backend.AsyncIOBackend.run_sync_in_worker_thread = classmethod(_run_in_thread)


def remove(folder):
    """Delete the files of a run."""
    shutil.rmtree(folder, ignore_errors=True)
