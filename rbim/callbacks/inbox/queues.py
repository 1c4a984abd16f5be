"""The waiting events of an inbox in memory: a queue for each conversation, and which conversations can be claimed."""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING

from attrs import define

from rbim.callbacks.inbox.protocols import Claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.callbacks.delivery import Delivery
    from rbim.clock import Clock

MOST_OF_BODY = 4096  # bytes of a body that is remembered with its key

__all__ = ["ConversationQueues", "QueuedEvent"]


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

    def forget_key(self, key: str) -> None:
        """Forget a key before its time: a resend is a new event."""
        if self.keys.pop(key, None) is not None:
            self._in_order.remove(key)

    def numbered(self, delivery: Delivery) -> QueuedEvent:
        """Return an event with the next number, in no queue."""
        return QueuedEvent(next(self._numbers), delivery)

    def add(self, delivery: Delivery) -> None:
        """Append an event to the queue of its conversation."""
        self.count += 1
        entry, conversation = self.numbered(delivery), delivery.conversation
        queue = self._events.get(conversation)
        if queue is None:
            self._events[conversation] = deque((entry,))
            self.make_ready(conversation)
        else:
            queue.append(entry)

    def put_back(self, number: int, delivery: Delivery) -> None:
        """Put an event into the queue of its conversation, in the order of the numbers."""
        self.count += 1
        entry, conversation = QueuedEvent(number, delivery), delivery.conversation
        queue = self._events.get(conversation)
        if queue is None:
            self._events[conversation] = deque((entry,))
            self.make_ready(conversation)
        else:
            place = len(queue)
            while place and queue[place - 1].number > number:
                place -= 1
            queue.insert(place, entry)

    def make_ready(self, conversation: str, *, first: bool = False) -> None:
        """Make a conversation ready for a lease, after all others or (``first``) before them."""
        self.ready[conversation] = None
        if first:
            self.ready.move_to_end(conversation, last=False)
        if self.waiting:
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
        return self.leased.get(claim.conversation) == claim.fence and self._entry(claim) is not None

    def _entry(self, claim: Claim) -> QueuedEvent | None:
        waiting = self._events.get(claim.conversation, ())
        return next((entry for entry in waiting if entry.number == claim.number), None)

    def remove(self, claim: Claim) -> None:
        """Remove a settled event."""
        queue = self._events[claim.conversation]
        queue.remove(next(entry for entry in queue if entry.number == claim.number))
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
        entry = self._entry(claim)
        assert entry is not None  # noqa: S101  # it is leased
        entry.failures += 1
        del self.leased[claim.conversation]
        heappush(self._pausing, (self.clock.monotonic() + pause, claim.fence, claim.conversation))
        self.notify()  # this conversation may be due before the one that a backlog waits for

    def release(self, claim: Claim) -> None:
        """End a lease."""
        del self.leased[claim.conversation]
        self.make_ready(claim.conversation, first=True)
