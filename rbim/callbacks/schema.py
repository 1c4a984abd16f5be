"""What is in the SQLite file of an inbox, and in that of a spool."""

from __future__ import annotations

from attrs import evolve

from rbim.callbacks.delivery import LeaseLost
from rbim.database import Kind

__all__ = ["INBOX", "SPOOL"]

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

INBOX = Kind(name="an inbox", mark=b"rbim", schema=SCHEMA, harmless=(LeaseLost,))
"""The file of a :class:`~rbim.callbacks.inbox.SqliteInbox`."""

SPOOL = evolve(INBOX, name="a spool", mark=b"rbsp")
"""The file of a spool: an inbox that is no inbox to anybody else."""
