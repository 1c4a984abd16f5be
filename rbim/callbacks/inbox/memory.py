"""An inbox in memory: for tests, and for what may be lost with the process."""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from threading import Lock
from typing import TYPE_CHECKING

import anyio
from attrs import define, frozen

from rbim._support.event_loops import waker
from rbim.callbacks.inbox.protocols import Claim, LeaseLost
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.events.types import Event
    from rbim.callbacks.inbox.protocols import Backlog
    from rbim.clock import Clock

__all__ = ["ConversationQueues", "DeadEvent", "MemorySink", "QueuedEvent"]


@frozen
class DeadEvent:
    """An event after its last attempt, and the traceback of that."""

    claim: Claim
    error: str


@define(eq=False)
class _WaitingDelivery:
    """A delivery that waits for room; ``new`` is None until that is decided."""

    delivery: Delivery
    wake: Callable[[], None]
    new: bool | None = None


class MemorySink:
    """Keeps at most ``capacity`` events that wait or are being handled; who brings another waits for room.

    It knows the last ``remember`` keys. ``quarantined`` has the last ``kept`` deliveries that cannot be handled, ``dead`` as
    many dead letters. ``clock`` measures the pauses before retries. Nothing survives the process: a receiver that must not
    lose what it answered 200 needs another sink.
    """

    durable = False
    retention = 0.0
    lease = inf
    """Leases do not run out: who had one and is gone has left its backlog, or ended with the process."""

    def __init__(
        self, *, capacity: int = 1000, remember: int = 10_000, kept: int = 1000, clock: Clock | None = None
    ) -> None:
        for name, value in (("capacity", capacity), ("remember", remember), ("kept", kept)):
            if value < 1:
                raise InvalidRequest(f"{name}: at least 1, not {value!r}", field=name, limit=1)
        self.quarantined: deque[Delivery] = deque(maxlen=kept)
        self.dead: deque[DeadEvent] = deque(maxlen=kept)
        self._lock = Lock()
        self._lanes = ConversationQueues(capacity, remember, clock or SystemClock())
        self._entrants: deque[_WaitingDelivery] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Keep everything as it is."""

    @property
    def events(self) -> tuple[Event, ...]:
        """The events that wait or are being handled, in the order in which they were accepted."""
        with self._lock:
            entries = self._lanes.entries()
        return tuple(entry.delivery.event for entry in entries if entry.delivery.event is not None)

    def accept_now(self, delivery: Delivery, /) -> bool | None:
        """Take a delivery if there is room, and say whether it is new; None where it has to wait."""
        with self._lock:
            return self._admit(delivery, waited=not self._entrants)

    async def accept(self, delivery: Delivery, /) -> bool:
        """Take a delivery as soon as there is room. Returns False where its key is known."""
        with self._lock:
            new = self._admit(delivery, waited=not self._entrants)
            if new is not None:
                return new
            call_soon, decided = waker(), anyio.Event()
            entrant = _WaitingDelivery(delivery, lambda: call_soon(decided.set))
            self._entrants.append(entrant)
        try:
            await decided.wait()
        except BaseException:
            with self._lock:
                if entrant.new is None:
                    self._entrants.remove(entrant)
            raise
        return bool(entrant.new)

    def backlog(self) -> AbstractAsyncContextManager[Backlog]:
        """Return a backlog for the event loop that enters it. What it still holds when it is left goes back."""
        return _Backlog(self._lock, self._lanes, self.dead, self._let_in)

    def _let_in(self) -> None:
        """Take what waits for room, in the order in which it came."""
        while self._entrants:
            entrant = self._entrants[0]
            entrant.new = self._admit(entrant.delivery, waited=True)
            if entrant.new is None:
                return
            self._entrants.popleft()
            entrant.wake()

    def _admit(self, delivery: Delivery, *, waited: bool) -> bool | None:
        """Return whether a delivery is new, and take it if so; None where there is no room for it."""
        lanes = self._lanes
        if delivery.key in lanes.keys:
            return False
        if delivery.problem is not None:
            self.quarantined.append(delivery)
        elif waited and lanes.count < lanes.capacity:
            lanes.add(delivery)
        else:
            return None
        lanes.know(delivery.key)
        return True


class _Backlog:
    """The events of a MemorySink, for one worker."""

    def __init__(self, lock: Lock, lanes: ConversationQueues, dead: deque[DeadEvent], let_in: Callable[[], None]) -> None:
        self._lock = lock
        self._lanes = lanes
        self._dead = dead
        self._let_in = let_in
        self._held: dict[str, Claim] = {}

    async def __aenter__(self) -> Self:
        self._call_soon = waker()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with self._lock:
            for claim in tuple(self._held.values()):
                self._lanes.give_back(claim)
            self._held.clear()

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        with self._lock:
            self._lanes.due()
            claims = [self._lanes.lease() for _ in range(min(limit, len(self._lanes.ready)))]
            self._held.update((claim.conversation, claim) for claim in claims)
        return claims

    async def done(self, claim: Claim, /, *, more: bool) -> Claim | None:
        with self._lock:
            self._check(claim)
            return self._settle(claim, more=more)

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        del error
        with self._lock:
            self._check(claim)
            self._lanes.rest(claim, pause)
            del self._held[claim.conversation]

    async def bury(self, claim: Claim, /, *, error: str, more: bool) -> Claim | None:
        with self._lock:
            self._check(claim)
            self._dead.append(DeadEvent(claim, error))
            return self._settle(claim, more=more)

    async def release(self, claim: Claim, /) -> None:
        with self._lock:
            if self._lanes.holds(claim):
                self._lanes.give_back(claim)
                del self._held[claim.conversation]

    async def renew(self, claims: Sequence[Claim], /) -> None:
        del claims

    async def wait(self) -> None:
        with anyio.CancelScope() as scope:
            with self._lock:
                due = self._lanes.due()
                if self._lanes.ready:
                    return
                wake = partial(self._call_soon, scope.cancel)
                self._lanes.waiting.add(wake)
            try:
                await (anyio.sleep_forever() if due is None else self._lanes.clock.sleep(due))
            finally:
                with self._lock:
                    self._lanes.waiting.discard(wake)

    def _check(self, claim: Claim) -> None:
        if not self._lanes.holds(claim):
            raise LeaseLost

    def _settle(self, claim: Claim, *, more: bool) -> Claim | None:
        self._lanes.settle(claim)
        self._let_in()
        following = self._lanes.following(claim, more=more)
        if following is None:
            del self._held[claim.conversation]
        else:
            self._held[claim.conversation] = following
        return following


@define(eq=False)
class QueuedEvent:
    """An event that waits or is being handled."""

    number: int
    delivery: Delivery
    attempt: int = 0


class ConversationQueues:
    """The events of each conversation, in order, and which conversations are ready, leased or at rest."""

    def __init__(self, capacity: int, remember: int, clock: Clock) -> None:
        self.capacity = capacity
        self.remember = remember
        self.clock = clock
        self.keys: set[str] = set()
        self._in_order: deque[str] = deque()  # the same, the oldest first
        self.count = 0
        self.ready: OrderedDict[str, None] = OrderedDict()
        self.leased: dict[str, int] = {}
        self.waiting: set[Callable[[], None]] = set()
        self._events: dict[str, deque[QueuedEvent]] = {}
        self._resting: list[tuple[float, int, str]] = []
        self._numbers = count(1)
        self._fences = count(1)

    def entries(self) -> list[QueuedEvent]:
        """Return every event, in the order of acceptance."""
        every = (entry for lane in self._events.values() for entry in lane)
        return sorted(every, key=lambda entry: entry.number)

    def know(self, key: str) -> None:
        """Remember a key, and forget the oldest."""
        self.keys.add(key)
        self._in_order.append(key)
        if len(self._in_order) > self.remember:
            self.keys.remove(self._in_order.popleft())

    def add(self, delivery: Delivery) -> None:
        """Take an event."""
        self.count += 1
        entry, conversation = QueuedEvent(next(self._numbers), delivery), delivery.conversation
        lane = self._events.get(conversation)
        if lane is None:
            self._events[conversation] = deque((entry,))
            self.make_ready(conversation)
        else:
            lane.append(entry)

    def make_ready(self, conversation: str, *, first: bool = False) -> None:
        """Let a conversation be leased, after all others or before them."""
        self.ready[conversation] = None
        if first:
            self.ready.move_to_end(conversation, last=False)
        self.wake()

    def wake(self) -> None:
        """Wake everybody who waits."""
        while self.waiting:
            self.waiting.pop()()

    def due(self) -> float | None:
        """Make ready what has rested enough, and return the seconds until the next is due; None where nothing rests."""
        while self._resting:
            left = self._resting[0][0] - self.clock.monotonic()
            if left > 0:
                return left
            self.make_ready(heappop(self._resting)[2])
        return None

    def lease(self) -> Claim:
        """Lease the conversation that has been ready for longest, and count an attempt of its first event."""
        conversation, _ = self.ready.popitem(last=False)
        fence = self.leased[conversation] = next(self._fences)
        return self.first(conversation, fence)

    def first(self, conversation: str, fence: int) -> Claim:
        """Claim the first event of a leased conversation."""
        entry = self._events[conversation][0]
        entry.attempt += 1
        return Claim(
            number=entry.number,
            key=entry.delivery.key,
            conversation=conversation,
            app_id=entry.delivery.app_id,
            body=entry.delivery.body,
            received=entry.delivery.received,
            attempt=entry.attempt,
            fence=fence,
        )

    def holds(self, claim: Claim) -> bool:
        """Return whether a claim's lease still holds."""
        lane = self._events.get(claim.conversation)
        return self.leased.get(claim.conversation) == claim.fence and lane is not None and lane[0].number == claim.number

    def settle(self, claim: Claim) -> None:
        """Take an event away for good."""
        self._events[claim.conversation].popleft()
        self.count -= 1

    def following(self, claim: Claim, *, more: bool) -> Claim | None:
        """Claim the next event of a conversation, or end its lease."""
        conversation = claim.conversation
        if self._events[conversation] and more:
            return self.first(conversation, claim.fence)
        del self.leased[conversation]
        if self._events[conversation]:
            self.make_ready(conversation)
        else:
            del self._events[conversation]
        return None

    def rest(self, claim: Claim, pause: float) -> None:
        """End a lease, and let the conversation rest."""
        del self.leased[claim.conversation]
        heappush(self._resting, (self.clock.monotonic() + pause, claim.fence, claim.conversation))
        self.wake()  # who waits for what is due next may have to look again

    def give_back(self, claim: Claim) -> None:
        """End a lease as if it had not been."""
        del self.leased[claim.conversation]
        self._events[claim.conversation][0].attempt -= 1
        self.make_ready(claim.conversation, first=True)
