"""The SQLite file of an inbox: its tables, and every statement that takes events, gives them out and counts them."""

from __future__ import annotations

from datetime import UTC, datetime
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

INBOX = FileKind(name="an inbox", mark=b"rbim", schema=SCHEMA, harmless=(LeaseLost,))
"""The file of a :class:`~rbim.callbacks.SqliteInbox`."""

SPOOL = evolve(INBOX, name="a spool", mark=b"rbsp")
"""The file of a spool: an inbox that is no inbox to anybody else."""

SLACK = 0.001  # seconds by which something may be early: a time that was a float and a datetime is rounded
MARGIN = 3600.0  # seconds that a key is kept beyond the retention: a resend may have been signed by a clock that is ahead
PURGE_EVERY = 60.0
PURGE_STEP = 500
REPLAY_STEP = 1000
NO_END = 2**63 - 1

ACCEPT = """INSERT INTO event (key, conversation, app_id, class, msg_type, received, state, error, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"""
OPEN_LANE = "INSERT INTO lane (conversation, ready, fence) VALUES (?, ?, 0) ON CONFLICT (conversation) DO NOTHING"
READY = "SELECT conversation FROM lane WHERE ready <= ? ORDER BY ready LIMIT ?"
NEXT_READY = "SELECT ready, fence FROM lane ORDER BY ready LIMIT ?"
HEAD = """SELECT seq, key, app_id, body, received, attempts, replays FROM event
    WHERE conversation = ? AND state = 0 ORDER BY seq LIMIT 1"""
FENCED = "UPDATE lane SET ready = ?, fence = ? WHERE conversation = ? AND fence = ?"
LEAVE = """UPDATE lane SET ready = ?, fence = 0 WHERE conversation = ? AND fence = ?
    AND EXISTS (SELECT 1 FROM event WHERE seq = ? AND state = 0)"""
SETTLE = "UPDATE event SET state = ?, finished = ?, error = ? WHERE seq = ? AND state = 0"
PURGE = """DELETE FROM event WHERE seq IN (
    SELECT seq FROM event WHERE state = 1 AND finished < ? ORDER BY finished LIMIT ?)"""
REPLAYED = """seq > :after AND seq <= :until AND received >= :since AND (state = 2 OR state = 1 AND NOT :dead_only)
    AND (:classes IS NULL OR instr(:classes, ',' || class || ',')) AND (:msg_type IS NULL OR msg_type = :msg_type)"""
REPLAY_LANES = f"""INSERT INTO lane (conversation, ready, fence)
    SELECT DISTINCT conversation, :now, 0 FROM event WHERE {REPLAYED} ON CONFLICT (conversation) DO NOTHING"""  # noqa: S608  # a constant
REPLAY = f"""UPDATE event SET state = 0, attempts = 0, replays = replays + (state = 1), finished = NULL, error = NULL
    WHERE {REPLAYED}"""  # noqa: S608  # a constant
READMIT = """UPDATE event SET key = ?, conversation = ?, class = ?, msg_type = ?, state = 0, error = NULL WHERE seq = ?
    AND NOT EXISTS (SELECT 1 FROM event WHERE key = ? AND seq <> ?)"""
COUNTS = """SELECT (SELECT count(*) FROM event WHERE state = 0), (SELECT count(*) FROM event WHERE state = 1),
    (SELECT count(*) FROM event WHERE state = 2), (SELECT count(*) FROM event WHERE state = 3)"""
# the index of those that wait is gone through, and never the table, which is full of what is done
OLDEST = """SELECT received FROM event WHERE seq =
    (SELECT min(seq) FROM event INDEXED BY event_waiting WHERE state = 0)"""
DEAD = """SELECT seq, key, conversation, app_id, body, received, attempts, error, msg_type FROM event
    WHERE state = 2 AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"""
QUARANTINED = DEAD.replace("state = 2", "state = 3")


@frozen(kw_only=True)
class Counts:
    """How many events of an inbox wait, are done (and kept to know them again), are dead, and are in quarantine."""

    waiting: int
    done: int
    dead: int
    quarantined: int


@frozen(kw_only=True)
class DeadLetter:
    """A dead event or one in quarantine; ``error`` says why. ``number`` is its place in the order of acceptance."""

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
    """Which events are to be handled again: ``since`` in epoch seconds, names of classes and a ``msgType`` (None: any)."""

    since: float
    classes: Collection[str] | None
    msg_type: str | None
    dead_only: bool


class Availability(NamedTuple):
    """Whether a conversation can be claimed, and otherwise in how many seconds the next one can, as far as is known."""

    ready: bool
    due: float | None


