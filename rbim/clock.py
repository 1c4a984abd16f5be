"""The machine's own clock. anyio is imported only when something waits, so that pure modules may hold a clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rbim.lazy import late_anyio

if TYPE_CHECKING:
    from anyio import CancelScope

__all__ = ["SystemClock"]


class SystemClock:
    """Wall-clock and monotonic time of this machine; waits on asyncio and trio."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()

    async def sleep(self, seconds: float, /) -> None:
        """Wait for ``seconds`` of real time."""
        await late_anyio().sleep(seconds)

    def scope(self, seconds: float, /) -> CancelScope:
        """Return an anyio cancel scope with a deadline ``seconds`` from now."""
        scope: CancelScope = late_anyio().move_on_after(seconds)
        return scope
