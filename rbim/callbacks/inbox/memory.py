"""An inbox in memory: for tests, and for events that may be lost with the process."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from math import inf
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from rbim._support.event_loops import waker
from rbim.callbacks.events import parse
from rbim.callbacks.inbox.sqlite import INBOX
from rbim.callbacks.inbox.statements import BY_KEY, DEAD, DONE, QUARANTINED
from rbim.callbacks.inbox.store import InboxStore
from rbim.callbacks.inbox.stored import StoredInbox
from rbim.clock import SystemClock, epoch_of
from rbim.errors import InvalidRequest
from rbim.storage.sqlite import CommandFailure, MemoryDatabase

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.events import Event
    from rbim.callbacks.inbox.protocols import OtherContent
    from rbim.callbacks.inbox.stored import Commits
    from rbim.clock import Clock
    from rbim.dialect import Dialect

    T = TypeVar("T")

__all__ = ["MemorySink"]

FORGET_EVERY = 500  # events accepted between two deletions of old ones

WAITING = "SELECT body FROM event WHERE state = 0 ORDER BY number"
COUNT_WAITING = "SELECT count(*) FROM event WHERE state = 0"
FORGET = tuple(
    f"""DELETE FROM event WHERE number IN
    (SELECT number FROM event WHERE state = {state} ORDER BY {order} DESC LIMIT -1 OFFSET ?)"""  # noqa: S608  # constants
    for state, order in ((DONE, "finished"), (DEAD, "number"), (QUARANTINED, "number"))
)


class MemorySink(StoredInbox):
    """An inbox in memory, with at most ``capacity`` unsettled events (default: 1000); ``accept`` waits while it is full.

    It remembers the last ``remember`` events (default: 10,000) that are handled, and as many dead letters and events in
    quarantine, and a few hundred more. ``clock`` measures the pauses before retries; ``dialect`` has the unit of
    ``msgTimestamp`` in ``events``. It need not be entered, and works in every event loop of the process. Nothing survives
    the process: a receiver that must not lose deliveries answered with 200 needs another sink.
    """

    durable = False
    retention = 0.0
    lease = inf
    """Leases do not expire: a holder gives them back when it leaves its backlog, or ends with the process."""
    poll = inf

    def __init__(
        self,
        *,
        capacity: int = 1000,
        remember: int = 10_000,
        clock: Clock | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        for name, value in (("capacity", capacity), ("remember", remember)):
            if value < 1:
                raise InvalidRequest(f"{name}: use at least 1, not {value!r}", field=name, limit=1)
        self.clock = clock or SystemClock()
        self._capacity = self._room = capacity  # so much room there is at least
        self._remember, self._accepted = remember, 0
        self._dialect = dialect
        self._database = MemoryDatabase(INBOX, clock=epoch_of(self.clock))
        self._store = InboxStore(self._database, retention=inf, lease=inf, dead_retention=None)
        self._transactions = _Transactions(self._database, after=self._admit_waiting)
        self._waiting: deque[tuple[Delivery, Future[bool | OtherContent]]] = deque()  # for room
        self._lock = RLock()  # of what waits, and of the room

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Do nothing: all events stay."""

    @property
    def _commits(self) -> Commits:
        return self._transactions

    def _open_backlog(self) -> AbstractAsyncContextManager[Commits]:
        return nullcontext(self._transactions)

    @property
    def events(self) -> tuple[Event, ...]:
        """The events that wait or are being handled, in the order of acceptance."""
        return tuple(parse(body, dialect=self._dialect) for (body,) in self._database.query(WAITING))

    async def accept(self, delivery: Delivery, /) -> bool | OtherContent:
        """Store a delivery as soon as there is capacity; return False if its key is known."""
        with self._lock:
            new = self._accept(delivery, room=not self._waiting)
            if new is not None:
                return new
            call_soon, decided = waker(), anyio.Event()
            accepted: Future[bool | OtherContent] = Future()
            accepted.add_done_callback(lambda _: call_soon(decided.set))
            self._waiting.append((delivery, accepted))
        try:
            await decided.wait()
        except BaseException:
            with self._lock:
                if not accepted.done():
                    self._waiting.remove((delivery, accepted))
            raise
        return accepted.result()

    def _admit_waiting(self) -> None:
        """Store deliveries that wait for capacity, in the order of their arrival."""
        with self._lock:
            while self._waiting:
                delivery, accepted = self._waiting[0]
                new = self._accept(delivery, room=True)
                if new is None:
                    return
                self._waiting.popleft()
                accepted.set_result(new)

    def _accept(self, delivery: Delivery, *, room: bool) -> bool | OtherContent | None:
        """Store a delivery, and return whether it is new; None if it must wait for room."""
        if room and self._room < 1:
            ((waiting,),) = self._database.query(COUNT_WAITING)
            self._room = self._capacity - waiting
        if delivery.problem is None and not (room and self._room > 0):  # noqa: SIM102  # in the order of the costs
            if not self._database.query(BY_KEY, (delivery.key,)):
                return None
        (new,) = self._database.commit([partial(self._store.accept, delivery)])
        if new is True:
            self._room -= delivery.problem is None
            self._accepted += 1
            if self._accepted % FORGET_EVERY == 0:
                self._database.commit([partial(self._database.execute, forget, (self._remember,)) for forget in FORGET])
        accepted: bool | OtherContent = new
        return accepted


class _Transactions:
    """Transactions that take microseconds: each is run where it is asked for, in any event loop and thread."""

    def __init__(self, database: MemoryDatabase, *, after: Callable[[], object]) -> None:
        self._database = database
        self._after = after

    async def run(self, command: Callable[[], T], *, undo: Any = None) -> T:
        del undo  # nothing can be cancelled between the transaction and its result
        await checkpoint()
        (result,) = self._database.commit([command])
        self._after()
        if isinstance(result, CommandFailure):
            raise result.error
        value: T = result
        return value

    async def query(self, reads: Callable[[], T]) -> T:
        await checkpoint()
        return reads()
