"""The order in which an inbox in memory gives out its events. Nothing here waits or locks: the caller does both."""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from attrs import define

from rbim.callbacks.delivery import Claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.callbacks.delivery import Delivery
    from rbim.message import Clock

__all__ = ["Entry", "Lanes"]


@define(eq=False)
class Entry:
    """An event that waits or is being handled."""

    number: int
    delivery: Delivery
    attempt: int = 0


class Lanes:
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
        self._events: dict[str, deque[Entry]] = {}
        self._resting: list[tuple[float, int, str]] = []
        self._numbers = count(1)
        self._fences = count(1)

    def entries(self) -> list[Entry]:
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
        entry, conversation = Entry(next(self._numbers), delivery), delivery.conversation
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
