"""Clocks: the protocol, and the clock of this machine.

Client, jobs, receiver and emulator take a clock. The event loop's library is imported on the first wait, so that modules
without I/O can hold a clock.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from rbim._support.lazy_names import late_anyio

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from anyio import CancelScope


__all__ = ["Clock", "Scope", "SystemClock", "epoch_of", "monotonic_of"]


class SystemClock:
    """The clock of this machine: wall-clock and monotonic time, waiting on asyncio and trio."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()

    async def sleep(self, seconds: float, /) -> None:
        """Wait for ``seconds`` of real time."""
        # asyncio's own, which is faster, while nothing has imported trio
        await (late_anyio() if "trio" in sys.modules else import_module("asyncio")).sleep(seconds)

    def scope(self, seconds: float, /) -> CancelScope:
        """Return an anyio cancel scope that cancels ``seconds`` from now."""
        scope: CancelScope = late_anyio().move_on_after(seconds)
        return scope


def monotonic_of(clock: Clock) -> Callable[[], float]:
    """Return the function that reads a clock's monotonic time, for those who read it several times in each call."""
    return time.monotonic if type(clock) is SystemClock else clock.monotonic


def epoch_of(clock: Clock) -> Callable[[], float]:
    """Return the function that reads a clock's wall-clock time in epoch seconds."""
    return time.time if type(clock) is SystemClock else lambda: clock.now().timestamp()


class Scope(Protocol):
    """A cancel scope like anyio's: it cancels its block on :meth:`cancel` or when its time is over."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether the scope cancelled its block."""
        ...

    def cancel(self) -> Any:  # anyio returns an awaitable in one version and None in the next
        """Cancel the block."""
        ...


class Clock(Protocol):
    """The protocol of clocks: read the time and wait. Tests use a clock with emulated time."""

    def now(self) -> datetime:
        """Return the wall-clock time, with a time zone."""
        ...

    def monotonic(self) -> float:
        """Return monotonic time in seconds."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait for ``seconds``."""
        ...

    def scope(self, seconds: float, /) -> AbstractContextManager[Scope]:
        """Return a cancel scope that cancels its block after ``seconds``."""
        ...
