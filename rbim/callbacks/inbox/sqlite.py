"""The durable inbox: an SQLite file that threads and processes of one machine can share."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import Factory, define, field, setters

from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.inbox.statements import SCHEMA
from rbim.callbacks.inbox.stored import DurableInbox
from rbim.callbacks.observers import logger
from rbim.clock import epoch_of
from rbim.errors import InvalidRequest
from rbim.storage.sqlite import Database, FileKind

if TYPE_CHECKING:
    from os import PathLike

    from rbim.callbacks.inbox.protocols import Counts

__all__ = ["INBOX", "SqliteInbox"]

INBOX = FileKind(
    name="an inbox",
    mark=b"rbim",
    schema=SCHEMA,
    version=4,
    harmless=(LeaseLost,),
    secure_delete=True,
    stays_in_place=True,
    log=logger.name,
)
"""The file of a :class:`~rbim.callbacks.SqliteInbox`. Earlier versions are refused."""


def _path(given: str | PathLike[str]) -> Path:
    try:
        text = Path(given)
    except TypeError:
        text = Path()
    if not text.name:
        raise InvalidRequest(f"path: pass the path of a file, not {given!r}", field="path")
    return text.absolute()  # so that a change of the working directory does not change the file


def _database(inbox: SqliteInbox) -> Database:
    return Database(inbox.path, INBOX, clock=epoch_of(inbox.clock))


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
    _database: Database = field(init=False, repr=False, default=Factory(_database, takes_self=True))

    async def counts(self) -> Counts:
        """Return the numbers of waiting, done, dead and quarantined events. The time grows with the number of events.

        Raises FileNotFoundError if the file was deleted, moved or replaced.
        """
        await self._commits.query(self._database.require_in_place)
        return await super().counts()

    async def vacuum(self) -> None:
        """Rewrite the file and empty its log, so that no byte of a deleted event is left in them.

        What is deleted is overwritten at once, but SQLite leaves a few copies in pages that it has divided or joined, and in
        the log. The file is locked meanwhile, for about a second per 64 MiB; it needs room for two copies on the disk.
        Raises ``sqlite3.Error``, also while another process writes.
        """

        def rewrite() -> None:
            self._database.rewrite()
            if not self._database.truncate_log():
                raise sqlite3.OperationalError("the log cannot be emptied: another process reads the inbox; try again")

        await self._commits.query(rewrite)
