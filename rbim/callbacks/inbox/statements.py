"""The SQLite file of an inbox: its tables, and all statements on events and leases."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from attrs import evolve, frozen

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.content import OTHER_CONTENT, apart, is_resend
from rbim.callbacks.inbox.protocols import Claim, Counts, DeadLetter, LeaseLost, OtherContent
from rbim.callbacks.observers import logger
from rbim.storage.commands import NotTogether
from rbim.storage.in_place import InPlace
from rbim.storage.sqlite import Database, FileKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from rbim.callbacks.delivery import Delivery
    from rbim.clock import Clock

__all__ = ["INBOX", "SPOOL", "Availability", "InboxStore", "ReplayFilter"]

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
#   suspect that has not begun, in leases of version 1; and empty after absolve().
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
READY = "SELECT name, fence, boot FROM conversation WHERE suspect IS NULL AND ready <= ? ORDER BY ready LIMIT ?"
NEXT_READY = "SELECT ready, fence FROM conversation WHERE suspect IS NULL ORDER BY ready LIMIT ?"
SUSPECTS = "SELECT ready, fence FROM conversation WHERE suspect IS NOT NULL ORDER BY ready"
SUSPECT_READY = """SELECT name, fence, boot, suspect, crashes FROM conversation
    WHERE suspect IS NOT NULL AND ready <= ? ORDER BY ready LIMIT 1"""
SUSPECT_LEASED = "SELECT 1 FROM conversation WHERE suspect IS NOT NULL AND ready > ? AND fence > 0 LIMIT 1"
OLDEST_IN_CONVERSATION = """SELECT number, key, app_id, body, received, attempts, replays FROM event
    WHERE conversation = ? AND state = 0 ORDER BY number LIMIT ?"""
LEASE = "UPDATE conversation SET ready = ?, fence = ?, boot = ? WHERE name = ?"
EXTEND = "UPDATE conversation SET ready = ? WHERE name = ? AND fence = ?"
SET_BOOT = "UPDATE conversation SET boot = ? WHERE name = ? AND fence = ?"
SUSPECT = "UPDATE conversation SET ready = ?, fence = 0, boot = NULL, suspect = ?, crashes = ? WHERE name = ?"
RELEASE = """UPDATE conversation SET ready = ?, fence = 0, boot = NULL WHERE name = ? AND fence = ?
    AND EXISTS (SELECT 1 FROM event WHERE number = ? AND state = 0)"""
PAUSE = RELEASE.replace("boot = NULL", "boot = NULL, suspect = NULL, crashes = 0")
COUNT_ATTEMPT = "UPDATE event SET attempts = attempts + 1 WHERE number = ?"
SETTLE = """UPDATE event SET state = ?, finished = ?, error = ?, attempts = attempts + 1
    WHERE number = ? AND state = 0"""
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
LETTER_TIMES = {
    state: f"""SELECT number, received, coalesce(finished, received) FROM event
    WHERE state = {state} AND number > ? ORDER BY number LIMIT ?"""  # noqa: S608  # a constant
    for state in (2, 3)
}
LETTER = """SELECT number, key, conversation, app_id, body, received, attempts, error, msg_type FROM event
    WHERE number = ? AND state IN (2, 3)"""
REQUEUE = """UPDATE event SET state = 0, attempts = 0, finished = NULL, error = NULL
    WHERE number = ? AND state = 2"""
ADMIT = "UPDATE event SET conversation = ?, class = ?, msg_type = ?, state = 0, error = NULL WHERE number = ?"
QUARANTINED = DEAD.replace("state = 2", "state = 3")


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

    def __init__(  # noqa: PLR0913  # options, each by keyword
        self,
        path: Path,
        *,
        retention: float,
        lease: float,
        clock: Clock,
        dead_retention: float | None = None,
        kind: FileKind = INBOX,
    ) -> None:
        self._retention = retention
        self._dead_retention = dead_retention
        self._looked_at = {2: 0, 3: 0}  # by state: the last number that was checked for its age
        self._lease_time = lease
        self._database = Database(path, kind, clock=lambda: clock.now().timestamp())
        self._boot = ""
        self._in_place = InPlace(path, kind.name.replace("an ", "the ").replace("a ", "the "))
        self._gone = False
        self._is_spool = kind.mark == SPOOL.mark
        self._purged: float | None = None
        self._deleted = False  # the file or its log still has bytes of deleted events
        self._rewritten = False  # only the log has
        self._erased = -inf
        self._looked = False  # a worker that waits looked for old events

    def open(self) -> None:
        """Open the file, or create it. Raises InvalidRequest if it is not an inbox, or one of a newer rbim."""
        if not self._database.users:
            self._boot = token_hex(8)  # not of the process: after a fork, each child opens the file itself
        self._database.open()
        if self._database.users == 1:
            try:
                self._in_place.forget()
                self._in_place.require()
                self._database.query("SELECT 1 FROM event LIMIT 0")  # opens the connection while the file is in place
            except BaseException:
                self._database.close()
                raise
            self._gone = False

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
        """Run commands in one transaction, like :meth:`Database.commit`.

        Raises FileNotFoundError, and logs it once, if the file was deleted, moved or replaced: what would be committed could
        not be found again.
        """
        self._require_in_place()
        results = self._database.commit(commands, last=self._purge, hurried=hurried)
        idle = not commands or (self._looked and len(commands) == 1)
        self._looked = False
        if idle and self._purged == self._database.now:  # nothing waits for this transaction, and all old events are deleted
            self._erase_deleted(self._database.now)
        return results

    def _require_in_place(self) -> None:
        if not self._database.users:
            return
        try:
            self._in_place.require()
        except FileNotFoundError as error:
            if not self._gone:
                self._gone = True
                logger.error("%s: %s: restore the file, or restart this process", error.filename, error.strerror)
            raise
        self._gone = False

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
        if self._dead_retention is not None:
            purged += sum(self._purge_letters(state, now - self._dead_retention) for state in self._looked_at)
        if purged:
            self._deleted, self._rewritten = True, False

    def _purge_letters(self, state: int, before: float) -> int:
        """Delete old dead letters or old events in quarantine among the next 500."""
        rows = self._database.execute(LETTER_TIMES[state], (self._looked_at[state], PURGE_STEP)).fetchall()
        self._looked_at[state] = rows[-1][0] if len(rows) == PURGE_STEP else 0
        return self._delete([number for number, _, since in rows if since < before])

    def _delete(self, numbers: Iterable[int]) -> int:
        return self._database.executemany("DELETE FROM event WHERE number = ? AND state IN (2, 3)", [(n,) for n in numbers])

    @staticmethod
    def _recently(purged: float | None, now: float) -> bool:
        return purged is not None and 0 <= now - purged < PURGE_EVERY

    # ------------------------------------------------------------------------------- commands

    def accept_all(self, deliveries: Sequence[Delivery]) -> list[bool | OtherContent]:
        """Store deliveries in their order; return for each whether it is new, like :meth:`accept`.

        As long as all of them are new, this takes two statements, which cost a third of two for each delivery. Otherwise it
        raises NotTogether, so that each gets its number in the order of arrival.
        """
        if len(deliveries) == 1:
            return [self.accept(deliveries[0])]
        if self._database.executemany(ACCEPT, map(_row, deliveries)) < len(deliveries):
            raise NotTogether
        self._open_conversations(dict.fromkeys(each.conversation for each in deliveries if each.problem is None))
        return [True] * len(deliveries)

    def accept(self, delivery: Delivery) -> bool | OtherContent:
        """Store a delivery; return False if its key is known.

        One with a known key and other content is stored under a key of its own, in quarantine unless this is a spool.
        """
        if self._insert(delivery):
            if delivery.problem is None:
                self._open_conversation(delivery.conversation)
            return True
        ((number, known),) = self._database.execute("SELECT number, body FROM event WHERE key = ?", (delivery.key,))
        if is_resend(delivery.body, known):
            return False
        other = apart(delivery, number)
        if self._is_spool:  # which forwards it, and the sink decides
            return self.accept(other._replace(problem=None))
        return OtherContent(key=other.key, problem=other.problem or "") if self._insert(other) else False

    def _insert(self, delivery: Delivery) -> bool:
        return self._database.execute(ACCEPT, _row(delivery)).rowcount > 0

    def _open_conversation(self, conversation: str) -> None:
        self._open_conversations((conversation,))

    def _open_conversations(self, conversations: Collection[str]) -> None:
        now = self._database.now
        if self._database.executemany(OPEN_CONVERSATION, [(each, now) for each in conversations]):
            self._database.news = True

    def claim(self, limit: int) -> list[Claim]:
        """Claim a suspect alone; or at most ``limit`` events, the oldest of each conversation and then the next ones.

        Those conversations come first that have been ready longest.
        """
        ready = self._database.execute(READY, (self._database.now + SLACK, limit)).fetchall()
        names = [name for name, fence, boot in ready if not (fence and self._expired(name, boot))]
        suspect = self._claim_suspect()
        if suspect is not None:
            return [suspect]
        if not names:
            return []
        each = limit // len(names)
        fenced = zip(names, self._fences(len(names)), strict=True)
        found = (self._lease(name, fence, each, boot=self._boot) for name, fence in fenced)
        return [claim for claims in found for claim in claims]

    def _fences(self, count: int) -> range:
        self._database.execute("UPDATE meta SET fence = fence + ?", (count,))
        ((last,),) = self._database.execute("SELECT fence FROM meta")
        return range(last - count + 1, last + 1)

    def _expired(self, conversation: str, boot: str | None) -> bool:
        """Count what the end of a lease means for its oldest event; return whether that is a crash, and a suspect now."""
        if not boot:
            return False
        row = self._database.execute(OLDEST_IN_CONVERSATION, (conversation, 1)).fetchone()
        if row is None:
            return False
        if boot == self._boot:
            self._database.execute(COUNT_ATTEMPT, (row[0],))
            return False
        self._database.execute(SUSPECT, (self._database.now, row[0], 1, conversation))
        return True

    def _claim_suspect(self) -> Claim | None:
        """Claim the suspect that has been ready longest, unless one is leased."""
        now = self._database.now
        while (row := self._database.execute(SUSPECT_READY, (now + SLACK,)).fetchone()) is not None:
            name, fence, boot, number, crashes = row
            if self._database.execute(SUSPECT_LEASED, (now + SLACK,)).fetchone() is not None:
                return None
            oldest = self._database.execute(OLDEST_IN_CONVERSATION, (name, 1)).fetchone()
            if oldest is None or oldest[0] != number:  # it was settled by hand, or an older one was replayed
                self._database.execute(SUSPECT, (now, None, 0, name))
                continue
            if fence and boot == self._boot:
                self._database.execute(COUNT_ATTEMPT, (number,))
            elif fence and boot:
                crashes += 1
                self._database.execute(SUSPECT, (now, number, crashes, name))
            (fence,) = self._fences(1)
            (claim,) = self._lease(name, fence, 1, boot=None)
            return evolve(claim, crashes=crashes)
        return None

    def begin(self, claim: Claim) -> None:
        """Note that a suspect is handled from now on: it crashed if this process dies. Raises LeaseLost."""
        if not self._database.execute(SET_BOOT, (self._boot, claim.conversation, claim.fence)).rowcount:
            raise LeaseLost
        self.renew((claim,))

    def absolve(self, claims: Sequence[Claim]) -> None:
        """Let a death of this process say nothing about these claims."""
        for claim in claims:
            self._database.execute(SET_BOOT, ("", claim.conversation, claim.fence))

    def _lease(self, conversation: str, fence: int, limit: int, *, boot: str | None) -> list[Claim]:
        """Lease a conversation and claim its oldest waiting events; if there is none, delete its row."""
        claims = self._oldest(conversation, fence, limit)
        if claims:
            until = self._database.now + self._lease_time
            self._database.execute(LEASE, (until, fence, boot, conversation))
        return claims

    def _oldest(self, conversation: str, fence: int, limit: int) -> list[Claim]:
        """Return claims of the oldest waiting events; if there is none, delete the conversation's row."""
        rows = self._database.execute(OLDEST_IN_CONVERSATION, (conversation, limit)).fetchall()
        if not rows:
            self._database.execute("DELETE FROM conversation WHERE name = ?", (conversation,))
        return [
            Claim(
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
            for number, key, app_id, body, received, attempts, replays in rows
        ]

    def done(self, claims: Sequence[Claim], *, more: int) -> list[Claim]:
        """Settle the oldest events of a conversation as done; return its oldest ``more`` ones. Raises LeaseLost."""
        return self._settle(claims, (1, self._database.now, None), more=more)

    def dead_letter(self, claim: Claim, *, error: str, more: int) -> list[Claim]:
        """Settle an event as a dead letter; otherwise like ``done``."""
        return self._settle((claim,), (2, self._database.now, _storable(error)), more=more)

    def _settle(self, claims: Sequence[Claim], result: tuple[int, float, str | None], *, more: int) -> list[Claim]:
        conversation, fence = claims[0].conversation, claims[0].fence
        row = self._database.execute("SELECT fence, suspect FROM conversation WHERE name = ?", (conversation,)).fetchone()
        if row is None or row[0] != fence:
            raise LeaseLost
        if not sum(self._database.execute(SETTLE, (*result, claim.number)).rowcount for claim in claims):
            raise LeaseLost
        if more and row[1] is None:
            claims = self._oldest(conversation, fence, more)
            if claims:
                self._database.execute(EXTEND, (self._database.now + self._lease_time, conversation, fence))
            return claims
        if self._oldest(conversation, fence, 1):
            self._database.execute(SUSPECT, (self._database.now, None, 0, conversation))
            self._database.news = True
        return []

    def retry(self, claim: Claim, *, error: str, pause: float) -> None:
        """Record a failed attempt and pause the conversation. Raises LeaseLost."""
        if not self._end_lease(PAUSE, claim, self._database.now + pause):
            raise LeaseLost
        self._database.execute(COUNT_ATTEMPT, (claim.number,))
        self._database.execute("UPDATE event SET error = ? WHERE number = ?", (_storable(error), claim.number))

    def release(self, claim: Claim) -> None:
        """Give an event and the later ones of its conversation back unhandled, unless the lease is lost."""
        self._end_lease(RELEASE, claim, self._database.now)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Extend leases to their full time from now; return the claims whose leases are lost."""
        until = self._database.now + self._lease_time
        return [
            claim
            for claim in claims
            if not self._database.execute(EXTEND, (until, claim.conversation, claim.fence)).rowcount
        ]

    def _end_lease(self, statement: str, claim: Claim, ready: float) -> bool:
        """End a lease while its event still waits; return False if the lease was lost."""
        ended = self._database.execute(statement, (ready, claim.conversation, claim.fence, claim.number)).rowcount > 0
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

    def requeue(self, numbers: Sequence[int]) -> int:
        """Let dead letters wait again, and events in quarantine that can be read now; return their number."""
        return sum(self._requeue(number) for number in numbers)

    def _requeue(self, number: int) -> bool:
        letters = _dead_letters(self._database.execute(LETTER, (number,)).fetchall())
        if not letters:
            return False
        (letter,) = letters
        if self._database.execute(REQUEUE, (number,)).rowcount:
            self._open_conversation(letter.conversation)
            return True
        delivery = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
        if delivery.problem is not None:
            return False
        name, msg_type = _kind(delivery)
        values = (delivery.key, delivery.conversation, name, msg_type, number, delivery.key, number)
        if not self._database.execute(READMIT, values).rowcount:  # the key is known: an event of its own
            self._database.execute(ADMIT, (delivery.conversation, name, msg_type, number))
        self._open_conversation(delivery.conversation)
        return True

    def discard(self, numbers: Sequence[int]) -> int:
        """Delete dead letters and events in quarantine; return their number."""
        deleted = self._delete(numbers)
        if deleted:
            self._deleted, self._rewritten = True, False
        return deleted

    def purge_letters(self, state: int, *, before: float, after: int) -> tuple[int, int]:
        """Delete those received before ``before`` of the next 500 with numbers above ``after``; return the last number too.

        It is 0 at the end.
        """
        rows = self._database.execute(LETTER_TIMES[state], (after, PURGE_STEP)).fetchall()
        deleted = self.discard([number for number, received, _ in rows if received < before])
        return rows[-1][0] if len(rows) == PURGE_STEP else 0, deleted

    def _readmit(self, wanted: ReplayFilter, after: int, until: int) -> int:
        """Let events in quarantine wait if they can be read now; delete those that were accepted again meanwhile."""
        readmitted = 0
        rows = self._database.execute(QUARANTINED, (after, until, REPLAY_STEP)).fetchall()
        for letter in _dead_letters(rows):
            if letter.error.startswith(OTHER_CONTENT):
                continue
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
        normal, suspects = self._database.read(
            lambda: (
                self._database.execute(NEXT_READY, (len(held) + 1,)).fetchall(),
                self._database.execute(SUSPECTS).fetchall(),
            )
        )
        now = self._database.clock()
        leased = [(ready, fence) for ready, fence in suspects if fence and ready > now + SLACK]  # the others wait for it
        rows = [*normal, *(leased or suspects[:1])]
        if any(ready <= now + SLACK for ready, _ in rows):
            return Availability(ready=True, due=0.0)
        return Availability(ready=False, due=min((ready - now for ready, fence in rows if fence not in held), default=None))

    def counts(self) -> Counts:
        """Return the numbers of events by state."""
        self._require_in_place()
        ((waiting, done, dead, quarantined),) = self._database.query(COUNTS)
        return Counts(waiting=waiting, done=done, dead=dead, quarantined=quarantined)

    def oldest(self) -> float | None:
        """Return the time at which the oldest waiting event was received, in epoch seconds; None if none waits."""
        rows = self._database.query(OLDEST_RECEIVED)
        return cast("float", rows[0][0]) if rows else None

    def conversations(self, limit: int) -> set[str]:
        """Return at most ``limit`` conversations with waiting events."""
        return {conversation for (conversation,) in self._read("SELECT name FROM conversation LIMIT ?", (limit,))}

    def last(self) -> int:
        """Return the number of the event accepted last; 0 if there is none."""
        ((number,),) = self._read("SELECT coalesce(max(number), 0) FROM event")
        return cast("int", number)

    def letter(self, number: int) -> DeadLetter | None:
        """Return a dead letter or an event in quarantine; None if there is none with this number."""
        return next(iter(_dead_letters(self._read(LETTER, (number,)))), None)

    def dead_letters(self, limit: int, after: int) -> list[DeadLetter]:
        """Return at most ``limit`` dead letters with numbers above ``after``."""
        return _dead_letters(self._database.query(DEAD, (after, NO_END, limit)))

    def quarantined(self, limit: int, after: int) -> list[DeadLetter]:
        """Return at most ``limit`` events in quarantine with numbers above ``after``."""
        return _dead_letters(self._database.query(QUARANTINED, (after, NO_END, limit)))

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


def _row(delivery: Delivery) -> tuple[str | float | bytes | None, ...]:
    """Return the values of ACCEPT."""
    kind, problem = delivery.kind, delivery.problem
    return (
        delivery.key,
        delivery.conversation,
        delivery.app_id,
        "" if kind is None else kind.__name__,
        delivery.msg_type,
        delivery.received.timestamp(),
        0 if problem is None else 3,
        problem,
        delivery.body,
    )


def _kind(delivery: Delivery) -> tuple[str, str]:
    """Return the name of an event's class and its ``msgType``."""
    return "" if delivery.kind is None else delivery.kind.__name__, delivery.msg_type


def _storable(text: str) -> str:
    """Return a text without lone surrogates, which a traceback may quote and SQLite cannot store."""
    return text.encode("utf-8", "backslashreplace").decode()
