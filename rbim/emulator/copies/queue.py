"""What waits to be copied: one lane for each conversation, whose order is kept. Pure; times are given by the caller."""

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

    from rbim.emulator.faults.copies import Picked

__all__ = ["DeliveryQueues", "QueuedDelivery"]

_PLACE = attrgetter("place")
_BETWEEN = 0.5  # behind one that has a whole number, ahead of the next


@define(kw_only=True, eq=False)
class QueuedDelivery:
    """One message on its way. ``document`` is None where ``content`` is sent as it stands.

    ``number`` counts messages from 1, ``attempt`` the attempts to deliver this one; ``due`` is when the next one is.
    ``stamp`` is the time that the first attempt was signed with, in milliseconds since 1970.
    """

    number: int
    message_id: str
    key: str
    content: bytes
    document: Mapping[str, Any] | None
    picked: tuple[Picked, ...] = ()
    attempt: int = 1
    due: float = 0.0
    stamp: int | None = None
    place: float = 0.0
    to_pass: int = 0


@define(eq=False)
class _ConversationQueue:
    parcels: list[QueuedDelivery] = field(factory=list[QueuedDelivery])
    held: list[QueuedDelivery] = field(factory=list[QueuedDelivery])
    came: int = 0
    busy: bool = False


class DeliveryQueues:
    """Parcels by conversation. At most one of each is out at a time, and the ones behind wait for it to be done."""

    def __init__(self) -> None:
        self._lanes: dict[str, _ConversationQueue] = {}
        self._ready: list[tuple[float, int, int, str]] = []
        self._tick = count()

    def __len__(self) -> int:
        """How many wait."""
        return sum(len(lane.parcels) for lane in self._lanes.values())

    def put(
        self, parcel: QueuedDelivery, now: float, *, delay: float = 0.0, overtaken_by: int = 0, patience: float = 0.0
    ) -> None:
        """Put a parcel at the end of its lane, due in ``delay`` seconds.

        One that is to be overtaken waits until as many have come to its lane and goes behind them, or until its
        ``patience`` is over.
        """
        lane = self._lanes.setdefault(parcel.key, _ConversationQueue())
        lane.came += 1
        parcel.due = now + delay
        parcel.place = lane.came
        passed = lane.held
        lane.held = [each for each in passed if each.to_pass > 1]
        for each in passed:
            each.to_pass -= 1
            if each.to_pass == 0:
                each.due = now
        if overtaken_by:
            parcel.place += overtaken_by + _BETWEEN
            parcel.to_pass = overtaken_by
            parcel.due += patience
            lane.held.append(parcel)
        insort(lane.parcels, parcel, key=_PLACE)
        if passed or lane.parcels[0] is parcel:
            self._announce(parcel.key, lane)

    def take(self) -> QueuedDelivery:
        """Take out the parcel that is due next; it keeps its lane busy until it is done or put back."""
        if self.next_due() is None:
            raise LookupError("no parcel can be taken")
        lane = self._lanes[heapq.heappop(self._ready)[3]]
        lane.busy = True
        parcel = lane.parcels.pop(0)
        if parcel.to_pass:  # its patience is over: whoever comes now comes after it, even if it is put back
            parcel.to_pass = 0
            parcel.place = lane.came + _BETWEEN
            lane.held.remove(parcel)
        return parcel

    def done(self, parcel: QueuedDelivery) -> None:
        """Let the next one of its lane follow a parcel that was taken."""
        self._free(parcel.key)

    def back(self, parcel: QueuedDelivery, due: float) -> None:
        """Put a parcel that was taken back to where it was, due at that time."""
        lane = self._lanes[parcel.key]
        parcel.due = due
        insort(lane.parcels, parcel, key=_PLACE)
        self._free(parcel.key)

    def clear(self) -> None:
        """Drop whatever waits."""
        for lane in self._lanes.values():
            lane.parcels.clear()
            lane.held.clear()
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.busy}
        self._ready.clear()

    def next_due(self) -> float | None:
        """Return when the next parcel is due that can be taken; None where none waits."""
        while self._ready and not self._holds(self._ready[0]):
            heapq.heappop(self._ready)
        return self._ready[0][0] if self._ready else None

    def _free(self, key: str) -> None:
        lane = self._lanes[key]
        lane.busy = False
        if lane.parcels:
            self._announce(key, lane)
        else:
            del self._lanes[key]

    def _announce(self, key: str, lane: _ConversationQueue) -> None:
        if not lane.busy:
            first = lane.parcels[0]
            heapq.heappush(self._ready, (first.due, first.number, next(self._tick), key))

    def _holds(self, entry: tuple[float, int, int, str]) -> bool:
        """Tell whether what was announced is still so."""
        due, number, _, key = entry
        lane = self._lanes.get(key)
        if lane is None or lane.busy or not lane.parcels:
            return False
        return (lane.parcels[0].due, lane.parcels[0].number) == (due, number)
