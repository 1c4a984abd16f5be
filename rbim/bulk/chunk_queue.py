"""The chunks of a run that wait to be sent: planned ones, scheduled ones, and those that are held back for their group."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbim.bulk.work import Chunk

__all__ = ["ChunkQueue"]

MAX_DELAYED = 5000
"""Chunks that wait (to be sent again, or for their group) beyond which no new chunk is started."""


class ChunkQueue:
    """Gives out the next chunk that is due; times are seconds of the run's clock."""

    def __init__(self) -> None:
        self.ready: deque[Chunk] = deque()
        """New chunks, in the order in which they were planned."""
        self._scheduled: list[tuple[float, int, Chunk | str]] = []  # heap: chunks to send, and groups with held chunks
        self._held: dict[str, deque[Chunk]] = {}  # by group, in order
        self._held_count = 0
        self._group_due: dict[str, float] = {}  # when held chunks are due; other entries of a group in the heap are void
        self._blocked: set[str] = set()  # groups of which nothing leaves until they are released
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self.ready or self._scheduled or self._held)

    @property
    def due(self) -> float | None:
        """The time of the next scheduled chunk; None if there is none."""
        return self._scheduled[0][0] if self._scheduled else None

    def next(self, now: float) -> Chunk | None:
        """Return the next chunk that is due, resends before new ones; None if there is none."""
        while self._scheduled and self._scheduled[0][0] <= now:
            at, _, due = heapq.heappop(self._scheduled)
            if not isinstance(due, str):
                if due.group not in self._blocked:
                    return due
                self.hold_back(due, now)
            elif self._group_due.get(due) == at:
                del self._group_due[due]
                if due not in self._blocked:
                    return self._next_held(due, now)
        while self.ready and len(self._scheduled) + self._held_count < MAX_DELAYED:
            chunk = self.ready.popleft()
            if chunk.group not in self._blocked and chunk.group not in self._held:
                return chunk
            self.hold_back(chunk, now)
        return None

    def _next_held(self, group: str, now: float) -> Chunk:
        held = self._held[group]
        chunk = held.popleft()
        self._held_count -= 1
        if held:
            self._schedule_group(group, now)
        else:
            del self._held[group]
        return chunk

    def schedule(self, chunk: Chunk, at: float) -> None:
        """Let a chunk be due at that time: one to be sent again, or a half."""
        heapq.heappush(self._scheduled, (at, next(self._order), chunk))

    def _schedule_group(self, group: str, at: float) -> None:
        self._group_due[group] = at
        heapq.heappush(self._scheduled, (at, next(self._order), group))

    def block(self, group: str) -> None:
        """Keep the chunks of a group back until it is released."""
        self._blocked.add(group)

    def release(self, group: str, now: float) -> None:
        """Let the chunks of a group leave again, if it is blocked."""
        if group in self._blocked:
            self._blocked.discard(group)
            if group in self._held and group not in self._group_due:
                self._schedule_group(group, now)

    def is_blocked(self, group: str) -> bool:
        """Return whether the chunks of a group are kept back."""
        return group in self._blocked

    def put_first(self, chunk: Chunk, until: float) -> None:
        """Put a chunk back that was next: its group may send from that time on."""
        self._held.setdefault(chunk.group, deque()).appendleft(chunk)
        self._held_count += 1
        self._schedule_group(chunk.group, until)

    def hold_back(self, chunk: Chunk, now: float) -> None:
        """Keep a chunk behind those of its group that wait."""
        held = self._held.setdefault(chunk.group, deque())
        if chunk.repeats:
            held.appendleft(chunk)  # resends before new chunks
        else:
            held.append(chunk)
        self._held_count += 1
        if chunk.group not in self._group_due and chunk.group not in self._blocked:
            self._schedule_group(chunk.group, now)

    def drop(self, group: str) -> None:
        """Drop all chunks of a group."""
        self.ready = deque(chunk for chunk in self.ready if chunk.group != group)
        self._held_count -= len(self._held.pop(group, ()))
        self._group_due.pop(group, None)
        self._scheduled = [
            each for each in self._scheduled if (each[2] if isinstance(each[2], str) else each[2].group) != group
        ]
        heapq.heapify(self._scheduled)
