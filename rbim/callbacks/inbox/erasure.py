"""The erasure of deleted events: their last bytes leave the file and its log."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbim.storage.sqlite import Database

__all__ = ["Erasure"]

ERASE_EVERY = 24 * 3600.0  # seconds
ERASE_SIZE = 64 * 1024 * 1024  # bytes of a file that is rewritten within a second or so


class Erasure:
    """What is left in a file of the events that were deleted from it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deleted = False  # the file or its log still has bytes of deleted events
        self._rewritten = False  # only the log has
        self._erased = -inf

    def note(self) -> None:
        """Note that events were deleted."""
        self._deleted, self._rewritten = True, False

    def erase(self, now: float) -> None:
        """Remove the last bytes of deleted events from the file and its log, at most once a day.

        SQLite overwrites what it deletes, but leaves a few copies in pages that it has divided or joined. A rewrite holds up
        deliveries, so a file of more than ERASE_SIZE keeps these copies.
        """
        if not self._deleted or 0 <= now - self._erased < ERASE_EVERY:
            return
        with suppress(sqlite3.Error):  # the commands are committed; the next purge tries again
            if not self._rewritten and self._database.size <= ERASE_SIZE:
                self._database.rewrite()
                self._rewritten = True
            if self._database.truncate_log():
                self._erased, self._deleted, self._rewritten = now, False, False