class InboxStore:
    """What all threads of a process use of an inbox, between the first ``open`` and the last ``close``.

    ``accept`` and the methods after it, as far as ``replay``, are commands, which only :meth:`commit` may run.
    """

    def __init__(self, path: Path, *, retention: float, lease: float, clock: Clock, kind: FileKind = INBOX) -> None:
        self._retention = retention
        self._lease = lease
        self._database = Database(path, kind, clock=lambda: clock.now().timestamp())
        self._purged: float | None = None

    def open(self) -> None:
        """Open the file, make it if need be. Raises InvalidRequest where it is no inbox, or one of a newer rbim."""
        self._database.open()

    def close(self) -> None:
        """Undo one ``open``."""
        self._database.close()

    def listen(self, call: Callable[[], object]) -> None:
        """Have a function called, in any thread, after each transaction that changes what can be claimed, or when."""
        self._database.listen(call)

    def unlisten(self, call: Callable[[], object]) -> None:
        """Undo a ``listen``."""
        self._database.unlisten(call)

    def commit(self, commands: Sequence[Callable[[], Any]], *, hurried: Callable[[], bool] = bool) -> list[Any]:
        """Carry out commands in one transaction, as :meth:`Database.commit` does."""
        return self._database.commit(commands, last=self._purge, hurried=hurried)

    def _purge(self) -> None:
        """Forget a few of the events that were done long ago; the rest with the next transactions."""
        if self._purged is not None and 0 <= self._database.now - self._purged < PURGE_EVERY:
            return
        purged = self._database.execute(PURGE, (self._database.now - self._retention - MARGIN, PURGE_STEP)).rowcount
        self._purged = self._database.now if purged < PURGE_STEP else None

    # ------------------------------------------------------------------------------- commands

    def accept(self, delivery: Delivery) -> bool:
        """Take a delivery; False where its key is known."""
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
            self._open_lane(delivery.conversation)
        return True

    def _open_lane(self, conversation: str) -> None:
        if self._database.execute(OPEN_LANE, (conversation, self._database.now)).rowcount:
            self._database.news = True

    def claim(self, limit: int) -> list[Claim]:
        """Lease at most so many conversations, those first that have been ready for longest."""
        lanes = self._database.execute(READY, (self._database.now + SLACK, limit)).fetchall()
        if not lanes:
            return []
        self._database.execute("UPDATE meta SET fence = fence + ?", (len(lanes),))
        ((last,),) = self._database.execute("SELECT fence FROM meta")
        found = (self._head(lane, fence) for fence, (lane,) in enumerate(lanes, last - len(lanes) + 1))
        return [claim for claim in found if claim is not None]

    def _head(self, conversation: str, fence: int) -> Claim | None:
        """Return the oldest event that waits in a conversation, leased; without one, close its lane."""
        row = self._database.execute(HEAD, (conversation,)).fetchone()
        if row is None:
            self._database.execute("DELETE FROM lane WHERE conversation = ?", (conversation,))
            return None
        number, key, app_id, body, received, attempts, replays = row
        self._database.execute("UPDATE event SET attempts = attempts + 1 WHERE seq = ?", (number,))
        lease = (self._database.now + self._lease, fence, conversation)
        self._database.execute("UPDATE lane SET ready = ?, fence = ? WHERE conversation = ?", lease)
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
        """Settle an event that was handled; with ``more``, claim the next one of its conversation."""
        return self._settle(claim, (1, self._database.now, None), more=more)

    def bury(self, claim: Claim, *, error: str, more: bool) -> Claim | None:
        """Settle an event that nobody can handle."""
        return self._settle(claim, (2, self._database.now, _storable(error)), more=more)

    def _settle(self, claim: Claim, fate: tuple[int, float, str | None], *, more: bool) -> Claim | None:
        held = self._database.execute("SELECT fence FROM lane WHERE conversation = ?", (claim.conversation,)).fetchone()
        if held != (claim.fence,) or not self._database.execute(SETTLE, (*fate, claim.number)).rowcount:
            raise LeaseLost
        if more:
            return self._head(claim.conversation, claim.fence)
        if self._database.execute(HEAD, (claim.conversation,)).fetchone() is None:
            self._database.execute("DELETE FROM lane WHERE conversation = ?", (claim.conversation,))
        else:
            self._database.execute(FENCED, (self._database.now, 0, claim.conversation, claim.fence))
            self._database.news = True
        return None

    def retry(self, claim: Claim, *, error: str, pause: float) -> None:
        """Let the conversation rest."""
        if not self._leave(claim, self._database.now + pause):
            raise LeaseLost
        self._database.execute("UPDATE event SET error = ? WHERE seq = ?", (_storable(error), claim.number))

    def release(self, claim: Claim) -> None:
        """Take an event back unhandled, unless the lease is lost."""
        if self._leave(claim, self._database.now):
            self._database.execute("UPDATE event SET attempts = max(attempts - 1, 0) WHERE seq = ?", (claim.number,))

    def renew(self, claims: Sequence[Claim]) -> None:
        """Let leases last for their full time again, those that are not lost."""
        for claim in claims:
            self._database.execute(FENCED, (self._database.now + self._lease, claim.fence, claim.conversation, claim.fence))

    def _leave(self, claim: Claim, ready: float) -> bool:
        """End a lease with its event unsettled; False where it was lost."""
        left = self._database.execute(LEAVE, (ready, claim.conversation, claim.fence, claim.number)).rowcount > 0
        self._database.news |= left
        return left

    def replay(self, wish: ReplayFilter, *, after: int, last: int) -> tuple[int, int]:
        """Let some of the events from ``after`` to ``last`` wait again; return up to where, and how many."""
        span = self._database.execute(
            "SELECT max(seq) FROM (SELECT seq FROM event WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?)",
            (after, last, REPLAY_STEP),
        )
        until: int | None = span.fetchone()[0]
        if until is None:
            return last, 0
        count = 0 if wish.dead_only else self._readmit(wish, after, until)
        wanted = {
            "after": after,
            "until": until,
            "since": wish.since,
            "dead_only": wish.dead_only,
            "classes": None if wish.classes is None else f",{','.join(wish.classes)},",
            "msg_type": wish.msg_type,
            "now": self._database.now,
        }
        self._database.news |= self._database.execute(REPLAY_LANES, wanted).rowcount > 0
        return until, count + self._database.execute(REPLAY, wanted).rowcount

    def _readmit(self, wish: ReplayFilter, after: int, until: int) -> int:
        """Let the events in quarantine wait that can be read by now; one that has been accepted again since is dropped."""
        readmitted = 0
        rows = self._database.execute(QUARANTINED, (after, until, REPLAY_STEP)).fetchall()
        for letter in _letters(rows):
            anew = delivery_of(letter.body, app_id=letter.app_id, received=letter.received)
            name, msg_type = _kind(anew)
            if (
                anew.problem is not None
                or letter.received.timestamp() < wish.since
                or (wish.classes is not None and name not in wish.classes)
                or (wish.msg_type is not None and msg_type != wish.msg_type)
            ):
                continue
            values = (anew.key, anew.conversation, name, msg_type, letter.number, anew.key, letter.number)
            if self._database.execute(READMIT, values).rowcount:
                self._open_lane(anew.conversation)
                readmitted += 1
            else:
                self._database.execute("DELETE FROM event WHERE seq = ?", (letter.number,))
        return readmitted

    # ---------------------------------------------------------------------------------- reads

    def look(self, held: Collection[int] = ()) -> Availability:
        """Say whether a conversation can be claimed; if none, when the next can, but for those leased with these fences."""
        rows = self._read(NEXT_READY, (len(held) + 1,))
        now = self._database.clock()
        if rows and rows[0][0] <= now + SLACK:
            return Availability(ready=True, due=0.0)
        return Availability(ready=False, due=next((ready - now for ready, fence in rows if fence not in held), None))

    def counts(self) -> Counts:
        """Count the events."""
        ((waiting, done, dead, quarantined),) = self._read(COUNTS)
        return Counts(waiting=waiting, done=done, dead=dead, quarantined=quarantined)

    def oldest(self) -> float | None:
        """Return when the first of the events that wait was received, in epoch seconds; None where none waits."""
        rows = self._read(OLDEST)
        return cast("float", rows[0][0]) if rows else None

    def conversations(self, limit: int) -> set[str]:
        """Return at most so many of the conversations in which something waits."""
        return {conversation for (conversation,) in self._read("SELECT conversation FROM lane LIMIT ?", (limit,))}

    def last(self) -> int:
        """Return the number of the event that was accepted last; 0 without one."""
        ((number,),) = self._read("SELECT coalesce(max(seq), 0) FROM event")
        return cast("int", number)

    def dead_letters(self, limit: int, after: int) -> list[DeadLetter]:
        """Return dead events with a number above ``after``."""
        return _letters(self._read(DEAD, (after, NO_END, limit)))

    def quarantined(self, limit: int, after: int) -> list[DeadLetter]:
        """Return events in quarantine with a number above ``after``."""
        return _letters(self._read(QUARANTINED, (after, NO_END, limit)))

    def _read(self, statement: str, values: Any = ()) -> list[Any]:  # what fills the placeholders; rows
        return self._database.read(lambda: self._database.execute(statement, values).fetchall())


def _letters(rows: Iterable[Any]) -> list[DeadLetter]:  # rows
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
    """Return a text without halves of surrogate pairs, which a traceback may quote."""
    return text.encode("utf-8", "backslashreplace").decode()
