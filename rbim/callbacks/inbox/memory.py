"""An inbox in memory: for tests, and for events that may be lost with the process."""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Literal

import anyio
from attrs import define, frozen

from rbim._support.event_loops import waker
from rbim.callbacks.inbox.content import apart, is_resend
from rbim.callbacks.inbox.protocols import Claim, LeaseLost, OtherContent
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
    from rbim.dialect import Dialect

MOST_OF_BODY = 4096  # bytes of a body that is remembered with its key

__all__ = ["ConversationQueues", "DeadEvent", "MemorySink", "QueuedEvent"]


@frozen
class DeadEvent:
    """A dead letter in memory: the claim of its last attempt, and the traceback."""

    claim: Claim
    error: str


@define(eq=False)
class _WaitingDelivery:
    """A delivery that waits for capacity; ``new`` is None until it is accepted or known."""

    delivery: Delivery
    notify: Callable[[], None]
    new: bool | OtherContent | None = None


class MemorySink:
    """An inbox in memory, with at most ``capacity`` unsettled events (default: 1000); ``accept`` waits while it is full.

    It remembers the last ``remember`` keys (default: 10,000), and bodies of at most 4096 bytes: a known key with other
    content goes into quarantine. ``quarantined`` has the last ``kept`` deliveries that cannot be handled (default: 1000),
    ``dead`` as many dead letters. ``clock`` measures the pauses before retries; ``dialect`` has
    the unit of ``msgTimestamp`` in ``events``. Nothing survives the process: a receiver that must not lose deliveries
    answered with 200 needs another sink.
    """

    durable = False
    retention = 0.0
    lease = inf
    """Leases do not expire: a holder gives them back when it leaves its backlog, or ends with the process."""

    def __init__(
        self,
        *,
        capacity: int = 1000,
        remember: int = 10_000,
        kept: int = 1000,
        clock: Clock | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        for name, value in (("capacity", capacity), ("remember", remember), ("kept", kept)):
            if value < 1:
                raise InvalidRequest(f"{name}: use at least 1, not {value!r}", field=name, limit=1)
        self.quarantined: deque[Delivery] = deque(maxlen=kept)
        self.dead: deque[DeadEvent] = deque(maxlen=kept)
        self._lock = Lock()
        self._queues = ConversationQueues(capacity, remember, clock or SystemClock())
        self._waiting: deque[_WaitingDelivery] = deque()
        self._dialect = dialect

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Do nothing: all events stay."""

    @property
    def events(self) -> tuple[Event, ...]:
        """The events that wait or are being handled, in the order of acceptance."""
        with self._lock:
            entries = self._queues.entries()
        found = (entry.delivery.event_by(self._dialect) for entry in entries)
        return tuple(event for event in found if event is not None)

    def accept_now(self, delivery: Delivery, /) -> bool | OtherContent | None:
        """Store a delivery if there is capacity; return whether it is new, or None if it must wait."""
        with self._lock:
            return self._admit(delivery, first=not self._waiting)

    async def accept(self, delivery: Delivery, /) -> bool | OtherContent:
        """Store a delivery as soon as there is capacity; return False if its key is known."""
        with self._lock:
            new = self._admit(delivery, first=not self._waiting)
            if new is not None:
                return new
            call_soon, decided = waker(), anyio.Event()
            waiting = _WaitingDelivery(delivery, lambda: call_soon(decided.set))
            self._waiting.append(waiting)
        try:
            await decided.wait()
        except BaseException:
            with self._lock:
                if waiting.new is None:
                    self._waiting.remove(waiting)
            raise
        return waiting.new or False

    def backlog(self) -> AbstractAsyncContextManager[Backlog]:
        """Return a backlog for the event loop that enters it. On leaving, its claims are released."""
        return _Backlog(self._lock, self._queues, self.dead, self._admit_waiting)

    def _admit_waiting(self) -> None:
        """Store deliveries that wait for capacity, in the order of their arrival."""
        while self._waiting:
            waiting = self._waiting[0]
            waiting.new = self._admit(waiting.delivery, first=True)
            if waiting.new is None:
                return
            self._waiting.popleft()
            waiting.notify()

    def _admit(self, delivery: Delivery, *, first: bool) -> bool | OtherContent | None:
        """Store a delivery if it is new, and return whether it is; None if there is no capacity or others wait first."""
        queues = self._queues
        known = queues.keys.get(delivery.key)
        if known is not None:
            return self._other_content(delivery, known)
        if delivery.problem is not None:
            self.quarantined.append(delivery)
        elif first and queues.count < queues.capacity:
            queues.add(delivery)
        else:
            return None
        queues.remember_key(delivery.key, delivery.body)
        return True

    def _other_content(self, delivery: Delivery, known: bytes) -> OtherContent | Literal[False]:
        """Keep a delivery with a known key in quarantine if its content differs."""
        if not known or is_resend(delivery.body, known):
            return False
        other = apart(delivery, delivery.key)
        if other.key in self._queues.keys:
            return False
        self.quarantined.append(other)
        self._queues.remember_key(other.key, other.body)
        return OtherContent(key=other.key, problem=other.problem or "")


class _Backlog:
    """The waiting events of a MemorySink, for one worker."""

    def __init__(
        self, lock: Lock, queues: ConversationQueues, dead: deque[DeadEvent], admit_waiting: Callable[[], None]
    ) -> None:
        self._lock = lock
        self._queues = queues
        self._dead = dead
        self._admit_waiting = admit_waiting
        self._held: dict[str, Claim] = {}

    async def __aenter__(self) -> Self:
        self._call_soon = waker()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with self._lock:
            for claim in tuple(self._held.values()):
                self._queues.release(claim)
            self._held.clear()

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        with self._lock:
            self._queues.due()
            names = [self._queues.lease() for _ in range(min(limit, len(self._queues.ready)))]
            found = [self._queues.oldest(name, limit // len(names)) for name in names]
            self._held.update((claims[0].conversation, claims[0]) for claims in found)
        return [claim for claims in found for claim in claims]

    async def begin(self, claim: Claim, /) -> None:
        with self._lock:  # never called: events do not survive the process, so none is suspected
            self._check(claim)

    async def absolve(self, claims: Sequence[Claim], /) -> None:
        del claims

    async def done(self, claims: Sequence[Claim], /, *, more: int) -> Sequence[Claim]:
        with self._lock:
            self._check(claims[0])
            return self._settle(claims, more=more)

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        del error
        with self._lock:
            self._check(claim)
            self._queues.pause(claim, pause)
            del self._held[claim.conversation]

    async def dead_letter(self, claim: Claim, /, *, error: str, more: int) -> Sequence[Claim]:
        with self._lock:
            self._check(claim)
            self._dead.append(DeadEvent(claim, error))
            return self._settle((claim,), more=more)

    async def release(self, claim: Claim, /) -> None:
        with self._lock:
            if self._queues.is_leased(claim):
                self._queues.release(claim)
                del self._held[claim.conversation]

    async def renew(self, claims: Sequence[Claim], /) -> Sequence[Claim]:
        with self._lock:
            return [claim for claim in claims if self._queues.leased.get(claim.conversation) != claim.fence]

    async def wait(self) -> None:
        with anyio.CancelScope() as scope:
            with self._lock:
                due = self._queues.due()
                if self._queues.ready:
                    return
                notify = partial(self._call_soon, scope.cancel)
                self._queues.waiting.add(notify)
            try:
                await (anyio.sleep_forever() if due is None else self._queues.clock.sleep(due))
            finally:
                with self._lock:
                    self._queues.waiting.discard(notify)

    def _check(self, claim: Claim) -> None:
        if not self._queues.is_leased(claim):
            raise LeaseLost

    def _settle(self, claims: Sequence[Claim], *, more: int) -> Sequence[Claim]:
        for claim in claims:
            self._queues.remove(claim)
        self._admit_waiting()
        following = self._queues.oldest_or_end(claims[0].conversation, more)
        if not following:
            del self._held[claims[0].conversation]
        return following


@define(eq=False)
class QueuedEvent:
    """An event that waits or is being handled."""

    number: int
    delivery: Delivery
    failures: int = 0


class ConversationQueues:
    """The queue of each conversation, and the sets of conversations that are ready, leased or pausing."""

    def __init__(self, capacity: int, remember: int, clock: Clock) -> None:
        self.capacity = capacity
        self.remember = remember
        self.clock = clock
        self.keys: dict[str, bytes] = {}  # with the body, or nothing for a long one
        self._in_order: deque[str] = deque()  # the same keys, the oldest first
        self.count = 0
        self.ready: OrderedDict[str, None] = OrderedDict()
        self.leased: dict[str, int] = {}
        self.waiting: set[Callable[[], None]] = set()
        self._events: dict[str, deque[QueuedEvent]] = {}
        self._pausing: list[tuple[float, int, str]] = []
        self._numbers = count(1)
        self._fences = count(1)

    def entries(self) -> list[QueuedEvent]:
        """Return all events, in the order of acceptance."""
        entries = (entry for queue in self._events.values() for entry in queue)
        return sorted(entries, key=lambda entry: entry.number)

    def remember_key(self, key: str, body: bytes) -> None:
        """Remember a key; forget the oldest one beyond the limit."""
        self.keys[key] = body if len(body) <= MOST_OF_BODY else b""
        self._in_order.append(key)
        if len(self._in_order) > self.remember:
            del self.keys[self._in_order.popleft()]

    def add(self, delivery: Delivery) -> None:
        """Append an event to the queue of its conversation."""
        self.count += 1
        entry, conversation = QueuedEvent(next(self._numbers), delivery), delivery.conversation
        queue = self._events.get(conversation)
        if queue is None:
            self._events[conversation] = deque((entry,))
            self.make_ready(conversation)
        else:
            queue.append(entry)

    def make_ready(self, conversation: str, *, first: bool = False) -> None:
        """Make a conversation ready for a lease, after all others or (``first``) before them."""
        self.ready[conversation] = None
        if first:
            self.ready.move_to_end(conversation, last=False)
        self.notify()

    def notify(self) -> None:
        """Make every ``wait`` of a backlog check again."""
        while self.waiting:
            self.waiting.pop()()

    def due(self) -> float | None:
        """Make conversations ready whose pause is over; return the seconds until the next one, or None if none pauses."""
        while self._pausing:
            left = self._pausing[0][0] - self.clock.monotonic()
            if left > 0:
                return left
            self.make_ready(heappop(self._pausing)[2])
        return None

    def lease(self) -> str:
        """Lease the conversation that has been ready longest, and return its name."""
        conversation, _ = self.ready.popitem(last=False)
        self.leased[conversation] = next(self._fences)
        return conversation

    def oldest(self, conversation: str, limit: int) -> list[Claim]:
        """Return claims of the oldest events of a leased conversation."""
        fence = self.leased[conversation]
        return [
            Claim(
                number=entry.number,
                key=entry.delivery.key,
                conversation=conversation,
                app_id=entry.delivery.app_id,
                body=entry.delivery.body,
                received=entry.delivery.received,
                attempt=entry.failures + 1,
                fence=fence,
            )
            for entry in islice(self._events[conversation], limit)
        ]

    def is_leased(self, claim: Claim) -> bool:
        """Return whether a claim's lease is still valid and its event not settled."""
        queue = self._events.get(claim.conversation)
        return self.leased.get(claim.conversation) == claim.fence and queue is not None and queue[0].number <= claim.number

    def remove(self, claim: Claim) -> None:
        """Remove a settled event, the oldest one of its conversation."""
        self._events[claim.conversation].popleft()
        self.count -= 1

    def oldest_or_end(self, conversation: str, more: int) -> list[Claim]:
        """Claim the oldest ``more`` events of a leased conversation; without any, end its lease."""
        waiting = self._events[conversation]
        if waiting and more:
            return self.oldest(conversation, more)
        del self.leased[conversation]
        if waiting:
            self.make_ready(conversation)
        else:
            del self._events[conversation]
        return []

    def pause(self, claim: Claim, pause: float) -> None:
        """Count a failure, end the lease, and pause the conversation for ``pause`` seconds."""
        self._events[claim.conversation][0].failures += 1
        del self.leased[claim.conversation]
        heappush(self._pausing, (self.clock.monotonic() + pause, claim.fence, claim.conversation))
        self.notify()  # this conversation may be due before the one that a backlog waits for

    def release(self, claim: Claim) -> None:
        """End a lease."""
        del self.leased[claim.conversation]
        self.make_ready(claim.conversation, first=True)
