"""Pauses before what failed is tried again: an event, or a part of a receiver that ended by itself."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from rbim._support.text import one_line
from rbim.callbacks.observers import PartEnded, PartRestarted
from rbim.validators import above_zero, at_least_one, finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.callbacks.observers import Observers
    from rbim.clock import Clock

__all__ = ["RESTARTS", "Backoff", "Supervision"]


def _uniform() -> float:
    from random import random

    return random()  # noqa: S311  # spreads retries, guards nothing


@frozen(kw_only=True)
class Backoff:
    """Exponential backoff with jitter for an event that failed.

    At most ``attempts`` in all (default: 8; 1: no retries); after the last one the event becomes a dead letter. The pause
    after attempt n is ``first * factor**(n-1)`` seconds, at most ``most`` (defaults: 1, 4 and 300), times a random factor
    between 0.5 and 1 (uniform). The event's conversation pauses meanwhile: with the defaults, about 15 minutes in all.

    An event whose process or worker dies while it is handled has not failed: it is handled again with nothing beside it.
    After ``crashes`` deaths while nothing else was handled (default: 3) it becomes a dead letter.
    """

    attempts: int = field(default=8, validator=at_least_one)
    crashes: int = field(default=3, validator=at_least_one)
    first: float = field(default=1.0, validator=(above_zero, finite))
    factor: float = field(default=4.0, validator=(above_zero, finite))
    most: float = field(default=300.0, validator=(above_zero, finite))
    random: Callable[[], float] = field(default=_uniform, eq=False, repr=False)

    def pause(self, attempt: int) -> float | None:
        """Return the seconds to wait after attempt ``attempt`` (from 1) failed, or None after the last attempt."""
        if attempt >= self.attempts:
            return None
        try:
            full = min(self.most, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            full = self.most
        return full * (0.5 + self.random() / 2)


RESTARTS = Backoff(attempts=sys.maxsize, first=0.5, factor=2.0, most=30.0)
"""The pauses before restarts. A part that has run for ``most`` seconds begins again with the first one."""

MOST_OF_LINE = 300


class Supervision:
    """The record of one part: whether it is ``running``, the number of ``restarts``, the last ``error`` ("" without one).

    ``part``: "worker" (with ``around``), "sink" (with the worker) or "receiver" (all of it).
    """

    def __init__(self, part: Literal["worker", "sink", "receiver"], observers: Observers, clock: Clock) -> None:
        self.part: Literal["worker", "sink", "receiver"] = part
        self.running = False
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
            self._observers.notify(PartRestarted, part=self.part, restarts=self.restarts)

    def ended(self, error: BaseException) -> float:
        """Record and report that the part ended by itself; return the seconds to wait before it is started again."""
        if self.running and self._clock.monotonic() - self._since >= RESTARTS.most:
            self._failures = 0
        self._failures += 1
        self.running, self._ended = False, True
        self.error = one_line("".join(traceback.format_exception_only(error)), MOST_OF_LINE)
        pause = RESTARTS.pause(self._failures) or RESTARTS.most
        self._observers.notify(PartEnded, part=self.part, error=self.error, pause=pause, exception=error)
        return pause
