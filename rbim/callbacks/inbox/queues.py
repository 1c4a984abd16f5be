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
    """An event with its number."""

    number: int
    delivery: Delivery


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
        # numbers, and no object for each event: all that stay make the work of the garbage collector longer
        self._queues: dict[str, deque[int]] = {}
        self._deliveries: dict[int, Delivery] = {}  # by number
        self._failures: dict[int, int] = {}  # the numbers of events that have failed
        self._pausing: list[tuple[float, int, str]] = []
        self._numbers = count(1)
        self._fences = count(1)

    def entries(self) -> list[QueuedEvent]:
        """Return all events that wait or are being handled, in the order of acceptance."""
        return [QueuedEvent(number, self._deliveries[number]) for number in sorted(self._deliveries)]

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
        number, conversation = next(self._numbers), delivery.conversation
        self.count += 1
        self._deliveries[number] = delivery
        queue = self._queues.get(conversation)
        if queue is None:
            self._queues[conversation] = deque((number,))
            self.make_ready(conversation)
        else:
            queue.append(number)

    def put_back(self, number: int, delivery: Delivery) -> None:
        """Put an event into the queue of its conversation, in the order of the numbers."""
        self.count += 1
        self._deliveries[number] = delivery
        queue = self._queues.get(delivery.conversation)
        if queue is None:
            self._queues[delivery.conversation] = deque((number,))
            self.make_ready(delivery.conversation)
        else:
            place = len(queue)
            while place and queue[place - 1] > number:
                place -= 1
            queue.insert(place, number)

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
        numbers = islice(self._queues[conversation], limit)
        return [
            Claim(
                number=number,
                key=delivery.key,
                conversation=conversation,
                app_id=delivery.app_id,
                body=delivery.body,
                received=delivery.received,
                attempt=self._failures.get(number, 0) + 1,
                fence=fence,
            )
            for number, delivery in ((number, self._deliveries[number]) for number in numbers)
        ]

    def is_leased(self, claim: Claim) -> bool:
        """Return whether a claim's lease is still valid and its event not settled."""
        return self.leased.get(claim.conversation) == claim.fence and claim.number in self._deliveries

    def remove(self, claim: Claim) -> None:
        """Remove a settled event."""
        self._queues[claim.conversation].remove(claim.number)
        del self._deliveries[claim.number]
        self._failures.pop(claim.number, None)
        self.count -= 1

    def oldest_or_end(self, conversation: str, more: int) -> list[Claim]:
        """Claim the oldest ``more`` events of a leased conversation; without any, end its lease."""
        waiting = self._queues[conversation]
        if waiting and more:
            return self.oldest(conversation, more)
        del self.leased[conversation]
        if waiting:
            self.make_ready(conversation)
        else:
            del self._queues[conversation]
        return []

    def pause(self, claim: Claim, pause: float) -> None:
        """Count a failure, end the lease, and pause the conversation for ``pause`` seconds."""
        self._failures[claim.number] = self._failures.get(claim.number, 0) + 1
        del self.leased[claim.conversation]
        heappush(self._pausing, (self.clock.monotonic() + pause, claim.fence, claim.conversation))
        self.notify()  # this conversation may be due before the one that a backlog waits for

    def release(self, claim: Claim) -> None:
        """End a lease."""
        del self.leased[claim.conversation]
        self.make_ready(claim.conversation, first=True)
