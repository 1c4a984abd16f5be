"""Work whose instructions valgrind counts: a process that ``benchmarks/instructions.py`` starts below valgrind.

Run by others: python -m benchmarks.counted PORT [--quick]

Each item runs in a fork of this process. After its warm-up and at its end it forks a process that ends at once: valgrind
reports the instructions of each process when it ends, and those of a fork include those of its parent before. The
difference between the two is the cost of the calls in between. The program prints a line of JSON for each item: the two
process ids and the number of calls, or why the item cannot run.

The wall clock stands still, because rbim makes signatures and heads once per second.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.work import Carrier

__all__ = ["ITEMS", "Counter", "Item", "main"]

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IN_FLIGHT = 10


class Counter:
    """Counts calls; after ``warm`` of them and after ``calls`` more, a process is forked for valgrind to report."""

    def __init__(self, warm: int, calls: int) -> None:
        self._marks = (warm, warm + calls)
        self._done = 0
        self.processes: list[int] = []

    def more(self) -> bool:
        """Count a call, and return whether another one is needed."""
        self._done += 1
        if self._done in self._marks:
            if not self.processes:
                gc.collect()
                gc.freeze()  # later collections do not visit what the imports made
            self.processes.append(_ended())
        return self._done < self._marks[1]


def _ended() -> int:
    """Fork a process that ends at once, and return its id."""
    number = os.fork()
    if not number:
        os._exit(0)
    os.waitpid(number, 0)
    return number


@frozen
class Item:
    """One figure: the function that does the work, calls before the count, and calls that are counted.

    ``without``: a module that is hidden.
    """

    work: Callable[[Counter, str], None]
    warm: int
    calls: int
    without: str = ""


def _carried(make: Callable[[str], Carrier], counter: Counter, origin: str) -> None:
    async def work() -> None:
        async with make(origin) as carrier:
            await carrier.run(counter.more)

    asyncio.run(work())


def _core(counter: Counter, origin: str) -> None:
    from benchmarks.contenders import Rbim
    from benchmarks.core import NullTransport

    _carried(lambda origin: Rbim(NullTransport(), origin, IN_FLIGHT), counter, origin)


def _part(name: str) -> Callable[[Counter, str], None]:
    def work(counter: Counter, _: str) -> None:
        from benchmarks.core import parts

        part = parts()[name]
        part()
        while counter.more():
            part()

    return work


def _transport(module: str, name: str, kind: str = "Rbim") -> Callable[[Counter, str], None]:
    def work(counter: Counter, origin: str) -> None:
        from benchmarks import contenders

        transport = getattr(import_module(f"rbim.transports.{module}"), name)
        _carried(lambda origin: getattr(contenders, kind)(transport(), origin, IN_FLIGHT), counter, origin)

    return work


ITEMS = {
    "make": Item(_part("make the operation"), 100, 1000),
    "encode": Item(_part("encode"), 100, 1000),
    "sign": Item(_part("sign"), 100, 1000),
    "decode-success": Item(_part("decode a plain success, seen before"), 100, 1000),
    "decode-failures": Item(_part("decode a list of failures"), 100, 1000),
    "core": Item(_core, 200, 1000),
    "asyncio": Item(_transport("asyncio", "AsyncioTransport"), 200, 1000),
    "asyncio-h11": Item(_transport("asyncio", "AsyncioTransport"), 100, 500, "httptools"),
    "aiohttp": Item(_transport("aiohttp", "AiohttpTransport"), 100, 400),
    "httpx": Item(_transport("httpx", "HttpxTransport"), 60, 240),
    "httpx2": Item(_transport("httpx2", "Httpx2Transport"), 60, 240),
    "fan-out": Item(_transport("asyncio", "AsyncioTransport", "FannedOut"), 200, 1000),
}
"""The figures by name. pyreqwest works in threads of its own, whose instructions differ from run to run."""


def _measured(name: str, origin: str, *, quick: bool) -> dict[str, Any]:
    """Return the processes of one item, or why it cannot run."""
    item = ITEMS[name]
    warm, calls = (20, 20) if quick else (item.warm, item.calls)
    if item.without:
        sys.modules[item.without] = None  # type: ignore[assignment]  # the import system's own way to say that there is none
    counter = Counter(warm, calls)
    try:
        from rbim.clock import SystemClock

        SystemClock.now = lambda _: MOMENT  # type: ignore[method-assign]
        time.time = partial(float, MOMENT.timestamp())
        item.work(counter, origin)
    except Exception as error:  # another tree may lack anything
        return {"item": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"item": name, "processes": counter.processes, "calls": calls}


def main(port: int, *, quick: bool) -> None:
    """Run each item in a process of its own, and print its line."""
    for name in ITEMS:
        sys.stdout.flush()
        number = os.fork()
        if not number:
            print(json.dumps(_measured(name, f"http://127.0.0.1:{port}", quick=quick)), flush=True)
            os._exit(0)
        os.waitpid(number, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counted")
    parser.add_argument("port", type=int)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    main(options.port, quick=options.quick)
