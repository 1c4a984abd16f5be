"""The chunks of a run that wait to be sent: planned ones, scheduled ones, and those that their group's rate holds back.

Held chunks of a group leave in the order in which they were planned: the journal's cursors depend on it.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbim.bulk.work import Chunk

__all__ = ["ChunkQueue"]

MAX_DELAYED = 1000
"""Chunks that wait (to be sent again, or for their group's rate) beyond which no new chunk is started."""


class ChunkQueue:
    """Gives out the next chunk that is due; times are seconds of the run's clock."""

    def __init__(self) -> None:
        self.ready: deque[Chunk] = deque()
        """New chunks, in the order in which they were planned."""
        self._scheduled: list[tuple[float, int, Chunk | str]] = []  # heap: chunks to send, and groups with held chunks
        self._held: dict[str, deque[Chunk]] = {}  # by group: chunks that its own rate holds back, in order
        self._held_count = 0
        self._blocked: set[str] = set()  # groups of which nothing leaves until they are released
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self.ready or self._scheduled)

    @property
    def due(self) -> float | None:
        """The time of the next scheduled chunk; None if there is none."""
        return self._scheduled[0][0] if self._scheduled else None

    def next(self, now: float) -> Chunk | None:
        """Return the next chunk that is due, resends before new ones; None if there is none."""
        if self._scheduled and self._scheduled[0][0] <= now:
            due = heapq.heappop(self._scheduled)[2]
            return self._held[due][0] if isinstance(due, str) else due
        return self.ready.popleft() if self.ready and len(self._scheduled) + self._held_count < MAX_DELAYED else None

    def schedule(self, chunk: Chunk, at: float) -> None:
        """Let a chunk be due at that time: one to be sent again, or a half."""
        self._schedule(chunk, at)

    def _schedule(self, chunk: Chunk | str, at: float) -> None:
        heapq.heappush(self._scheduled, (at, next(self._order), chunk))

    def block(self, group: str) -> None:
        """Keep the chunks of a group back until it is released."""
        self._blocked.add(group)

    def release(self, group: str, now: float) -> None:
        """Let the chunks of a group leave again, if it is blocked."""
        if group in self._blocked:
            self._blocked.discard(group)
            if group in self._held:
                self._schedule(group, now)

    def is_behind(self, chunk: Chunk) -> bool:
        """Return whether its group is blocked, or other chunks of it are held back and go first."""
        held = self._held.get(chunk.group)
        return chunk.group in self._blocked or (held is not None and held[0] is not chunk)

    def hold_back(self, chunk: Chunk, until: float) -> None:
        """Keep a chunk until its group may send, or behind those of its group that wait for that."""
        held = self._held.get(chunk.group)
        if held is not None and held[0] is not chunk:
            held.insert(1 if chunk.repeats or chunk.planned else len(held), chunk)  # resends before new chunks
            self._held_count += 1
            return
        if held is None:
            self._held[chunk.group] = deque([chunk])
            self._held_count += 1
        if chunk.group not in self._blocked:
            self._schedule(chunk.group, until)

    def leaves(self, chunk: Chunk, now: float) -> None:
        """Let the next held chunk of its group be due, now that this one leaves."""
        held = self._held.get(chunk.group)
        if held is None or held[0] is not chunk:
            return
        held.popleft()
        self._held_count -= 1
        if not held:
            del self._held[chunk.group]
        elif chunk.group not in self._blocked:
            self._schedule(chunk.group, now)
