"""The machine's own clock. anyio is imported only when something waits, so that pure modules may hold a clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

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
        await _anyio().sleep(seconds)

    def scope(self, seconds: float, /) -> CancelScope:
        """Return an anyio cancel scope with a deadline ``seconds`` from now."""
        scope: CancelScope = _anyio().move_on_after(seconds)
        return scope


@cache
def _anyio() -> Any:  # the module; an import statement in each call would cost more than the call
    return import_module("anyio")
