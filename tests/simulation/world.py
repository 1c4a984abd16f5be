"""One run of a scenario: its random streams, its log, and the invariants that were broken.

Every kind of trouble draws from a stream of its own, made from the seed and its name. To switch one kind off leaves what
the others draw as it was, so that a failure can be minimised kind by kind.
"""

import asyncio
import contextvars
import gc
import itertools
import logging
import math
import os
import random
import tempfile
from collections import Counter, deque
from typing import Any

from . import disk
from .event_loop import Loop, SimulatedTask
from .process import Process, current_process
from .virtual_time import TIME, Stuck

PROGRESS = "everything ends once trouble ends"
"""The invariant that is broken where a run is stuck."""

LATELY = 14
"""Events that are kept with an invariant that is broken."""

MOST_OF_ONE = 3
"""Times that one invariant is reported in one run; the rest is counted."""


class Broken(dict[str, Any]):
    """An invariant that did not hold: its name, what was seen, when, and the last events before it."""


class Noting(logging.Handler):
    """Puts what rbim logs, the first line of it, among the events of a run."""

    def __init__(self, world):
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record):
        process = current_process.get()
        self._world.note(process.name if process else "rbim", f"logs: {record.getMessage().splitlines()[0]}")


class World:
    """What a scenario builds on.

    :meth:`stream` gives random numbers, :meth:`happens` decides about trouble, :meth:`note` writes the log,
    :meth:`process` makes processes, :meth:`fail` reports an invariant that is broken. ``disk`` is the machine's disk and
    ``folder`` a folder on it. The scenario's own task belongs to no process and lives to the end.
    """

    def __init__(self, seed, *, off=(), verbose=False):
        self.seed = seed
        self.off = frozenset(off)
        self.happened = Counter()
        self.broken = []
        self.counts = Counter()
        self.log = deque(maxlen=2000)
        self._verbose = verbose
        self._streams = {}
        SimulatedTask.numbers = itertools.count()
        random.seed(self.stream("jitter of retries").getrandbits(64))
        mixing = self.stream("mixing").choice([0.0, 0.3, 1.0])
        self.loop = Loop(self.stream("task-order"), mixing=mixing if self.is_on("task-order") else 0.0)
        self.folder = tempfile.mkdtemp(prefix="rbim-simulation-")
        self.disk = disk.Disk(self)
        asyncio.set_event_loop(self.loop)
        logger = logging.getLogger("rbim")
        logger.handlers, logger.propagate = [Noting(self)], False

    def stream(self, name):
        """Return the random stream of this name. Its numbers depend on the seed and the name alone."""
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed}:{name}")
        return self._streams[name]

    def is_on(self, trouble):
        """Tell whether this kind of trouble may happen in this run."""
        return trouble not in self.off

    def happens(self, trouble, probability):
        """Draw whether trouble of this kind happens now."""
        if not self.stream(trouble).random() < probability or not self.is_on(trouble):
            return False
        self.happened[trouble] += 1
        return True

    def at(self, when, do, *args):
        """Call a function at a time, in no process."""
        self.loop.call_at(when, do, *args, context=contextvars.Context())

    def note(self, who, what):
        """Write an event into the log: who (``platform``, ``network``, ``disk`` or a process) did or saw what."""
        what = what.replace(self.folder, "")  # whose name is another one in each process
        self.loop.trace(who, what)
        line = f"{TIME.now:12.4f}  {who:10} {what}"
        self.log.append(line)
        if self._verbose:
            print(line, flush=True)  # noqa: T201  # what was asked for

    def fail(self, invariant, what):
        """Report that an invariant is broken."""
        self.counts[invariant] += 1
        if self.counts[invariant] <= MOST_OF_ONE:
            lately = list(self.log)[-LATELY:]
            self.broken.append(Broken(invariant=invariant, what=what, at=TIME.now, events=lately))
        self.note("BROKEN", f"{invariant}: {what}")

    def check(self, invariant, holds, what):
        """Report that an invariant is broken unless it holds."""
        if not holds:
            self.fail(invariant, what if isinstance(what, str) else what())

    def check_rate(self, rate, streams, uneven):
        """Check that no window of the times of sending exceeds a rate much: any n take at least (n - burst) intervals."""
        worst = 0.0
        for times in streams:
            highest = -math.inf
            for number, at in enumerate(times):
                level = number - at * rate.limit / rate.per
                highest = max(highest, -level)
                worst = max(worst, level + highest + 1 - rate.burst)
        text = f"{rate.limit:g}/s, burst {rate.burst}, each group {rate.each_group}: {worst:.1f} requests too many"
        self.check("rates hold by the time of sending", worst <= uneven, text)

    def process(self, name, on_death=None):
        """Make a process."""

        def died(process):
            self.note(process.name, f"is killed {process.death}, after {process.statements} statements")
            if on_death is not None:
                on_death(process)

        return Process(name, self.loop, died)

    def run(self, main):
        """Run a scenario to its end and return what came of it, as JSON."""
        gc.disable()
        cpu = sum(os.times()[:2])
        try:
            self.loop.run_until_complete(main)
        except Stuck as stuck:
            self.fail(PROGRESS, str(stuck))
        finally:
            disk.remove(self.folder)
        return {
            "seed": self.seed,
            "broken": self.broken,
            "counts": dict(self.counts),
            "troubles": dict(self.happened),
            "virtual": TIME.now,
            "steps": self.loop.steps,
            "cpu": sum(os.times()[:2]) - cpu,
            "digest": self.loop.digest.hexdigest(),
        }
