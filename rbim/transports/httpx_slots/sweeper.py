"""Closing idle connections on trio, where no event loop watches them: one task for all connections of a transport."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from rbim._support.event_loops import spawn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Sweeper"]

PERIOD = 1.0
"""Seconds between two sweeps, at most."""


class Sweeper:
    """Calls ``sweep`` every PERIOD seconds, or every ``max_idle`` seconds if that is less, as long as it returns True.

    Its task does not keep the event loop running, and no block has to be left in order.
    """

    def __init__(self, sweep: Callable[[], bool], max_idle: float) -> None:
        self._sweep = sweep
        self._max_idle = max_idle
        self._scope: anyio.CancelScope | None = None
        self._task: object = None

    def start(self) -> None:
        """Begin, if it does not run yet: there are idle connections."""
        if self._scope is None:
            self._scope = anyio.CancelScope()
            self._task = spawn(partial(self._run, self._scope), name="rbim-idle")

    def stop(self) -> None:
        """End: there are no idle connections any more."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None

    async def _run(self, scope: anyio.CancelScope) -> None:
        with scope:
            more = True
            while more:
                await anyio.sleep(min(PERIOD, self._max_idle))
                more = self._sweep()
        if self._scope is scope:
            self._scope = None
