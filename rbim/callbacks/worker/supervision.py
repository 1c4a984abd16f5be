"""Supervision: when a part of a receiver that ended by itself is started again, and what is reported of it."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Literal

from rbim._support.text import one_line
from rbim.callbacks.observers import PartEnded, PartRestarted
from rbim.callbacks.worker.backoff import Backoff

if TYPE_CHECKING:
    from rbim.callbacks.observers import Observers
    from rbim.clock import Clock

__all__ = ["RESTARTS", "Supervision"]

RESTARTS = Backoff(attempts=sys.maxsize, first=0.5, factor=2.0, most=30.0)
"""The pauses before restarts. A part that has run for ``most`` seconds begins again with the first one."""

MOST_OF_LINE = 300


class Supervision:
    """The record of one part: whether it is ``running``, the number of ``restarts``, the last ``error`` ("" without one).

    ``blocked``: it runs, but a handler does not let its event loop go on.
    ``part``: "worker" (with ``around``) or "receiver" (all of it).
    """

    def __init__(self, part: Literal["worker", "receiver"], observers: Observers, clock: Clock) -> None:
        self.part: Literal["worker", "receiver"] = part
        self.running = False
        self.blocked = False
        self.restarts = 0
        self.error = ""
        self._observers = observers
        self._clock = clock
        self._failures = 0
        self._ended = False
        self._since = 0.0

    def started(self) -> None:
        """Record that the part runs, and report it if it was restarted."""
        self.running, self._since = True, self._clock.monotonic()
        if self._ended:
            self._ended = False
            self.restarts += 1
            receiver = self._observers.receiver
            self._observers.notify(PartRestarted(receiver=receiver, part=self.part, restarts=self.restarts))

    def ended(self, error: BaseException) -> float:
        """Record and report that the part ended by itself; return the seconds to wait before it is started again."""
        if self.running and self._clock.monotonic() - self._since >= RESTARTS.most:
            self._failures = 0
        self._failures += 1
        self.running, self._ended = False, True
        self.error = one_line("".join(traceback.format_exception_only(error)), MOST_OF_LINE)
        pause = RESTARTS.pause(self._failures) or RESTARTS.most
        ended = PartEnded(receiver=self._observers.receiver, part=self.part, error=self.error, pause=pause)
        self._observers.notify(ended, error)
        return pause
