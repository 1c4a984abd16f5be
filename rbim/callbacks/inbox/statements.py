"""The SQLite file of an inbox: its tables, and all statements on events and leases."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from attrs import evolve, frozen

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.protocols import Claim, LeaseLost
from rbim.storage.sqlite import Database, FileKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from rbim.callbacks.delivery import Delivery
    from rbim.clock import Clock

__all__ = ["INBOX", "SPOOL", "Availability", "Counts", "DeadLetter", "InboxStore", "ReplayFilter"]

# Theory of operation: the life of an event. The number is the column ``state``; leased and retrying are kinds of waiting.
#
#   waiting (0)      accepted, not settled; one of its conversation's queue
#   leased (0)       the oldest waiting event of a conversation that has a ``fence`` (see inbox/protocols.py)
#   retrying (0)     failed; ``error`` has the last traceback, and the conversation's ``ready`` lies in the future
#   done (1)         handled; kept so that a resend is recognised, deleted after the retention and MARGIN by the next
#                    transaction, at most PURGE_EVERY later while a worker waits. It is overwritten; its last bytes leave
#                    the file in a transaction that nothing waits for, at most once a day, and on the last close
#   dead letter (2)  its last attempt failed; kept until a replay
#   quarantined (3)  authentic, but unreadable or of another application (``error``); kept until a replay
#
# (new) -> waiting | quarantined     accept; a known key changes nothing
# waiting, retrying -> leased        claim, or the next claim under the same lease: attempts + 1
# leased -> done | dead letter       done, dead_letter
# leased -> retrying                 retry
# leased -> waiting                  release (attempts - 1), or the lease expires (the attempt counts)
# done | dead letter -> waiting      replay: attempts = 0; replays + 1 if it was done
# quarantined -> waiting             replay, if it can be read now; deleted instead if its new key is known by now
#
# What must always hold:
# - A key is in the table at most once, so an event is stored once, however often it is sent while its key is kept.
# - A conversation with a waiting event has a row in ``conversation``; ``fence`` is 0 in it without a lease, and ``ready``
#   is the time from which it may be claimed (of a lease: its end).
# - Only a claim with the row's fence settles an event or ends a lease.
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

SLACK = 0.001  # seconds that a due time may be early: conversion between float and datetime rounds
MARGIN = 3600.0  # seconds that a key is kept after the retention: the clock that signs a resend may be ahead
PURGE_EVERY = 60.0  # seconds
PURGE_STEP = 500
ERASE_EVERY = 24 * 3600.0  # seconds
ERASE_SIZE = 64 * 1024 * 1024  # bytes of a file that is rewritten within a second or so
REPLAY_STEP = 1000
NO_END = 2**63 - 1

ACCEPT = """INSERT INTO event (key, conversation, app_id, class, msg_type, received, state, error, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"""
OPEN_CONVERSATION = "INSERT INTO conversation (name, ready) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
READY = "SELECT name FROM conversation WHERE suspect IS NULL AND ready <= ? ORDER BY ready LIMIT ?"
NEXT_READY = "SELECT ready, fence FROM conversation WHERE suspect IS NULL ORDER BY ready LIMIT ?"
OLDEST_IN_CONVERSATION = """SELECT number, key, app_id, body, received, attempts, replays FROM event
    WHERE conversation = ? AND state = 0 ORDER BY number LIMIT 1"""
SET_LEASE = "UPDATE conversation SET ready = ?, fence = ? WHERE name = ? AND fence = ?"
END_LEASE = """UPDATE conversation SET ready = ?, fence = 0 WHERE name = ? AND fence = ?
    AND EXISTS (SELECT 1 FROM event WHERE number = ? AND state = 0)"""
SETTLE = "UPDATE event SET state = ?, finished = ?, error = ? WHERE number = ? AND state = 0"
PURGE = """DELETE FROM event WHERE number IN (
    SELECT number FROM event WHERE state = 1 AND finished < ? ORDER BY finished LIMIT ?)"""
REPLAYED = """number > :after AND number <= :until AND received >= :since AND (state = 2 OR state = 1 AND NOT :dead_only)
    AND (:classes IS NULL OR instr(:classes, ',' || class || ',')) AND (:msg_type IS NULL OR msg_type = :msg_type)"""
REPLAY_CONVERSATIONS = f"""INSERT INTO conversation (name, ready)
    SELECT DISTINCT conversation, :now FROM event WHERE {REPLAYED} ON CONFLICT (name) DO NOTHING"""  # noqa: S608  # a constant
REPLAY = f"""UPDATE event SET state = 0, attempts = 0, replays = replays + (state = 1), finished = NULL, error = NULL
    WHERE {REPLAYED}"""  # noqa: S608  # a constant
READMIT = """UPDATE event SET key = ?, conversation = ?, class = ?, msg_type = ?, state = 0, error = NULL WHERE number = ?
    AND NOT EXISTS (SELECT 1 FROM event WHERE key = ? AND number <> ?)"""
COUNTS = """SELECT (SELECT count(*) FROM event WHERE state = 0), (SELECT count(*) FROM event WHERE state = 1),
    (SELECT count(*) FROM event WHERE state = 2), (SELECT count(*) FROM event WHERE state = 3)"""
# searches the index of waiting events, not the table, which is mostly done events
OLDEST_RECEIVED = """SELECT received FROM event WHERE number =
    (SELECT min(number) FROM event INDEXED BY event_waiting WHERE state = 0)"""
DEAD = """SELECT number, key, conversation, app_id, body, received, attempts, error, msg_type FROM event
    WHERE state = 2 AND number > ? AND number <= ? ORDER BY number LIMIT ?"""
QUARANTINED = DEAD.replace("state = 2", "state = 3")


@frozen(kw_only=True)
class Counts:
    """Numbers of events in an inbox: waiting, done (kept to recognise resends), dead letters, in quarantine."""

    waiting: int
    done: int
    dead: int
    quarantined: int


@frozen(kw_only=True)
class DeadLetter:
    """A dead letter or an event in quarantine; ``error`` is the cause, ``number`` its place in the order of acceptance."""

    number: int
    key: str
    conversation: str
    app_id: str
    body: bytes
    received: datetime
    attempts: int
    error: str
    msg_type: str


@frozen(kw_only=True)
class ReplayFilter:
    """The filter of a replay: ``since`` in epoch seconds, names of classes and a ``msgType`` (None: any)."""

    since: float
    classes: Collection[str] | None
    msg_type: str | None
    dead_only: bool


class Availability(NamedTuple):
    """Whether a conversation can be claimed; if not, ``due`` is the seconds until the next one can (None: unknown)."""

    ready: bool
    due: float | None


class InboxStore:
    """An inbox's file, shared by all threads of a process from the first ``open`` to the last ``close``.

    The methods from ``accept`` to ``replay`` are commands: only :meth:`commit` may run them.
    """

    def __init__(self, path: Path, *, retention: float, lease: float, clock: Clock, kind: FileKind = INBOX) -> None:
        self._retention = retention
        self._lease = lease
        self._database = Database(path, kind, clock=lambda: clock.now().timestamp())
        self._purged: float | None = None
        self._deleted = False  # the file or its log still has bytes of deleted events
        self._rewritten = False  # only the log has
        self._erased = -inf
        self._looked = False  # a worker that waits looked for old events

    def open(self) -> None:
        """Open the file, or create it. Raises InvalidRequest if it is not an inbox, or one of a newer rbim."""
        self._database.open()

    def close(self) -> None:
        """Undo one ``open``; the last one closes the file."""
        if self._database.users == 1:
            self._erase_deleted(inf)
        self._database.close()

    def listen(self, call: Callable[[], object]) -> None:
        """Register a function to call, in any thread, after each transaction that may change when a claim succeeds."""
        self._database.listen(call)

    def unlisten(self, call: Callable[[], object]) -> None:
        """Undo one ``listen``."""
        self._database.unlisten(call)

    def commit(self, commands: Sequence[Callable[[], Any]], *, hurried: Callable[[], bool] = bool) -> list[Any]:
        """Run commands in one transaction, like :meth:`Database.commit`."""
        results = self._database.commit(commands, last=self._purge, hurried=hurried)
        idle = not commands or (self._looked and len(commands) == 1)
        self._looked = False
        if idle and self._purged == self._database.now:  # nothing waits for this transaction, and all old events are deleted
            self._erase_deleted(self._database.now)
        return results

    def look_for_old(self) -> None:
        """A command that does nothing: its transaction deletes old events, and without others the file is rewritten."""
        self._looked = True

    def _erase_deleted(self, now: float) -> None:
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

    def purge_due(self) -> bool:
        """Return whether the next transaction looks for events to delete; one without commands does it, too."""
        return not self._recently(self._purged, self._database.clock())

    def _purge(self) -> None:
        """Delete up to 500 done events older than the retention; later transactions delete the rest."""
        now = self._database.now
        if self._recently(self._purged, now):
            return
        purged = self._database.execute(PURGE, (now - self._retention - MARGIN, PURGE_STEP)).rowcount
        self._purged = now if purged < PURGE_STEP else None
        if purged:
            self._deleted, self._rewritten = True, False

    @staticmethod
    def _recently(purged: float | None, now: float) -> bool:
        return purged is not None and 0 <= now - purged < PURGE_EVERY

    # ------------------------------------------------------------------------------- commands

    def accept(self, delivery: Delivery) -> bool:
        """Store a delivery; return False if its key is known."""
        row = (
            delivery.key,
            delivery.conversation,
            delivery.app_id,
            *_kind(delivery),
            delivery.received.timestamp(),
            0 if delivery.problem is None else 3,
            delivery.problem,
            delivery.body,
        )
        if not self._database.execute(ACCEPT, row).rowcount:
            return False
        if delivery.problem is None:
            self._open_conversation(delivery.conversation)
        return True

    def _open_conversation(self, conversation: str) -> None:
        if self._database.execute(OPEN_CONVERSATION, (conversation, self._database.now)).rowcount:
            self._database.news = True

    def claim(self, limit: int) -> list[Claim]:
        """Lease at most ``limit`` conversations, those that have been ready longest first."""
        ready = self._database.execute(READY, (self._database.now + SLACK, limit)).fetchall()
        if not ready:
            return []
        self._database.execute("UPDATE meta SET fence = fence + ?", (len(ready),))
        ((last,),) = self._database.execute("SELECT fence FROM meta")
        claims = (self._claim_oldest(name, fence) for fence, (name,) in enumerate(ready, last - len(ready) + 1))
        return [claim for claim in claims if claim is not None]

    def _claim_oldest(self, conversation: str, fence: int) -> Claim | None:
        """Lease a conversation and claim its oldest waiting event; if there is none, delete its row in ``conversation``."""
        row = self._database.execute(OLDEST_IN_CONVERSATION, (conversation,)).fetchone()
        if row is None:
            self._database.execute("DELETE FROM conversation WHERE name = ?", (conversation,))
            return None
        number, key, app_id, body, received, attempts, replays = row
        self._database.execute("UPDATE event SET attempts = attempts + 1 WHERE number = ?", (number,))
        lease = (self._database.now + self._lease, fence, conversation)
        self._database.execute("UPDATE conversation SET ready = ?, fence = ? WHERE name = ?", lease)
        return Claim(
            number=number,
            key=key,
            conversation=conversation,
            app_id=app_id,
            body=body,
            received=datetime.fromtimestamp(received, UTC),
            attempt=attempts + 1,
            fence=fence,
            replays=replays,
        )

    def done(self, claim: Claim, *, more: bool) -> Claim | None:
        """Settle an event as done; with ``more``, claim the next one of its conversation. Raises LeaseLost."""
        return self._settle(claim, (1, self._database.now, None), more=more)

    def dead_letter(self, claim: Claim, *, error: str, more: bool) -> Claim | None:
        """Settle an event as a dead letter; otherwise like ``done``."""
        return self._settle(claim, (2, self._database.now, _storable(error)), more=more)

    def _settle(self, claim: Claim, result: tuple[int, float, str | None], *, more: bool) -> Claim | None:
        fence = self._database.execute("SELECT fence FROM conversation WHERE name = ?", (claim.conversation,)).fetchone()
        if fence != (claim.fence,) or not self._database.execute(SETTLE, (*result, claim.number)).rowcount:
            raise LeaseLost
        if more:
            return self._claim_oldest(claim.conversation, claim.fence)
        if self._database.execute(OLDEST_IN_CONVERSATION, (claim.conversation,)).fetchone() is None:
            self._database.execute("DELETE FROM conversation WHERE name = ?", (claim.conversation,))
        else:
            self._database.execute(SET_LEASE, (self._database.now, 0, claim.conversation, claim.fence))
            self._database.news = True
        return None

    def retry(self, claim: Claim, *, error: str, pause: float) -> None:
        """Record a failed attempt and pause the conversation. Raises LeaseLost."""
        if not self._end_lease(claim, self._database.now + pause):
            raise LeaseLost
        self._database.execute("UPDATE event SET error = ? WHERE number = ?", (_storable(error), claim.number))

    def release(self, claim: Claim) -> None:
        """Give an event back unhandled, unless the lease is lost; its attempt does not count."""
        if self._end_lease(claim, self._database.now):
            self._database.execute("UPDATE event SET attempts = max(attempts - 1, 0) WHERE number = ?", (claim.number,))

    def renew(self, claims: Sequence[Claim]) -> None:
        """Extend leases to their full time from now, except those that are lost."""
        for claim in claims:
            self._database.execute(
                SET_LEASE, (self._database.now + self._lease, claim.fence, claim.conversation, claim.fence)
            )

    def _end_lease(self, claim: Claim, ready: float) -> bool:
        """End a lease while its event still waits; return False if the lease was lost."""
        ended = self._database.execute(END_LEASE, (ready, claim.conversation, claim.fence, claim.number)).rowcount > 0
        self._database.news |= ended
        return ended

    def replay(self, wanted: ReplayFilter, *, after: int, last: int) -> tuple[int, int]:
        """Replay one step of the events after number ``after`` up to ``last``; return the last number and the count."""
        span = self._database.execute(
            "SELECT max(number) FROM (SELECT number FROM event WHERE number > ? AND number <= ? ORDER BY number LIMIT ?)",
            (after, last, REPLAY_STEP),
        )
        until: int | None = span.fetchone()[0]
        if until is None:
            return last, 0
        count = 0 if wanted.dead_only else self._readmit(wanted, after, until)
        values = {
            "after": after,
            "until": until,
            "since": wanted.since,
            "dead_only": wanted.dead_only,
            "classes": None if wanted.classes is None else f",{','.join(wanted.classes)},",
            "msg_type": wanted.msg_type,
            "now": self._database.now,
        }
        self._database.news |= self._database.execute(REPLAY_CONVERSATIONS, values).rowcount > 0
        return until, count + self._database.execute(REPLAY, values).rowcount

    def _readmit(self, wanted: ReplayFilter, after: int, until: int) -> int:
        """Let events in quarantine wait if they can be read now; delete those that were accepted again meanwhile."""
        readmitted = 0
        rows = self._database.execute(QUARANTINED, (after, until, REPLAY_STEP)).fetchall()
        for letter in _dead_letters(rows):
            delivery = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
            name, msg_type = _kind(delivery)
            if (
                delivery.problem is not None
                or letter.received.timestamp() < wanted.since
                or (wanted.classes is not None and name not in wanted.classes)
                or (wanted.msg_type is not None and msg_type != wanted.msg_type)
            ):
                continue
            values = (delivery.key, delivery.conversation, name, msg_type, letter.number, delivery.key, letter.number)
            if self._database.execute(READMIT, values).rowcount:
                self._open_conversation(delivery.conversation)
                readmitted += 1
            else:
                self._database.execute("DELETE FROM event WHERE number = ?", (letter.number,))
                self._deleted, self._rewritten = True, False
        return readmitted

    # ---------------------------------------------------------------------------------- reads

    def availability(self, held: Collection[int] = ()) -> Availability:
        """Return whether and when a conversation can be claimed; ignore those leased under the fences ``held``."""
        rows = self._read(NEXT_READY, (len(held) + 1,))
        now = self._database.clock()
        if rows and rows[0][0] <= now + SLACK:
            return Availability(ready=True, due=0.0)
        return Availability(ready=False, due=next((ready - now for ready, fence in rows if fence not in held), None))

    def counts(self) -> Counts:
        """Return the numbers of events by state."""
        ((waiting, done, dead, quarantined),) = self._read(COUNTS)
        return Counts(waiting=waiting, done=done, dead=dead, quarantined=quarantined)

    def oldest(self) -> float | None:
        """Return the time at which the oldest waiting event was received, in epoch seconds; None if none waits."""
        rows = self._read(OLDEST_RECEIVED)
        return cast("float", rows[0][0]) if rows else None

    def conversations(self, limit: int) -> set[str]:
        """Return at most ``limit`` conversations with waiting events."""
        return {conversation for (conversation,) in self._read("SELECT name FROM conversation LIMIT ?", (limit,))}

    def last(self) -> int:
        """Return the number of the event accepted last; 0 if there is none."""
        ((number,),) = self._read("SELECT coalesce(max(number), 0) FROM event")
        return cast("int", number)

    def dead_letters(self, limit: int, after: int) -> list[DeadLetter]:
        """Return at most ``limit`` dead letters with numbers above ``after``."""
        return _dead_letters(self._read(DEAD, (after, NO_END, limit)))

    def quarantined(self, limit: int, after: int) -> list[DeadLetter]:
        """Return at most ``limit`` events in quarantine with numbers above ``after``."""
        return _dead_letters(self._read(QUARANTINED, (after, NO_END, limit)))

    def _read(self, statement: str, values: Any = ()) -> list[Any]:  # values of the placeholders; rows
        return self._database.read(lambda: self._database.execute(statement, values).fetchall())


def _dead_letters(rows: Iterable[Any]) -> list[DeadLetter]:  # rows
    return [
        DeadLetter(
            number=number,
            key=key,
            conversation=conversation,
            app_id=app_id,
            body=body,
            received=datetime.fromtimestamp(received, UTC),
            attempts=attempts,
            error=error or "",
            msg_type=msg_type,
        )
        for number, key, conversation, app_id, body, received, attempts, error, msg_type in rows
    ]


def _kind(delivery: Delivery) -> tuple[str, str]:
    """Return the name of an event's class and its ``msgType``."""
    return "" if delivery.kind is None else delivery.kind.__name__, delivery.msg_type


def _storable(text: str) -> str:
    """Return a text without lone surrogates, which a traceback may quote and SQLite cannot store."""
    return text.encode("utf-8", "backslashreplace").decode()
