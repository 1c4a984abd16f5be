"""The statements that serve people: numbers of events, dead letters and quarantine, replays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.arguments import LARGEST, EventFilter
from rbim.callbacks.inbox.content import OTHER_CONTENT
from rbim.callbacks.inbox.protocols import Counts, DeadLetter
from rbim.callbacks.inbox.tables import kind_of, open_conversations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.erasure import Erasure
    from rbim.storage.sqlite import Database

__all__ = ["ArchiveStore"]

LETTER_STEP = 500
EVERY = EventFilter()
REPLAY_STEP = 1000

CHOSEN = """number > :after AND number <= :until AND received >= :since
    AND (:classes IS NULL OR instr(:classes, ',' || class || ',')) AND (:msg_type IS NULL OR msg_type = :msg_type)"""
REPLAYED = f"{CHOSEN} AND (state = 2 OR state = 1 AND NOT :dead_only)"
REPLAY_CONVERSATIONS = f"""INSERT INTO conversation (name, ready)
    SELECT DISTINCT conversation, :now FROM event WHERE {REPLAYED} ON CONFLICT (name) DO NOTHING"""  # noqa: S608  # a constant
REPLAY = f"""UPDATE event SET state = 0, attempts = 0, replays = replays + (state = 1), finished = NULL, error = NULL
    WHERE {REPLAYED}"""  # noqa: S608  # a constant
REPLAYABLE = f"SELECT msg_type, count(*) FROM event WHERE {REPLAYED} GROUP BY msg_type"  # noqa: S608  # a constant
DEAD_BY_KIND = f"SELECT msg_type, count(*) FROM event WHERE {CHOSEN} AND state = 2 GROUP BY msg_type"  # noqa: S608  # a constant
KNOWN = "SELECT 1 FROM event WHERE key = ? AND number <> ?"
READMIT = """UPDATE event SET key = ?, conversation = ?, class = ?, msg_type = ?, state = 0, error = NULL WHERE number = ?
    AND NOT EXISTS (SELECT 1 FROM event WHERE key = ? AND number <> ?)"""
COUNTS = """SELECT (SELECT count(*) FROM event WHERE state = 0), (SELECT count(*) FROM event WHERE state = 1),
    (SELECT count(*) FROM event WHERE state = 2), (SELECT count(*) FROM event WHERE state = 3)"""
# searches the index of waiting events, not the table, which is mostly done events
OLDEST_RECEIVED = """SELECT received FROM event WHERE number =
    (SELECT min(number) FROM event INDEXED BY event_waiting WHERE state = 0)"""
COLUMNS = "number, key, conversation, app_id, body, received, attempts, error, msg_type, state = 3"
DEAD = f"""SELECT {COLUMNS} FROM event WHERE {CHOSEN} AND state = 2
    AND (:conversation IS NULL OR conversation IN (:conversation, app_id || '/' || :conversation))
    ORDER BY number LIMIT :limit"""  # noqa: S608  # a constant
LETTER_TIMES = {
    state: f"""SELECT number, received, coalesce(finished, received) FROM event
    WHERE state = {state} AND number > ? ORDER BY number LIMIT ?"""  # noqa: S608  # a constant
    for state in (2, 3)
}
LETTER = f"SELECT {COLUMNS} FROM event WHERE number = ? AND state IN (2, 3)"  # noqa: S608  # a constant
REQUEUE = """UPDATE event SET state = 0, attempts = 0, finished = NULL, error = NULL
    WHERE number = ? AND state = 2"""
ADMIT = "UPDATE event SET conversation = ?, class = ?, msg_type = ?, state = 0, error = NULL WHERE number = ?"
QUARANTINED = DEAD.replace("state = 2", "state = 3")


class ArchiveStore:
    """The events of an inbox's file for people. ``dead_retention``: seconds that dead letters and quarantine are kept.

    The methods from ``replay`` to ``purge_letters`` are commands: only :meth:`InboxStore.commit` may run them.
    """

    def __init__(
        self,
        database: Database,
        erasure: Erasure,
        *,
        dead_retention: float | None,
        require_in_place: Callable[[], None],
    ) -> None:
        self._database = database
        self._erasure = erasure
        self._dead_retention = dead_retention
        self._require_in_place = require_in_place
        self._looked_at = {2: 0, 3: 0}  # by state: the last number that was checked for its age

    # ------------------------------------------------------------------------------- commands

    def replay(self, wanted: EventFilter, *, after: int, last: int) -> tuple[int, int]:
        """Replay one step of the events after number ``after`` up to ``last``; return the last number and the count."""
        span = self._database.execute(
            "SELECT max(number) FROM (SELECT number FROM event WHERE number > ? AND number <= ? ORDER BY number LIMIT ?)",
            (after, last, REPLAY_STEP),
        )
        until: int | None = span.fetchone()[0]
        if until is None:
            return last, 0
        count = 0 if wanted.dead_only else self._readmit(wanted, after, until)
        values = _values(wanted, after, until) | {"now": self._database.now}
        self._database.news |= self._database.execute(REPLAY_CONVERSATIONS, values).rowcount > 0
        return until, count + self._database.execute(REPLAY, values).rowcount

    def _readmit(self, wanted: EventFilter, after: int, until: int) -> int:
        """Let events in quarantine wait if they can be read now; delete those that were accepted again meanwhile."""
        readmitted = 0
        rows = self._database.execute(QUARANTINED, _values(EVERY, after, until, REPLAY_STEP)).fetchall()
        for letter, delivery in _readable(rows, wanted):
            name, msg_type = kind_of(delivery)
            values = (delivery.key, delivery.conversation, name, msg_type, letter.number, delivery.key, letter.number)
            if self._database.execute(READMIT, values).rowcount:
                open_conversations(self._database, (delivery.conversation,))
                readmitted += 1
            else:
                self._database.execute("DELETE FROM event WHERE number = ?", (letter.number,))
                self._erasure.note()
        return readmitted

    def requeue(self, numbers: Sequence[int], *, dead: bool = True, quarantined: bool = True) -> int:
        """Let dead letters wait again, and events in quarantine that can be read now; return their number."""
        return sum(self._requeue(number, dead=dead, quarantined=quarantined) for number in numbers)

    def _requeue(self, number: int, *, dead: bool, quarantined: bool) -> bool:
        letters = _dead_letters(self._database.execute(LETTER, (number,)).fetchall())
        if not letters or not (quarantined if letters[0].quarantined else dead):
            return False
        (letter,) = letters
        if not letter.quarantined:
            self._database.execute(REQUEUE, (number,))
            open_conversations(self._database, (letter.conversation,))
            return True
        delivery = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
        if delivery.problem is not None:
            return False
        name, msg_type = kind_of(delivery)
        values = (delivery.key, delivery.conversation, name, msg_type, number, delivery.key, number)
        if not self._database.execute(READMIT, values).rowcount:  # the key is known: an event of its own
            self._database.execute(ADMIT, (delivery.conversation, name, msg_type, number))
        open_conversations(self._database, (delivery.conversation,))
        return True

    def discard(self, numbers: Sequence[int], *, dead: bool = True, quarantined: bool = True) -> int:
        """Delete dead letters and events in quarantine; return their number."""
        deleted = sum(self._delete(numbers, state) for state in [2] * dead + [3] * quarantined)
        if deleted:
            self._erasure.note()
        return deleted

    def purge_letters(self, state: int, *, before: float, after: int) -> tuple[int, int]:
        """Delete those received before ``before`` of the next 500 with numbers above ``after``; return the last number too.

        It is 0 at the end.
        """
        rows = self._database.execute(LETTER_TIMES[state], (after, LETTER_STEP)).fetchall()
        deleted = self._delete([number for number, received, _ in rows if received < before], state)
        if deleted:
            self._erasure.note()
        return rows[-1][0] if len(rows) == LETTER_STEP else 0, deleted

    def purge_old(self) -> None:
        """Delete those dead letters and events in quarantine among the next 500 that are older than their retention."""
        if self._dead_retention is None:
            return
        before = self._database.now - self._dead_retention
        if sum([self._purge_old(state, before) for state in self._looked_at]):
            self._erasure.note()

    def _purge_old(self, state: int, before: float) -> int:
        """Delete old dead letters or old events in quarantine among the next 500."""
        rows = self._database.execute(LETTER_TIMES[state], (self._looked_at[state], LETTER_STEP)).fetchall()
        self._looked_at[state] = rows[-1][0] if len(rows) == LETTER_STEP else 0
        return self._delete([number for number, _, since in rows if since < before], state)

    def _delete(self, numbers: Iterable[int], state: int) -> int:
        return self._database.executemany("DELETE FROM event WHERE number = ? AND state = ?", [(n, state) for n in numbers])

    # ---------------------------------------------------------------------------------- reads

    def counts(self) -> Counts:
        """Return the numbers of events by state."""
        self._require_in_place()
        ((waiting, done, dead, quarantined),) = self._database.query(COUNTS)
        return Counts(waiting=waiting, done=done, dead=dead, quarantined=quarantined)

    def oldest(self) -> float | None:
        """Return the time at which the oldest waiting event was received, in epoch seconds; None if none waits."""
        rows = self._database.query(OLDEST_RECEIVED)
        return cast("float", rows[0][0]) if rows else None

    def last(self) -> int:
        """Return the number of the event accepted last; 0 if there is none."""
        ((number,),) = self._read("SELECT coalesce(max(number), 0) FROM event")
        return cast("int", number)

    def letter(self, number: int) -> DeadLetter | None:
        """Return a dead letter or an event in quarantine; None if there is none with this number."""
        return next(iter(_dead_letters(self._read(LETTER, (number,)))), None)

    def dead_letters(self, wanted: EventFilter, limit: int, after: int) -> list[DeadLetter]:
        """Return at most ``limit`` dead letters with numbers above ``after``."""
        return _dead_letters(self._database.query(DEAD, _values(wanted, after, LARGEST, limit)))

    def quarantined(self, wanted: EventFilter, limit: int, after: int) -> list[DeadLetter]:
        """Return at most ``limit`` events in quarantine with numbers above ``after``."""
        return _dead_letters(self._database.query(QUARANTINED, _values(wanted, after, LARGEST, limit)))

    def replayable(self, wanted: EventFilter, *, after: int, until: int) -> list[tuple[str, int]]:
        """Return how many done events and dead letters of these numbers a replay would let wait again, by ``msgType``."""
        statement = DEAD_BY_KIND if wanted.dead_only else REPLAYABLE
        return self._database.query(statement, _values(wanted, after, until))

    def readmissible(self, wanted: EventFilter, *, after: int, keys: set[str]) -> tuple[int, list[str]]:
        """Return the ``msgType`` of each event among the next 500 in quarantine that a replay would let wait again.

        And the last number of them, 0 at the end. ``keys``: of those before them, to which it adds.
        """
        rows = self._database.query(QUARANTINED, _values(EVERY, after, LARGEST, LETTER_STEP))
        found: list[str] = []
        for letter, delivery in _readable(rows, wanted):
            if delivery.key not in keys and not self._database.query(KNOWN, (delivery.key, letter.number)):
                keys.add(delivery.key)
                found.append(delivery.msg_type)
        return rows[-1][0] if len(rows) == LETTER_STEP else 0, found

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
            quarantined=bool(quarantined),
        )
        for number, key, conversation, app_id, body, received, attempts, error, msg_type, quarantined in rows
    ]


def _readable(rows: Iterable[Any], wanted: EventFilter) -> Iterable[tuple[DeadLetter, Delivery]]:  # rows
    """Yield the events in quarantine that are wanted and can be read now, except for other content of a known event."""
    for letter in _dead_letters(rows):
        if not letter.error.startswith(OTHER_CONTENT):
            delivery = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
            if delivery.problem is None and wanted.matches(delivery):
                yield letter, delivery


def _values(wanted: EventFilter, after: int, until: int, limit: int = LARGEST) -> dict[str, Any]:  # values of placeholders
    return {
        "after": after,
        "until": until,
        "since": wanted.since,
        "dead_only": wanted.dead_only,
        "classes": None if wanted.classes is None else f",{','.join(wanted.classes)},",
        "msg_type": wanted.msg_type,
        "conversation": wanted.conversation,
        "limit": limit,
    }
