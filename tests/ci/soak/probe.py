"""The half that runs in the process under observation: it takes samples, counts, and plants a leak if one is wanted.

Everything goes to standard output, one JSON object a line.
"""

import asyncio
import ctypes
import gc
import json
import os
import resource
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from attrs import define, field, frozen

PAGE = resource.getpagesize() // 1024  # KiB
PLANTS = ("memory", "descriptors")


@frozen(kw_only=True)
class Plan:
    """How a subject runs: requests in a second, seconds between two samples and between two reloads, a planted leak.

    With ``requests`` it ends after so many, if not before.
    """

    rate: float
    every: float
    life: float
    folder: Path = field(converter=Path)
    plant: str | None = None
    requests: int | None = None


@define
class Probe:
    """Takes the samples of its process until it is asked to stop."""

    plan: Plan
    files: dict[str, Path] = field(factory=dict)
    in_flight: object = lambda: 0  # calls that are open now, each of which is a task
    stopping: asyncio.Event = field(factory=asyncio.Event)
    counts: Counter[str] = field(factory=Counter)
    _leak: list[Any] = field(factory=list)
    _began: float = field(factory=monotonic)

    def say(self, **what):
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    def work(self):
        """Count one request; a leak that is planted grows here."""
        self.counts["requests"] += 1
        if self.plan.plant == "memory":
            self._leak.append(bytes(4096))
        elif self.plan.plant == "descriptors" and self.counts["requests"] % 10 == 0:
            self._leak.append(os.open(os.devnull, os.O_RDONLY))

    def sample(self):
        """Return the figures of this moment. Garbage is collected first, so that they do not depend on when it was."""
        gc.collect()
        return {
            "at": round(monotonic() - self._began, 2),
            "memory": int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE,
            "heap": _heap(),
            "blocks": sys.getallocatedblocks(),
            **_descriptors(),
            "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
            "tasks": len(asyncio.all_tasks()) - self.in_flight(),
            "log": _size(self.plan.folder / "log"),
            **{name: _size(path) for name, path in self.files.items()},
            "counts": dict(self.counts),
        }

    @asynccontextmanager
    async def running(self):
        """Take samples while the block runs; SIGTERM sets ``stopping``. Say the counts at the end."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopping.set)
        sampling = asyncio.create_task(self._sampling())
        try:
            yield
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
        self.say(end=dict(self.counts))

    async def _sampling(self):
        while True:
            self.say(sample=self.sample())
            await asyncio.sleep(self.plan.every)

    async def lives(self, things):
        """Yield one thing after the other until the subject is asked to stop."""
        for each in things:
            if self.stopping.is_set():
                return
            self.counts["reloads"] += 1
            yield each

    async def ticks(self, seconds, rate=None):
        """Yield at a steady rate for so many seconds, or until the subject is asked to stop; late ticks are made up for."""
        pause = 1 / (rate or self.plan.rate)
        next_tick, end = monotonic(), monotonic() + seconds
        while next_tick < end and not self.stopping.is_set():
            yield
            next_tick += pause
            if (wait := next_tick - monotonic()) > 0:
                await asyncio.sleep(wait)


class _Mallinfo2(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def _heap():
    """Return the KiB that malloc has given out: what is freed does not count, though the process keeps it. 0 if unknown."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)  # of glibc
    if ask is None:
        return 0
    ask.restype = _Mallinfo2
    found = ask()
    return int(found.uordblks + found.hblkhd) // 1024


def _descriptors():
    counts = {"descriptors": 0, "connections": 0}
    for each in os.listdir("/proc/self/fd"):  # noqa: PTH208  # the cheapest way
        with suppress(FileNotFoundError):  # the one that lists the folder
            is_socket = os.readlink(f"/proc/self/fd/{each}").startswith("socket:")  # noqa: PTH115
            counts["connections" if is_socket else "descriptors"] += 1
    return counts


def _size(path):
    try:
        return -(-path.stat().st_size // 1024)
    except FileNotFoundError:
        return 0
