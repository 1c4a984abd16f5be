"""The queue of waiting deliveries: in order for each conversation, on one :class:`~rbim.queues.KeyedQueue`.

It uses no clock: the caller passes the times.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from attrs import define

from rbim.queues import KeyedQueue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rbim.emulator.faults import Picked

__all__ = ["DeliveryQueue", "QueuedDelivery"]


@define(kw_only=True, eq=False)
class QueuedDelivery:
    """One message to deliver. ``document`` is None if ``content`` is sent unchanged.

    ``key`` is its conversation. ``number`` counts messages from 1, ``attempt`` the attempts to deliver this one; ``due`` is
    the time of its next attempt. ``to_pass`` is the number of later messages that have yet to overtake it.
    """

    number: int
    message_id: str
    key: str
    content: bytes
    document: Mapping[str, Any] | None
    picked: tuple[Picked, ...] = ()
    attempt: int = 1
    due: float = 0.0
    to_pass: int = 0


class DeliveryQueue:
    """Deliveries by conversation. At most one of each is taken at a time; the later ones wait until it is done."""

    def __init__(self) -> None:
        self._queue = KeyedQueue[str, QueuedDelivery]()
        self._taken = set[str]()
        self._held: list[QueuedDelivery] = []  # until later ones have overtaken them

    def __len__(self) -> int:
        """Return the number of waiting deliveries."""
        return len(self._queue) + len(self._held)

    def put(self, delivery: QueuedDelivery, now: float) -> None:
        """Put a delivery at the end of its conversation.

        One with ``to_pass`` is held until that many later ones are queued, then goes behind them, or until it is due.
        """
        if delivery.to_pass == 0:
            self._append(delivery, now)
        held, self._held = self._held, []
        for each in held:
            each.to_pass -= each.key == delivery.key
            if each.to_pass:
                self._held.append(each)
            else:
                each.due = now
                self._append(each, now)
        if delivery.to_pass:
            self._held.append(delivery)

    def take(self, now: float) -> QueuedDelivery | None:
        """Take the delivery whose turn it is, or None if none is due. The later ones wait until it is done or put back."""
        for each in [each for each in self._held if each.due <= now]:
            self._held.remove(each)
            self._append(each, now)
        leased = self._queue.lease(now)
        if leased is None:
            return None
        self._taken.add(leased[0])
        return leased[1]

    def done(self, delivery: QueuedDelivery, now: float) -> None:
        """End a delivery that was taken: the next one of its conversation can be taken when it is due."""
        following = self._queue.take(delivery.key)
        if following is not None:
            self._queue.put(delivery.key, following, first=True)
            self._pause(following, now)
        self._taken.remove(delivery.key)
        self._queue.release(delivery.key)

    def put_back(self, delivery: QueuedDelivery, now: float) -> None:
        """Put a delivery that was taken back, before the later ones of its conversation, with the time when it is due."""
        self._queue.put(delivery.key, delivery, first=True)
        self.done(delivery, now)

    def next_due(self, now: float) -> float | None:
        """Return when the next delivery can be taken, or None if none waits."""
        ready = self._queue.next_at(now)
        due = min([inf if ready is None else ready, *(each.due for each in self._held)])
        return None if due == inf else due

    def _append(self, delivery: QueuedDelivery, now: float) -> None:
        if delivery.key not in self._queue and delivery.key not in self._taken:
            self._pause(delivery, now)
        self._queue.put(delivery.key, delivery)

    def _pause(self, first: QueuedDelivery, now: float) -> None:
        """Let a conversation wait until its first delivery is due."""
        if first.due > now:
            self._queue.pause(first.key, first.due)
