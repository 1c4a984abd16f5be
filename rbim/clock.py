"""Clocks: the protocol, and the machine's own clock.

Client, jobs, receiver and emulator take a clock. anyio is imported only when something waits, so that pure modules may hold
one.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from rbim._support.lazy_names import late_anyio

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from anyio import CancelScope


__all__ = ["Clock", "Scope", "SystemClock"]


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


class Scope(Protocol):
    """A cancel scope, as anyio's: what runs inside is cancelled when the scope is, or when its time is over."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether the scope ended what ran inside it."""
        ...

    def cancel(self) -> Any:  # anyio returns an awaitable in one version and None in the next
        """End what runs inside."""
        ...


class Clock(Protocol):
    """What tells the time and waits, so that tests run on emulated time."""

    def now(self) -> datetime:
        """Return the wall-clock time, with a time zone."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait."""
        ...

    def scope(self, seconds: float, /) -> AbstractContextManager[Scope]:
        """Return a cancel scope whose time is over after so many seconds."""
        ...
