"""The commands of an inbox: what a transaction does with deliveries, leases, results and letters."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from rbim._support.text import storable
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.events import document_of
from rbim.callbacks.inbox import statements as sql
from rbim.callbacks.inbox.protocols import Claim, LeaseLost, OtherContent, StoredEvent
from rbim.callbacks.inbox.statements import DEAD, DONE, QUARANTINED
from rbim.errors import CallbackRejected
from rbim.storage.group_commit import CommandFailed, CommandFailure, CommitStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from rbim.callbacks.delivery import Delivery

__all__ = ["LARGEST", "SLACK", "STEP", "EventFilter", "InboxStore", "claim_of", "events_of", "row_of", "values_of"]

LARGEST = 2**63 - 1  # the largest number that SQLite stores
SLACK = 0.001  # seconds that a due time may be early: conversion between float and datetime rounds
MARGIN = 3600.0  # seconds that a key is kept after the retention: the clock that signs a resend may be ahead
PURGE_EVERY = 60.0  # seconds
MOST_SLEWED = 1.0  # seconds that a clock goes back without being set
STEP = 500  # events that one transaction deletes or requeues, and letters that one looks at
REPLAY_STEP = 1000
OTHER_CONTENT = "other content under the msgId of event "  # begins the ``error`` of such an event, before the number


@frozen(kw_only=True)
class EventFilter:
    """Chooses events: ``since`` in epoch seconds, names of classes, a ``msgType``, a conversation (None: any)."""

    since: float = -inf
    classes: Collection[str] | None = None
    msg_type: str | None = None
    conversation: str | None = None

    def matches(self, delivery: Delivery) -> bool:
        """Return whether a delivery is chosen, dead letter or not, of whatever conversation."""
        name = "" if delivery.kind is None else delivery.kind.__name__
        return (
            delivery.received.timestamp() >= self.since
            and (self.classes is None or name in self.classes)
            and (self.msg_type is None or delivery.msg_type == self.msg_type)
        )


EVERY = EventFilter()


class _StoreDatabase(CommitStore, Protocol):
    """Executes the statements of an inbox: :class:`rbim.storage.sqlite.Database`, which says more, or one on a server."""

    now: float
    news: bool
    purge: Callable[[], object]
    listeners: dict[Callable[[], object], None]

    def clock(self) -> float: ...

    def execute(self, statement: str, values: Any = ()) -> Any: ...

    def executemany(self, statement: str, values: Any) -> int: ...

    def query(self, statement: str, values: Any = ()) -> list[Any]: ...


class InboxStore:
    """What a transaction does. Times are in seconds.

    All methods are commands, which run in a transaction of ``database``, except for ``readmissible``, which only reads.
    """

    def __init__(self, database: _StoreDatabase, *, retention: float, lease: float, dead_retention: float | None) -> None:
        self.database = database
        self._retention = retention
        self._dead_retention = dead_retention
        self._lease_time = lease
        self._purged: float | None = None
        database.purge = self.purge

    # ------------------------------------------------------------------------------ accepting

    def accept_all(self, deliveries: Sequence[Delivery]) -> list[bool | OtherContent]:
        """Store deliveries in their order; return for each whether it is new, like :meth:`accept`.

        As long as all of them are new, this takes two statements, which cost a third of two for each delivery. Otherwise it
        raises CommandFailed, so that each gets its number in the order of arrival.
        """
        if len(deliveries) == 1:
            return [self.accept(deliveries[0])]
        if self.database.executemany(sql.ACCEPT, map(row_of, deliveries)) < len(deliveries):
            raise CommandFailed
        conversations = dict.fromkeys(each.conversation for each in deliveries if each.problem is None)
        self._let_be_claimed(sql.OPEN_CONVERSATION, conversations)
        return [True] * len(deliveries)

    def accept(self, delivery: Delivery) -> bool | OtherContent:
        """Store a delivery; return False if its key is known.

        One with a known key and other content is stored under a key of its own, in quarantine.
        """
        if self.database.execute(sql.ACCEPT, row_of(delivery)).rowcount > 0:
            if delivery.problem is None:
                self._let_be_claimed(sql.OPEN_CONVERSATION, (delivery.conversation,))
            return True
        ((number, known),) = self.database.execute(sql.BY_KEY, (delivery.key,))
        if delivery.body == known or (content := _content(delivery.body)) == _content(known):
            return False
        # its key is made of the known one and the content: its resends have the same
        own = f"{delivery.key} {json.dumps(content, sort_keys=True, default=bytes.hex)}"
        key = blake2b(own.encode(), digest_size=16).hexdigest()
        other = delivery._replace(key=key, problem=f"{OTHER_CONTENT}{number}")
        if self.database.execute(sql.ACCEPT, row_of(other)).rowcount > 0:
            return OtherContent(key=other.key, problem=other.problem or "")
        return False

    def _let_be_claimed(self, statement: str, conversations: Iterable[str]) -> None:
        """Give conversations their rows, by OPEN_CONVERSATION, or by COUNT_ANEW if events in them wait again."""
        if self.database.executemany(statement, [(each, self.database.now) for each in conversations]):
            self.database.news = True

    # ------------------------------------------------------------------------- leases, results

    def claim(self, limit: int, held: Collection[int] = ()) -> list[Claim]:
        """Claim an event that is retried alone; or at most ``limit`` others, the oldest of each conversation and then more.

        Those conversations come first that have been ready longest. Those leased under the fences ``held`` are left out:
        they are being handled, although the clock says that their leases have expired.
        """
        due = self.database.now + SLACK
        for name, fence, begun in self.database.execute(sql.RETRIED_ALONE, (due, len(held) + 1)).fetchall():
            if fence not in held and (claims := self._lease(name, self._fences(1)[0], 1, crashes=begun)):
                return claims
        ready = self.database.execute(sql.READY, (due, limit + len(held))).fetchall()
        free = [name for name, fence in ready if fence not in held][:limit]
        if not free:
            return []
        each = limit // len(free)
        fenced = zip(free, self._fences(len(free)), strict=True)
        return [claim for name, fence in fenced for claim in self._lease(name, fence, each)]

    def _fences(self, count: int) -> range:
        self.database.execute(sql.ADD_FENCES, (count,))
        ((last,),) = self.database.execute(sql.LAST_FENCE)
        return range(last - count + 1, last + 1)

    def _lease(self, name: str, fence: int, limit: int, *, crashes: int = 0) -> list[Claim]:
        """Lease a conversation and claim its oldest events. They begin at once, but for one that is retried alone."""
        claims = self._oldest(name, fence, limit, crashes=crashes)
        if claims:
            self.database.execute(sql.LEASE, (self._lease_end, fence, crashes or 1, name))
        return claims

    def _oldest(self, name: str, fence: int, limit: int, *, crashes: int = 0) -> list[Claim]:
        """Return claims of the oldest waiting events; if there is none, delete the conversation's row."""
        rows = self.database.execute(sql.OLDEST, (name, limit)).fetchall()
        if not rows:
            self.database.execute(sql.CLOSE_CONVERSATION, (name,))
        return [claim_of(name, fence, *row, crashes=crashes) for row in rows]

    @property
    def _lease_end(self) -> float:
        return self.database.now + self._lease_time

    def begin(self, claim: Claim) -> None:
        """Note that an event that is retried alone is handled from now on. Raises LeaseLost."""
        if not self.database.execute(sql.SET_BEGUN, (claim.crashes + 1, claim.conversation, claim.fence)).rowcount:
            raise LeaseLost
        self.renew((claim,))

    def discount(self, claims: Sequence[Claim]) -> None:
        """Let a death from now on count for nothing."""
        for claim in claims:
            self.database.execute(sql.SET_BEGUN, (claim.crashes, claim.conversation, claim.fence))
            self.database.news |= not claim.crashes

    def done_all(self, given: Sequence[tuple[Sequence[Claim], int]]) -> list[list[Claim] | CommandFailure]:
        """Record claims with their ``more`` as ``done`` does; the failure of one is LeaseLost."""
        results: list[list[Claim] | CommandFailure] = []
        for claims, more in given:
            try:
                results.append(self.done(claims, more=more))
            except LeaseLost as error:
                results.append(CommandFailure(error))
        return results

    def done(self, claims: Sequence[Claim], *, more: int) -> list[Claim]:
        """Settle the oldest events of a conversation as done; return its oldest ``more`` ones. Raises LeaseLost."""
        return self._settle(claims, (DONE, self.database.now, None), more=more)

    def dead_letter(self, claim: Claim, *, error: str, more: int) -> list[Claim]:
        """Settle an event as a dead letter; otherwise like ``done``."""
        return self._settle((claim,), (DEAD, self.database.now, storable(error)), more=more)

    def _settle(self, claims: Sequence[Claim], result: tuple[int, float, str | None], *, more: int) -> list[Claim]:
        name, fence = claims[0].conversation, claims[0].fence
        if self.database.execute(sql.FENCE, (name,)).fetchone() != (fence,):
            raise LeaseLost
        if not sum(self.database.execute(sql.SETTLE, (*result, claim.number)).rowcount for claim in claims):
            raise LeaseLost
        if claims[0].crashes:  # retried alone: what follows is claimed like others
            more = 0
        following = self._oldest(name, fence, max(more, 1))
        if following and more:
            self.database.execute(sql.RENEW, (self._lease_end, name, fence))
            return following
        if following:
            self.database.execute(sql.MAKE_READY, (self.database.now, name))
            self.database.news = True
        return []

    def retry(self, claim: Claim, *, error: str, pause: float) -> None:
        """Record a failed attempt and pause the conversation. Raises LeaseLost."""
        if not self._end_lease(claim, self.database.now + pause, begun=0):
            raise LeaseLost
        self.database.execute(sql.COUNT_FAILURE, (storable(error), claim.number))

    def release(self, claim: Claim, *, died: bool = False) -> None:
        """Give an event and the later ones of its conversation back unhandled, unless the lease is lost."""
        self._end_lease(claim, self.database.now, begun=claim.crashes + died)

    def _end_lease(self, claim: Claim, ready: float, *, begun: int) -> bool:
        """End a lease while its event still waits; return False if the lease was lost."""
        values = (ready, begun, claim.conversation, claim.fence, claim.number)
        ended: bool = self.database.execute(sql.END_LEASE, values).rowcount > 0
        self.database.news |= ended
        return ended

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Extend leases to their full time from now; return the claims whose leases are lost."""
        until, execute = self._lease_end, self.database.execute
        return [each for each in claims if not execute(sql.RENEW, (until, each.conversation, each.fence)).rowcount]

    # --------------------------------------------------------------------------------- letters

    def requeue(self, numbers: Sequence[int]) -> int:
        """Let dead letters wait again, and events in quarantine that can be read now; return their number."""
        count = 0
        for letter in events_of(row for each in numbers for row in self.database.execute(sql.LETTER, (each,)).fetchall()):
            if letter.state == "quarantined":
                count += self._readmit(letter, delivery_of(letter.body, app_id=letter.app_id, received=letter.received))
            else:
                self.database.execute(sql.REQUEUE, (letter.number,))
                self._let_be_claimed(sql.COUNT_ANEW, (letter.conversation,))
                count += 1
        return count

    def _readmit(self, letter: StoredEvent, delivery: Delivery) -> bool:
        """Let an event in quarantine wait if it can be read now; with a known key it keeps the key that it has here."""
        if delivery.problem is not None:
            return False
        _, _, _, kind, msg_type, *_ = row_of(delivery)
        for key in (delivery.key, letter.key):
            values = (key, delivery.conversation, kind, msg_type, letter.number, key, letter.number)
            if self.database.execute(sql.READMIT, values).rowcount:
                break
        self._let_be_claimed(sql.COUNT_ANEW, (delivery.conversation,))
        return True

    def replay(self, wanted: EventFilter, *, after: int, last: int) -> tuple[int, int]:
        """Replay one step of the events after number ``after`` up to ``last``; return the last number and the count."""
        until: int | None = self.database.execute(sql.SPAN, (after, last, REPLAY_STEP)).fetchone()[0]
        if until is None:
            return last, 0
        count = 0
        rows = self.database.execute(sql.LETTERS[QUARANTINED], values_of(EVERY, after, until)).fetchall()
        for letter, delivery in _readable(rows, wanted):
            if self.database.execute(sql.OTHER_OF_KEY, (delivery.key, letter.number)).fetchone():
                self.database.execute(sql.DELETE, (letter.number, QUARANTINED))  # it was accepted again meanwhile
            else:
                count += self._readmit(letter, delivery)
        values = values_of(wanted, after, until)
        conversations = self.database.execute(sql.REPLAY_CONVERSATIONS, values).fetchall()
        self._let_be_claimed(sql.COUNT_ANEW, [name for (name,) in conversations])
        replayed: int = self.database.execute(sql.REPLAY, values).rowcount
        return until, count + replayed

    def discard(self, numbers: Sequence[int]) -> int:
        """Delete dead letters and events in quarantine; return their number."""
        return self.database.executemany(
            sql.DELETE, [(number, state) for state in (DEAD, QUARANTINED) for number in numbers]
        )

    def purge_letters(self, state: int, *, before: float, after: int) -> tuple[int, int]:
        """Delete those received before ``before`` of the next 500 with numbers above ``after``; return the last number too.

        It is 0 at the end.
        """
        rows = self.database.execute(sql.NEXT_LETTERS[state], (after, STEP)).fetchall()
        old = [(number, state) for number, received in rows if received < before]
        return rows[-1][0] if len(rows) == STEP else 0, self.database.executemany(sql.DELETE, old)

    # ---------------------------------------------------------------------------- old events

    def purge(self) -> None:
        """Once a minute, look at the clock, and delete up to 500 events of each kind that are older than their retention.

        More follow at once. If the clock was set back, also by another process, what waits for a time does not wait longer.
        """
        now = self.database.now
        if self._purged is not None and 0 <= now - self._purged < PURGE_EVERY:
            return
        limits = {DONE: now - self._retention - MARGIN}
        if self._dead_retention is not None:
            limits |= dict.fromkeys((DEAD, QUARANTINED), now - self._dead_retention)
        self._purged = now  # also if it fails: other commands are tried without it
        self.database.news |= self.database.execute(sql.SET_BACK, (now, now + MOST_SLEWED)).rowcount > 0
        self.database.execute(sql.SEEN, (now,))
        deleted = [self.database.execute(sql.PURGE[state], (limit, STEP)).rowcount for state, limit in limits.items()]
        if max(deleted) == STEP:
            self._purged = None

    def due(self, held: Collection[int] = ()) -> float:
        """Return the seconds until a conversation can be claimed: 0 at once, infinite if none waits.

        Those leased under the fences ``held`` do not count.
        """
        limit = (len(held) + 1,)
        rows = [row for each in (sql.NEXT_READY, sql.NEXT_RETRIED_ALONE) for row in self.database.execute(each, limit)]
        due = min((ready for ready, fence in rows if fence not in held), default=inf) - self.database.now
        return due if due > SLACK else 0.0

    def readmissible(self, wanted: EventFilter, *, after: int, keys: set[str]) -> tuple[int, list[str]]:
        """Return the ``msgType`` of each event among the next 500 in quarantine that a replay would let wait again.

        And the last number of them, 0 at the end. ``keys``: of those before them, to which it adds.
        """
        rows = self.database.query(sql.LETTERS[QUARANTINED], values_of(EVERY, after, limit=STEP))
        found: list[str] = []
        for letter, delivery in _readable(rows, wanted):
            if delivery.key not in keys and not self.database.query(sql.OTHER_OF_KEY, (delivery.key, letter.number)):
                keys.add(delivery.key)
                found.append(delivery.msg_type)
        return rows[-1][0] if len(rows) == STEP else 0, found


def claim_of(name: str, fence: int, *row: Any, crashes: int = 0) -> Claim:
    """Return the claim of a row of OLDEST."""
    number, key, app_id, body, received, attempts, replays = row
    return Claim(
        number=number,
        key=key,
        conversation=name,
        app_id=app_id,
        body=body,
        received=datetime.fromtimestamp(received, UTC),
        attempt=attempts + 1,
        fence=fence,
        replays=replays,
        crashes=crashes,
    )


def row_of(delivery: Delivery) -> tuple[str | float | bytes | None, ...]:
    """Return the values of ACCEPT."""
    key, conversation, app_id, body, received, kind, msg_type, _, problem = delivery
    name, at = "" if kind is None else kind.__name__, received.timestamp()
    if problem is None:
        return key, conversation, app_id, name, msg_type, at, sql.WAITING, None, None, body
    return key, conversation, app_id, name, msg_type, at, QUARANTINED, at, problem, body


def events_of(rows: Iterable[Any]) -> list[StoredEvent]:
    """Return the events of rows of LETTER, LETTERS or NEWEST."""
    return [
        StoredEvent(
            number=number,
            key=key,
            conversation=conversation,
            app_id=app_id,
            body=body,
            received=datetime.fromtimestamp(received, UTC),
            attempts=attempts,
            error=error or "",
            msg_type=msg_type,
            state=sql.STATES[int(state)],
        )
        for number, key, conversation, app_id, body, received, attempts, error, msg_type, state in rows
    ]


def _readable(rows: Iterable[Any], wanted: EventFilter) -> Iterable[tuple[StoredEvent, Delivery]]:
    """Yield the events in quarantine that are wanted and can be read now, except for other content of a known event."""
    for letter in events_of(rows):
        if not letter.error.startswith(OTHER_CONTENT):
            delivery = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
            if delivery.problem is None and wanted.matches(delivery):
                yield letter, delivery


def values_of(wanted: EventFilter, after: int, until: int = LARGEST, *, limit: int = LARGEST) -> dict[str, Any]:
    """Return the values of CHOSEN, and of the statements with it."""
    return {
        "after": after,
        "until": until,
        "since": wanted.since,
        "any_class": wanted.classes is None,
        "classes": f",{','.join(wanted.classes or ())},",
        "any_type": wanted.msg_type is None,
        "msg_type": wanted.msg_type or "",
        "any_conversation": wanted.conversation is None,
        "conversation": wanted.conversation or "",
        "limit": limit,
    }


def _content(body: bytes) -> Any:  # a JSON document without its resendFlag, or the bytes
    try:
        return {name: value for name, value in document_of(body).items() if name != "resendFlag"}
    except CallbackRejected:
        return body
