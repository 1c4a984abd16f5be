"""The queues of waiting deliveries: one per conversation, in order.

They use no clock: the caller passes the times.
"""

from __future__ import annotations

import heapq
from bisect import insort
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rbim.emulator.faults import Picked

__all__ = ["DeliveryQueues", "QueuedDelivery"]

_PLACE = attrgetter("place")
_BETWEEN = 0.5  # between two whole numbers


@define(kw_only=True, eq=False)
class QueuedDelivery:
    """One message to deliver. ``document`` is None if ``content`` is sent unchanged.

    ``key`` is its conversation. ``number`` counts messages from 1, ``attempt`` the attempts to deliver this one; ``due`` is
    the time of its next attempt. ``place`` is its position in the queue, ``to_pass`` the number of later messages that have
    yet to overtake it.
    """

    number: int
    message_id: str
    key: str
    content: bytes
    document: Mapping[str, Any] | None
    picked: tuple[Picked, ...] = ()
    attempt: int = 1
    due: float = 0.0
    place: float = 0.0
    to_pass: int = 0


@define(eq=False)
class _ConversationQueue:
    deliveries: list[QueuedDelivery] = field(factory=list[QueuedDelivery])
    held: list[QueuedDelivery] = field(factory=list[QueuedDelivery])
    added: int = 0
    busy: bool = False


class DeliveryQueues:
    """Deliveries by conversation. At most one of each is taken at a time; the later ones wait until it is done."""

    def __init__(self) -> None:
        self._queues: dict[str, _ConversationQueue] = {}
        self._ready: list[tuple[float, int, int, str]] = []
        self._tick = count()

    def __len__(self) -> int:
        """Return the number of waiting deliveries."""
        return sum(len(queue.deliveries) for queue in self._queues.values())

    def put(
        self, delivery: QueuedDelivery, now: float, *, delay: float = 0.0, overtaken_by: int = 0, patience: float = 0.0
    ) -> None:
        """Put a delivery at the end of its queue, due in ``delay`` seconds.

        With ``overtaken_by`` it waits until that many later ones are queued, and goes behind them, or until its ``patience``
        is over.
        """
        queue = self._queues.setdefault(delivery.key, _ConversationQueue())
        queue.added += 1
        delivery.due = now + delay
        delivery.place = queue.added
        overtaken = queue.held
        queue.held = [each for each in overtaken if each.to_pass > 1]
        for each in overtaken:
            each.to_pass -= 1
            if each.to_pass == 0:
                each.due = now
        if overtaken_by:
            delivery.place += overtaken_by + _BETWEEN
            delivery.to_pass = overtaken_by
            delivery.due += patience
            queue.held.append(delivery)
        insort(queue.deliveries, delivery, key=_PLACE)
        if overtaken or queue.deliveries[0] is delivery:
            self._announce(delivery.key, queue)

    def take(self) -> QueuedDelivery:
        """Take the delivery that is due next. Its queue is busy until it is done or put back."""
        if self.next_due() is None:
            raise LookupError("no delivery can be taken")
        queue = self._queues[heapq.heappop(self._ready)[3]]
        queue.busy = True
        delivery = queue.deliveries.pop(0)
        if delivery.to_pass:  # its patience is over: later ones are behind it, even if it is put back
            delivery.to_pass = 0
            delivery.place = queue.added + _BETWEEN
            queue.held.remove(delivery)
        return delivery

    def done(self, delivery: QueuedDelivery) -> None:
        """End a delivery that was taken: the next one of its queue can be taken."""
        self._release(delivery.key)

    def put_back(self, delivery: QueuedDelivery, due: float) -> None:
        """Put a delivery that was taken back to its position, with the time of its next attempt."""
        delivery.due = due
        insort(self._queues[delivery.key].deliveries, delivery, key=_PLACE)
        self._release(delivery.key)

    def clear(self) -> None:
        """Drop all waiting deliveries."""
        for queue in self._queues.values():
            queue.deliveries.clear()
            queue.held.clear()
        self._queues = {key: queue for key, queue in self._queues.items() if queue.busy}
        self._ready.clear()

    def next_due(self) -> float | None:
        """Return when the next delivery that can be taken is due, or None if there is none."""
        while self._ready and not self._is_current(self._ready[0]):
            heapq.heappop(self._ready)
        return self._ready[0][0] if self._ready else None

    def _release(self, key: str) -> None:
        queue = self._queues[key]
        queue.busy = False
        if queue.deliveries:
            self._announce(key, queue)
        else:
            del self._queues[key]

    def _announce(self, key: str, queue: _ConversationQueue) -> None:
        if not queue.busy:
            first = queue.deliveries[0]
            heapq.heappush(self._ready, (first.due, first.number, next(self._tick), key))

    def _is_current(self, entry: tuple[float, int, int, str]) -> bool:
        """Return whether an announced entry is still valid."""
        due, number, _, key = entry
        queue = self._queues.get(key)
        if queue is None or queue.busy or not queue.deliveries:
            return False
        return (queue.deliveries[0].due, queue.deliveries[0].number) == (due, number)
