"""The statements that serve people: numbers of events, dead letters and quarantine, replays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.content import OTHER_CONTENT
from rbim.callbacks.inbox.protocols import Counts, DeadLetter
from rbim.callbacks.inbox.tables import kind_of, open_conversation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from rbim.callbacks.inbox.erasure import Erasure
    from rbim.storage.sqlite import Database

__all__ = ["ArchiveStore", "ReplayFilter"]

LETTER_STEP = 500
REPLAY_STEP = 1000
NO_END = 2**63 - 1

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
            if letter.error.startswith(OTHER_CONTENT):
                continue
            delivery = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
            name, msg_type = kind_of(delivery)
            if (
                delivery.problem is not None
                or letter.received.timestamp() < wanted.since
                or (wanted.classes is not None and name not in wanted.classes)
                or (wanted.msg_type is not None and msg_type != wanted.msg_type)
            ):
                continue
            values = (delivery.key, delivery.conversation, name, msg_type, letter.number, delivery.key, letter.number)
            if self._database.execute(READMIT, values).rowcount:
                open_conversation(self._database, delivery.conversation)
                readmitted += 1
            else:
                self._database.execute("DELETE FROM event WHERE number = ?", (letter.number,))
                self._erasure.note()
        return readmitted

    def requeue(self, numbers: Sequence[int]) -> int:
        """Let dead letters wait again, and events in quarantine that can be read now; return their number."""
        return sum(self._requeue(number) for number in numbers)

    def _requeue(self, number: int) -> bool:
        letters = _dead_letters(self._database.execute(LETTER, (number,)).fetchall())
        if not letters:
            return False
        (letter,) = letters
        if self._database.execute(REQUEUE, (number,)).rowcount:
            open_conversation(self._database, letter.conversation)
            return True
        delivery = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
        if delivery.problem is not None:
            return False
        name, msg_type = kind_of(delivery)
        values = (delivery.key, delivery.conversation, name, msg_type, number, delivery.key, number)
        if not self._database.execute(READMIT, values).rowcount:  # the key is known: an event of its own
            self._database.execute(ADMIT, (delivery.conversation, name, msg_type, number))
        open_conversation(self._database, delivery.conversation)
        return True

    def discard(self, numbers: Sequence[int]) -> int:
        """Delete dead letters and events in quarantine; return their number."""
        deleted = self._delete(numbers)
        if deleted:
            self._erasure.note()
        return deleted

    def purge_letters(self, state: int, *, before: float, after: int) -> tuple[int, int]:
        """Delete those received before ``before`` of the next 500 with numbers above ``after``; return the last number too.

        It is 0 at the end.
        """
        rows = self._database.execute(LETTER_TIMES[state], (after, LETTER_STEP)).fetchall()
        deleted = self.discard([number for number, received, _ in rows if received < before])
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
        return self._delete([number for number, _, since in rows if since < before])

    def _delete(self, numbers: Iterable[int]) -> int:
        return self._database.executemany("DELETE FROM event WHERE number = ? AND state IN (2, 3)", [(n,) for n in numbers])

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
