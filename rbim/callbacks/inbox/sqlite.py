"""The durable inbox: an SQLite file that threads and processes of one machine can share."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, field, setters

from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.inbox.statements import SCHEMA
from rbim.callbacks.inbox.store import InboxStore
from rbim.callbacks.inbox.stored import DurableInbox
from rbim.callbacks.observers import logger
from rbim.errors import InvalidRequest
from rbim.storage.in_place import InPlace
from rbim.storage.sqlite import Database, FileKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from rbim.callbacks.inbox.protocols import Counts
    from rbim.clock import Clock

__all__ = ["INBOX", "EventFile", "SqliteInbox"]

INBOX = FileKind(name="an inbox", mark=b"rbim", schema=((), (), SCHEMA), oldest=3, harmless=(LeaseLost,), secure_delete=True)
"""The file of a :class:`~rbim.callbacks.SqliteInbox`. Earlier versions are refused."""


class EventFile:
    """A file of events, an inbox or a spool, shared by all threads of a process from first ``open`` to last ``close``."""

    def __init__(self, path: Path, kind: FileKind, *, clock: Clock) -> None:
        self.database = Database(path, kind, clock=lambda: clock.now().timestamp())
        self.purge: Callable[[], object] = bool
        self._in_place = InPlace(path, f"the {kind.name.partition(' ')[2]}")
        self._gone = False

    def open(self) -> None:
        """Open the file, or create it. Raises InvalidRequest if it is not one of its kind and version."""
        self.database.open()
        if self.database.users == 1:
            try:
                self._in_place.forget()
                self._in_place.require()
                self.database.query("SELECT 1 FROM sqlite_master LIMIT 0")  # opens the connection while the file is in place
            except BaseException:
                self.database.close()
                raise
            self._gone = False

    def close(self) -> None:
        """Undo one ``open``; the last one closes the file."""
        self.database.close()

    def commit(self, commands: Sequence[Callable[[], Any]], *, hurried: Callable[[], bool] = bool) -> list[Any]:
        """Run commands in one transaction, like :meth:`Database.commit`, and delete old events.

        Raises FileNotFoundError, and logs it once, if the file was deleted, moved or replaced: what would be committed could
        not be found again.
        """
        self.require_in_place()
        return self.database.commit(commands, last=self.purge, hurried=hurried)

    def require_in_place(self) -> None:
        """Raise FileNotFoundError if the open file is not the one at its path any more."""
        if not self.database.users:
            return
        try:
            self._in_place.require()
        except FileNotFoundError as error:
            if not self._gone:
                self._gone = True
                logger.error("%s: %s: restore the file, or restart this process", error.filename, error.strerror)
            raise
        self._gone = False


def _path(given: str | PathLike[str]) -> Path:
    try:
        text = Path(given)
    except TypeError:
        text = Path()
    if not text.name:
        raise InvalidRequest(f"path: pass the path of a file, not {given!r}", field="path")
    return text.absolute()  # so that a change of the working directory does not change the file


@define(eq=False, on_setattr=setters.frozen)
class SqliteInbox(DurableInbox):
    """An inbox in an SQLite file, created if missing (its directory must exist). For asyncio and trio.

    ``retention``: seconds after handling for which resends of an event are recognised (default: 7 days). The event is
    deleted and overwritten an hour later, while a worker or receiver runs. ``dead_retention``: seconds for which dead
    letters and events in quarantine are kept (default: None, until they are replayed, requeued or discarded); they are
    deleted within minutes, 500 a minute at most. ``lease``: seconds that a claim holds without renewal (default: 30).
    ``poll``: seconds between two checks for changes by other processes (default: 0.25). Due times, leases and the
    retention use ``clock``; all processes that share the file should agree on the time.

    Accepted events survive a crash of the process and of the machine. Entering opens the file and raises InvalidRequest if
    it belongs to another application or another version, or is not a database. Leaving completes pending transactions.
    Except for :meth:`backlog`, its methods are for the event loop that entered it.
    """

    path: Path = field(converter=_path)
    _file: EventFile = field(
        init=False, repr=False, default=Factory(lambda self: EventFile(self.path, INBOX, clock=self.clock), takes_self=True)
    )

    def _make_store(self) -> tuple[EventFile, InboxStore]:
        store = InboxStore(
            self._file.database, retention=self.retention, dead_retention=self.dead_retention, lease=self.lease
        )
        self._file.purge = store.purge
        return self._file, store

    async def counts(self) -> Counts:
        """Return the numbers of waiting, done, dead and quarantined events. The time grows with the number of events.

        Raises FileNotFoundError if the file was deleted, moved or replaced.
        """

        def counted() -> Counts:
            self._file.require_in_place()
            return self._store.counts()

        return await self._commits.query(counted)

    async def vacuum(self) -> None:
        """Rewrite the file and empty its log, so that no byte of a deleted event is left in them.

        What is deleted is overwritten at once, but SQLite leaves a few copies in pages that it has divided or joined, and in
        the log. The file is locked meanwhile, for about a second per 64 MiB; it needs room for two copies on the disk.
        Raises ``sqlite3.Error``, also while another process writes.
        """
        database = self._file.database

        def rewrite() -> None:
            database.rewrite()
            if not database.truncate_log():
                raise sqlite3.OperationalError("the log cannot be emptied: another process reads the inbox; try again")

        await self._commits.query(rewrite)
