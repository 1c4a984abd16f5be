"""All inboxes fit the protocols. Never executed: mypy and pyright read it, in strict mode, as they do ``api.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbim.callbacks import Archive, Inbox, MemorySink, Sink, SqliteInbox


def as_sinks(memory: MemorySink, file: SqliteInbox) -> list[Sink]:
    return [memory, file]


def as_inboxes(memory: MemorySink, file: SqliteInbox) -> list[Inbox]:
    return [memory, file]


def as_archives(memory: MemorySink, file: SqliteInbox) -> list[Archive]:
    return [memory, file]
