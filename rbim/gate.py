"""The one place where calls queue: so many in flight at once, first come, first served.

A semaphore made for this: nothing is awaited while a place is free, a waiter that is cancelled leaves in constant time and
passes on the place it may have been given in that moment.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from rbim.lazy import late_anyio

if TYPE_CHECKING:
    from anyio import Event

__all__ = ["Gate"]


class Gate:
    """``places`` places; ``free`` of them are not taken, ``waiting`` calls wait for one."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.free = places
        self._waiters: OrderedDict[Event, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def take(self) -> bool:
        """Take a place if one is free and nobody waits for it; tell whether it was so."""
        if not self.free or self._waiters:
            return False
        self.free -= 1
        return True

    async def enter(self) -> None:
        """Take a place, waiting for one if need be."""
        if self.take():
            return
        event: Event = late_anyio().Event()
        self._waiters[event] = None
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self.leave()  # the place came in the moment of the cancellation: the next one has it
            else:
                del self._waiters[event]
            raise

    def leave(self) -> None:
        """Give the place back: to the first who waits, or to the free ones."""
        if self._waiters:
            event, _ = self._waiters.popitem(last=False)
            event.set()
        else:
            self.free += 1
