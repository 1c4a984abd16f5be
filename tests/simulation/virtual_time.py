"""The time of the simulated machine.

:func:`install` replaces ``time.monotonic``, ``time.time``, ``time.sleep`` and the clock of ``rbim.clock``. rbim binds some
of them when it is imported, so this comes first. Nothing else of the simulation reads real time, except to measure its cost.
"""

import datetime as dt
import sys
import time

EPOCH = 1_770_000_000.0
"""The wall-clock time at which each run begins: a day in February 2026."""

MOST_SLEEPS = 20_000
"""Calls of ``time.sleep`` in one turn of the event loop, after which what sleeps waits for something that cannot happen."""

real_monotonic, real_time = time.monotonic, time.time


def real_today():
    """Return today's date, for records of runs."""
    return dt.datetime.fromtimestamp(real_time(), dt.UTC).date()


class Stuck(Exception):
    """No progress: nothing can run and nothing waits for a time, or a run takes longer than it may."""


class VirtualTime:
    """Seconds since the run began. The event loop moves ``now``; ``sleeps`` counts since it did."""

    def __init__(self):
        self.now = 0.0
        self.sleeps = 0

    def monotonic(self):
        return self.now

    def wall(self):
        return EPOCH + self.now

    def sleep(self, seconds):
        """Let time pass for everybody: a thread runs at one instant, so a thread that sleeps blocks the world."""
        self.now += seconds
        self.sleeps += 1
        if self.sleeps > MOST_SLEEPS:
            raise Stuck(f"a thread still sleeps after {MOST_SLEEPS} turns: it waits for what nobody can do meanwhile")


TIME = VirtualTime()


class _VirtualDatetime(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return dt.datetime.fromtimestamp(TIME.wall(), tz)


def install():
    """Replace the machine's time. Raises RuntimeError where rbim was imported before."""
    if "rbim.clock" in sys.modules:
        raise RuntimeError("rbim was imported before time was replaced")
    time.monotonic, time.time, time.sleep = TIME.monotonic, TIME.wall, TIME.sleep
    import rbim.clock

    rbim.clock.datetime = _VirtualDatetime
