"""A queue of items with keys: in order for each key, the keys in turn, with leases and pauses. It has no clock.

The dispatcher of a job has groups as keys, a worker conversations, the emulator the conversations that it copies.
"""

# Theory of operation: a key is in one of these states.
#
# ABSENT    it has no item, no lease and no pause; nothing of it is in memory
# READY     it has items, and waits for its turn
# LEASED    `lease` has given its first item: it gives nothing, except by `take`, until its holder calls `release`
# PAUSED    it gives nothing before a time; also without an item, so that a pause holds for what is put later
# IDLE      leased or paused, without an item
#
# ABSENT -> READY           `put`
# READY  -> LEASED          `lease`, in the order in which keys have become ready
# LEASED -> READY           `release`: after all keys that are ready now
# READY  -> PAUSED          `pause`; a leased key is paused when it is released
# PAUSED -> READY           the first call of `lease` or `next_at` at or after the end of the pause
# READY  -> ABSENT          `drop`, the same for the others when their lease or pause ends without an item
#
# Always true: a ready key is in `_ready` once, and no other key is. A pause has one entry in the heap that counts, the one
# with the time of its key; others are void. An item is in one deque, from `put` until `lease`, `take` or `drop` returns it.
# Between two leases of a key, each other key that was ready at the first one is leased once, or was paused or dropped.
#
# Each operation takes constant time, or the logarithm of the number of pauses; `drop` the number of the items dropped.

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["KeyedQueue"]

K = TypeVar("K", bound="Hashable")
T = TypeVar("T")


class _KeyState(Generic[T]):
    """The items of a key, whether it is leased, and until when it pauses."""

    __slots__ = ("items", "leased", "paused_until")

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self.leased = False
        self.paused_until = -inf


class KeyedQueue(Generic[K, T]):
    """Holds items by key. All times are of one clock of the caller, such as seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._keys: dict[K, _KeyState[T]] = {}
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._pauses: list[tuple[float, int, K]] = []  # a heap; the number keeps keys from being compared
        self._numbers = count()
        self._length = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return self._length

    def __contains__(self, key: K) -> bool:
        """Return whether a key has items."""
        found = self._keys.get(key)
        return found is not None and bool(found.items)

    def put(self, key: K, item: T, *, first: bool = False) -> None:
        """Put an item behind the others of its key, or (``first``) before them, such as one that is tried again."""
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = _KeyState()
        if first:
            found.items.appendleft(item)
        else:
            found.items.append(item)
        self._length += 1
        if not found.leased and found.paused_until == -inf:
            self._ready[key] = None

    def next_at(self, now: float) -> float | None:
        """Return the time to call :meth:`lease` next: ``now`` if a key is ready, else the end of the next pause, or None."""
        self._end_pauses(now)
        if self._ready:
            return now
        while self._pauses and not self._is_pausing(*self._pauses[0]):
            heapq.heappop(self._pauses)
        return self._pauses[0][0] if self._pauses else None

    def lease(self, now: float) -> tuple[K, T] | None:
        """Lease the key whose turn it is; return it with its first item, which is taken. None if no key is ready."""
        self._end_pauses(now)
        if not self._ready:
            return None
        key, _ = self._ready.popitem(last=False)
        found = self._keys[key]
        found.leased = True
        self._length -= 1
        return key, found.items.popleft()

    def take(self, key: K) -> T | None:
        """Take the next item of a key that the caller has leased; None if it has no other."""
        items = self._leased(key).items
        if not items:
            return None
        self._length -= 1
        return items.popleft()

    def release(self, key: K) -> None:
        """End a lease: the key's next turn is after those of all ready keys, or after its pause."""
        found = self._leased(key)
        found.leased = False
        if found.paused_until != -inf:
            self._note_pause(key, found)
        elif found.items:
            self._ready[key] = None
        else:
            del self._keys[key]

    def pause(self, key: K, until: float) -> None:
        """Let a key give nothing before a time; a later call replaces the time. A lease goes on, and ``take`` with it."""
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = _KeyState()
        found.paused_until = until
        self._ready.pop(key, None)
        if not found.leased:
            self._note_pause(key, found)

    def drop(self, key: K) -> list[T]:
        """Remove the items of a key, and return them in order; its lease and its pause stay."""
        found = self._keys.get(key)
        if found is None:
            return []
        dropped = list(found.items)
        found.items.clear()
        self._length -= len(dropped)
        if self._ready.pop(key, self) is None:  # it was ready
            del self._keys[key]
        return dropped

    def _leased(self, key: K) -> _KeyState[T]:
        found = self._keys.get(key)
        if found is None or not found.leased:
            raise LookupError("the key is not leased")
        return found

    def _note_pause(self, key: K, found: _KeyState[T]) -> None:
        heapq.heappush(self._pauses, (found.paused_until, next(self._numbers), key))

    def _is_pausing(self, until: float, _: int, key: K) -> bool:
        """Return whether an entry of the heap is the present pause of its key."""
        found = self._keys.get(key)
        return found is not None and not found.leased and found.paused_until == until

    def _end_pauses(self, now: float) -> None:
        """Make the keys ready whose pause is over."""
        while self._pauses and self._pauses[0][0] <= now:
            pause = heapq.heappop(self._pauses)
            if not self._is_pausing(*pause):
                continue
            key = pause[2]
            found = self._keys[key]
            found.paused_until = -inf
            if found.items:
                self._ready[key] = None
            else:
                del self._keys[key]
