"""Points of a chart over a time of any length, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rbim.page.events import Stream

__all__ = ["PointHistory"]


class PointHistory:
    """Points of a chart for a time of any length: when a stream is full, it keeps every second point, and adds fewer."""

    def __init__(self, stream: Stream[dict[str, Any]], most: int) -> None:
        self._stream = stream
        self._most = most
        self._every = 1
        self._skipped = 0

    def add(self, point: dict[str, Any]) -> None:
        """Append a point, unless there are enough for its time."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        if self._stream.count >= self._most:
            kept = self._stream.held()[::2]
            self._stream.clear()
            for each in kept:
                self._stream.add(each)
            self._every *= 2
        self._stream.add(point)
