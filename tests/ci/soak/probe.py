"""What observes its own process: it takes samples, counts, and plants a leak if one is wanted."""

import asyncio
import ctypes
import gc
import json
import os
import resource
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from attrs import define, field

PAGE = resource.getpagesize() // 1024  # KiB
PLANTS = ("memory", "descriptors")


@define(kw_only=True)
class Probe:
    """Takes samples for so many seconds, or until so many requests, and says to the part when to end.

    ``rate`` is requests in a second, ``every`` and ``life`` are seconds between two samples and between two reloads.
    """

    rate: float
    seconds: float
    every: float
    life: float
    folder: Path
    plant: str | None = None
    requests: int | None = None
    files: dict[str, Path] = field(factory=dict)
    in_flight: object = lambda: 0  # calls that are open now, each of which is a task
    counts: Counter[str] = field(factory=Counter)
    _leak: list[Any] = field(factory=list)
    _began: float = field(factory=monotonic)

    @property
    def _samples(self):
        return self.folder / "samples"

    def samples(self):
        """Return all samples."""
        return [json.loads(line) for line in self._samples.read_text(encoding="utf-8").splitlines()]

    @property
    def over(self):
        """Whether the part has to end."""
        enough = self.requests is not None and self.counts["requests"] >= self.requests
        return enough or monotonic() > self._began + self.seconds

    def work(self):
        """Count one request; a leak that is planted grows here."""
        self.counts["requests"] += 1
        if self.plant == "memory":
            self._leak.append(bytes(4096))
        elif self.plant == "descriptors" and self.counts["requests"] % 10 == 0:
            self._leak.append(os.open(os.devnull, os.O_RDONLY))

    def sample(self):
        """Return the figures of this moment. Garbage is collected, and what is free is given back to the system, first."""
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc, which keeps it otherwise
            trim(0)
        return {
            "at": round(monotonic() - self._began, 2),
            "memory": int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE,
            "heap": _heap(),
            "blocks": sys.getallocatedblocks(),
            **_descriptors(),
            "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
            "tasks": len(asyncio.all_tasks()) - self.in_flight(),
            **{name: -(-path.stat().st_size // 1024) if path.exists() else 0 for name, path in self.files.items()},
            "requests": self.counts["requests"],
        }

    @asynccontextmanager
    async def running(self):
        """Take samples while the block runs. The time begins here."""

        async def sampling():
            while True:
                with self._samples.open("a", encoding="utf-8") as file:  # in a list, they would be what grows
                    file.write(f"{json.dumps(self.sample())}\n")
                await asyncio.sleep(self.every)

        self._began = monotonic()
        task = asyncio.create_task(sampling())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def lives(self, things):
        """Yield one thing after the other until the end."""
        for each in things:
            if self.over:
                return
            self.counts["reloads"] += 1
            yield each

    async def ticks(self):
        """Yield at the rate during one life; late ticks are made up for."""
        next_tick, end = monotonic(), monotonic() + self.life
        while next_tick < end and not self.over:
            yield
            next_tick += 1 / self.rate
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
    """Return how many descriptors are open: those of sockets, and the others."""
    counts = {"descriptors": 0, "connections": 0}
    for each in os.listdir("/proc/self/fd"):  # noqa: PTH208  # the cheapest way
        with suppress(FileNotFoundError):  # the one that lists the folder
            is_socket = os.readlink(f"/proc/self/fd/{each}").startswith("socket:")  # noqa: PTH115
            counts["connections" if is_socket else "descriptors"] += 1
    return counts
