"""The tables of an inbox's file, the states of an event in them, and what all statements on them share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.storage.sqlite import FileKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim.callbacks.delivery import Delivery
    from rbim.storage.sqlite import Database

__all__ = ["INBOX", "SPOOL", "kind_of", "open_conversations"]

# Theory of operation: the life of an event. The number is the column ``state``; leased and retrying are kinds of waiting.
#
#   waiting (0)      accepted, not settled; one of its conversation's queue
#   leased (0)       among the oldest waiting events of a conversation that has a ``fence`` (see inbox/protocols.py)
#   retrying (0)     failed; ``error`` has the last traceback, and the conversation's ``ready`` lies in the future
#   done (1)         handled; kept so that a resend is recognised, deleted after the retention and MARGIN by the next
#                    transaction, at most PURGE_EVERY later while a worker waits. It is overwritten; its last bytes leave
#                    the file in a transaction that nothing waits for, at most once a day, and on the last close
#   dead letter (2)  its last attempt failed; kept until it is replayed, discarded, or older than its own retention
#   quarantined (3)  authentic, but unreadable or of another application (``error``); kept likewise
#
# (new) -> waiting | quarantined     accept; a known key changes nothing
# waiting, retrying -> leased        claim, or the next claims under the same lease
# leased -> done | dead letter       done, dead_letter: attempts + 1
# leased -> retrying                 retry: attempts + 1
# leased -> waiting                  release; or the lease expires: attempts + 1 if its process lives, else a crash
# done | dead letter -> waiting      replay: attempts = 0; replays + 1 if it was done
# dead letter | quarantined -> (gone) discard, purge
# quarantined -> waiting             replay or requeue, if it can be read now; deleted instead if its new key is known by now
#
# What must always hold:
# - A key is in the table at most once, so an event is stored once, however often it is sent while its key is kept.
# - A conversation with a waiting event has a row in ``conversation``; ``fence`` is 0 in it without a lease, and ``ready``
#   is the time from which it may be claimed (of a lease: its end).
# - Only a claim with the row's fence settles an event or ends a lease.
# - ``boot`` names the process that has the lease (a new name each time the file is opened), to tell a lease of a dead
#   process from one that its own process let expire. It is NULL where a death means nothing: without a lease, of a
#   suspect that has not begun, in leases of version 1; and empty after absolve() and clear(), and in a spool.
# - ``suspect`` is the number of the event whose process died ``crashes`` times; the first time others were beside it.
#
# The body is the last column, so that no search has to read past it.
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
    (  # of names and of one small table: the time does not grow with the number of events
        "ALTER TABLE event RENAME COLUMN seq TO number",
        """CREATE TABLE conversation (
            name TEXT PRIMARY KEY,
            ready REAL NOT NULL,
            fence INTEGER NOT NULL DEFAULT 0,
            boot TEXT,
            suspect INTEGER,
            crashes INTEGER NOT NULL DEFAULT 0
        ) WITHOUT ROWID""",
        "INSERT INTO conversation (name, ready, fence) SELECT conversation, ready, fence FROM lane",
        "DROP TABLE lane",
        "CREATE INDEX conversation_ready ON conversation (ready) WHERE suspect IS NULL",
        "CREATE INDEX conversation_suspect ON conversation (ready) WHERE suspect IS NOT NULL",
    ),
)

INBOX = FileKind(name="an inbox", mark=b"rbim", schema=SCHEMA, harmless=(LeaseLost,), secure_delete=True)
"""The file of a :class:`~rbim.callbacks.SqliteInbox`."""

SPOOL = evolve(INBOX, name="a spool", mark=b"rbsp")
"""The file of a spool: the same tables with another mark, so that no other code opens it as an inbox."""

OPEN_CONVERSATION = "INSERT INTO conversation (name, ready) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"


def open_conversations(database: Database, conversations: Iterable[str]) -> None:
    """Let conversations with waiting events be claimed from now on, unless they have their rows already."""
    if database.executemany(OPEN_CONVERSATION, [(each, database.now) for each in conversations]):
        database.news = True


def kind_of(delivery: Delivery) -> tuple[str, str]:
    """Return the name of an event's class and its ``msgType``."""
    return "" if delivery.kind is None else delivery.kind.__name__, delivery.msg_type
