"""The SQLite file of an inbox: opened, written in transactions, and the statements on deliveries, claims and leases."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import evolve

from rbim.callbacks.inbox.archive_statements import ArchiveStore
from rbim.callbacks.inbox.content import apart, is_resend
from rbim.callbacks.inbox.erasure import Erasure
from rbim.callbacks.inbox.protocols import Claim, LeaseLost, OtherContent
from rbim.callbacks.inbox.tables import INBOX, SPOOL, kind_of, open_conversations
from rbim.callbacks.observers import logger
from rbim.storage.commands import NotTogether
from rbim.storage.in_place import InPlace
from rbim.storage.sqlite import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from rbim.callbacks.delivery import Delivery
    from rbim.clock import Clock
    from rbim.storage.sqlite import FileKind

__all__ = ["Availability", "InboxStore"]

SLACK = 0.001  # seconds that a due time may be early: conversion between float and datetime rounds
MARGIN = 3600.0  # seconds that a key is kept after the retention: the clock that signs a resend may be ahead
PURGE_EVERY = 60.0  # seconds
PURGE_STEP = 500

ACCEPT = """INSERT INTO event (key, conversation, app_id, class, msg_type, received, state, error, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"""
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
CLEAR = "UPDATE conversation SET boot = '', suspect = NULL, crashes = 0 WHERE name = ? AND fence = ?"
SUSPECT = "UPDATE conversation SET ready = ?, fence = 0, boot = NULL, suspect = ?, crashes = ? WHERE name = ?"
RELEASE = """UPDATE conversation SET ready = ?, fence = 0, boot = NULL WHERE name = ? AND fence = ?
    AND EXISTS (SELECT 1 FROM event WHERE number = ? AND state = 0)"""
PAUSE = RELEASE.replace("boot = NULL", "boot = NULL, suspect = NULL, crashes = 0")
COUNT_ATTEMPT = "UPDATE event SET attempts = attempts + 1 WHERE number = ?"
SETTLE = """UPDATE event SET state = ?, finished = ?, error = ?, attempts = attempts + 1
    WHERE number = ? AND state = 0"""
PURGE = """DELETE FROM event WHERE number IN (
    SELECT number FROM event WHERE state = 1 AND finished < ? ORDER BY finished LIMIT ?)"""


class Availability(NamedTuple):
    """Whether a conversation can be claimed; if not, ``due`` is the seconds until the next one can (None: unknown)."""

    ready: bool
    due: float | None


class InboxStore:
    """An inbox's file, shared by all threads of a process from the first ``open`` to the last ``close``.

    The methods from ``accept`` to ``renew`` are commands: only :meth:`commit` may run them. ``archive`` has the statements
    that serve people.
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
        self._lease_time = lease
        self._database = Database(path, kind, clock=lambda: clock.now().timestamp())
        self._boot = ""
        self._in_place = InPlace(path, kind.name.replace("an ", "the ").replace("a ", "the "))
        self._gone = False
        self._is_spool = kind.mark == SPOOL.mark
        self._purged: float | None = None
        self._looked = False  # a worker that waits looked for old events
        self._erasure = Erasure(self._database)
        self.archive = ArchiveStore(
            self._database, self._erasure, dead_retention=dead_retention, require_in_place=self._require_in_place
        )

    def open(self) -> None:
        """Open the file, or create it. Raises InvalidRequest if it is not an inbox, or one of a newer rbim."""
        if not self._database.users:
            # not of the process: after a fork, each child opens the file itself. Forwarding from a spool kills none
            self._boot = "" if self._is_spool else token_hex(8)
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
            self._erasure.erase(inf)
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
            self._erasure.erase(self._database.now)
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
            self._erasure.note()
        self.archive.purge_old()

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
        open_conversations(self._database, dict.fromkeys(each.conversation for each in deliveries if each.problem is None))
        return [True] * len(deliveries)

    def accept(self, delivery: Delivery) -> bool | OtherContent:
        """Store a delivery; return False if its key is known.

        One with a known key and other content is stored under a key of its own, in quarantine unless this is a spool.
        """
        if self._insert(delivery):
            if delivery.problem is None:
                open_conversations(self._database, (delivery.conversation,))
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

    def claim(self, limit: int, held: Collection[int] = ()) -> list[Claim]:
        """Claim a suspect alone; or at most ``limit`` events, the oldest of each conversation and then the next ones.

        Those conversations come first that have been ready longest. Those leased under the fences ``held`` are left out:
        they are being handled, although the clock says that their leases have expired.
        """
        ready = self._database.execute(READY, (self._database.now + SLACK, limit + len(held))).fetchall()
        free = [
            (name, fence and boot)
            for name, fence, boot in ready
            if fence not in held and not (fence and self._is_crash(name, boot))
        ][:limit]
        suspect = self._claim_suspect(held)
        if suspect is not None:
            return [suspect]  # the leases of this process that have expired hold until the next claim
        if not free:
            return []
        for name, expired in free:
            if expired:
                self._count_attempt(name)
        each = limit // len(free)
        fenced = zip(free, self._fences(len(free)), strict=True)
        found = (self._lease(name, fence, each, boot=self._boot) for (name, _), fence in fenced)
        return [claim for claims in found for claim in claims]

    def _fences(self, count: int) -> range:
        self._database.execute("UPDATE meta SET fence = fence + ?", (count,))
        ((last,),) = self._database.execute("SELECT fence FROM meta")
        return range(last - count + 1, last + 1)

    def _is_crash(self, conversation: str, boot: str | None) -> bool:
        """Return whether the process of a lease that expired has died; if so, its oldest event is a suspect now."""
        if not boot or boot == self._boot:
            return False
        row = self._database.execute(OLDEST_IN_CONVERSATION, (conversation, 1)).fetchone()
        if row is None:
            return False
        self._database.execute(SUSPECT, (self._database.now, row[0], 1, conversation))
        return True

    def _count_attempt(self, conversation: str) -> None:
        """Count the attempt for the oldest event of a lease that expired while its process lives."""
        row = self._database.execute(OLDEST_IN_CONVERSATION, (conversation, 1)).fetchone()
        if row is not None:
            self._database.execute(COUNT_ATTEMPT, (row[0],))

    def _claim_suspect(self, held: Collection[int]) -> Claim | None:
        """Claim the suspect that has been ready longest, unless one is leased."""
        now = self._database.now
        while (row := self._database.execute(SUSPECT_READY, (now + SLACK,)).fetchone()) is not None:
            name, fence, boot, number, crashes = row
            if fence in held or self._database.execute(SUSPECT_LEASED, (now + SLACK,)).fetchone() is not None:
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

    def clear(self, claim: Claim) -> None:
        """Suspect an event no more; its lease goes on."""
        self._database.execute(CLEAR, (claim.conversation, claim.fence))
        self._database.news = True

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
        dues = [ready - now for ready, fence in rows if fence not in held]
        if any(due <= SLACK for due in dues):
            return Availability(ready=True, due=0.0)
        return Availability(ready=False, due=min(dues, default=None))

    def conversations(self, limit: int) -> set[str]:
        """Return at most ``limit`` conversations with waiting events."""
        return {conversation for (conversation,) in self._read("SELECT name FROM conversation LIMIT ?", (limit,))}

    def _read(self, statement: str, values: Any = ()) -> list[Any]:  # values of the placeholders; rows
        return self._database.read(lambda: self._database.execute(statement, values).fetchall())


def _row(delivery: Delivery) -> tuple[str | float | bytes | None, ...]:
    """Return the values of ACCEPT."""
    problem = delivery.problem
    return (
        delivery.key,
        delivery.conversation,
        delivery.app_id,
        *kind_of(delivery),
        delivery.received.timestamp(),
        0 if problem is None else 3,
        problem,
        delivery.body,
    )


def _storable(text: str) -> str:
    """Return a text without lone surrogates, which a traceback may quote and SQLite cannot store."""
    return text.encode("utf-8", "backslashreplace").decode()
