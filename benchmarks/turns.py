"""Turns of a benchmark of clients: one client, one server, N calls in flight; in this process or in one without a module.

Run by others: python -m benchmarks.turns MODULE. It hides the module from its imports, prints 0, and answers each line on
standard input, a turn as JSON, with its measurements.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, field, frozen

from benchmarks.httpload import keep_to_core, process
from benchmarks.work import Lap, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.contenders import Contender
    from benchmarks.httpload import Served

__all__ = ["CORE", "Block", "Laps", "Place", "Plan", "Processes", "interleave", "ratio", "turn"]

MODULE = "benchmarks.turns"
CORE = 0
SPREAD = 5  # rounds of answers until tasks that began together have spread out
SATURATED = 0.9


@frozen(kw_only=True)
class Plan:
    """The plan: calls in flight; ``seconds`` per figure, and ``warm`` seconds before it.

    A figure that took more than ``once`` seconds is not measured again. The measurement and the time before it last at most
    ``most`` seconds each.
    """

    in_flight: tuple[int, ...] = (1, 10, 100, 1000)
    seconds: float = 0.25
    warm: float = 0.05
    once: float = 10.0
    most: float = 12.0


@frozen
class Place:
    """A server: its origin, its authority's certificate (None: no TLS), and a function that returns its CPU seconds."""

    origin: str
    ca: str | None = None
    cpu: Callable[[], float] = float

    @classmethod
    def of(cls, served: Served, ca: str | None = None) -> Place:
        """Return the place of a server in its own process."""
        return cls(f"{'https' if ca else 'http'}://127.0.0.1:{served.port}", ca, lambda: served.cpu)


async def turn(contender: Contender, place: Place, in_flight: int, plan: Plan) -> Lap:
    """Measure one client with ``in_flight`` calls."""
    stopwatch = Stopwatch(
        skip=SPREAD * in_flight,
        warm=plan.warm,
        count=in_flight,
        seconds=plan.seconds,
        most=plan.most,
        elsewhere=place.cpu,
    )
    gc.collect()
    gc.freeze()  # the modules of the other clients, which a process with one client does not have
    async with contender.make(place.origin, in_flight, place.ca) as carrier:
        gc.collect()
        await carrier.run(stopwatch.more)
        assert stopwatch.lap is not None
        return stopwatch.lap


class Processes(ExitStack):
    """The processes in which a module is hidden: each is started when it is needed, and ends with the block."""

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[str, Served] = {}

    def turn(self, contender: Contender, place: Place, in_flight: int, plan: Plan) -> Lap:
        """Measure one client, in its process."""
        if contender.without:
            asked = {"contender": contender.name, "place": [place.origin, place.ca]}
            answer = self._ask(contender.without, {**asked, "in_flight": in_flight, "plan": asdict(plan)})
            return Lap(*answer["lap"])
        return asyncio.run(turn(contender, place, in_flight, plan))

    def missing(self, contender: Contender) -> str:
        """Return what prevents the measurement of a client here, or an empty text."""
        if contender.missing:
            return f"{contender.missing} is not installed"
        return str(self._ask(contender.without, {"contender": contender.name})["error"]) if contender.without else ""

    def _ask(self, without: str, document: dict[str, Any]) -> dict[str, Any]:
        if without not in self._started:
            self._started[without] = self.enter_context(process(MODULE, without))
        line = self._started[without].ask(json.dumps(document))
        if not line:
            raise RuntimeError(f"the process without {without} ended: see its message on standard error")
        answer: dict[str, Any] = json.loads(line)
        return answer


@frozen
class Laps:
    """The measurements at one place, by client and calls in flight."""

    steady: dict[tuple[str, int], list[Lap]] = field(factory=lambda: defaultdict(list))
    spent: dict[tuple[str, int], float] = field(factory=lambda: defaultdict(float))
    saturated: set[str] = field(factory=set[str])

    def add(self, key: tuple[str, int], steady: Lap) -> None:
        """Keep the measurements of one turn."""
        self.steady[key].append(steady)
        if steady.elsewhere / steady.wall > SATURATED:
            self.saturated.add(f"{key[0]} ({key[1]:,} in flight)")

    def cost(self, name: str, in_flight: int) -> float | None:
        """Return the CPU ms of 1000 calls of a client, or None if it was not measured."""
        found = self.steady.get((name, in_flight))
        return median(lap.ms for lap in found) if found else None

    def ratio(self, ours: tuple[str, int], theirs: tuple[str, int]) -> float | None:
        """Return the median, over the rounds that both have, of the ratio of two costs; None without such rounds."""
        return ratio(self.steady.get(ours), self.steady.get(theirs))


def ratio(ours: Sequence[Lap] | None, theirs: Sequence[Lap] | None) -> float | None:
    """Return the median ratio of the costs over the rounds that both clients have, or None if there are none."""
    if not ours or not theirs:
        return None
    return median(a.ms / b.ms for a, b in zip(ours, theirs, strict=False))


@frozen
class Block:
    """Clients that are measured at one place; ``in_flight`` replaces the plan's, ``only`` does so for one client."""

    laps: Laps
    place: Place
    contenders: Sequence[Contender]
    in_flight: tuple[int, ...]
    only: dict[str, tuple[int, ...]] = field(factory=dict[str, tuple[int, ...]])

    def wants(self, contender: Contender, in_flight: int) -> bool:
        """Return whether a client is measured with so many calls in flight."""
        return in_flight in self.only.get(contender.name, self.in_flight)


def interleave(blocks: Iterable[Block], processes: Processes, plan: Plan, rounds: int) -> None:
    """Measure all blocks in interleaved rounds; with one call in flight, which no goal is about, in half of them."""
    blocks = list(blocks)
    numbers = sorted({number for block in blocks for number in (*block.in_flight, *sum(block.only.values(), ()))})
    for round_number in range(rounds):
        for in_flight in numbers:
            if in_flight == 1 and round_number >= (rounds + 1) // 2:
                continue
            for block in blocks:
                for contender in block.contenders:
                    if block.wants(contender, in_flight):
                        _measure(block, contender, in_flight, processes, plan)


def _measure(block: Block, contender: Contender, in_flight: int, processes: Processes, plan: Plan) -> None:
    """Measure once more, unless the measurements already took too long."""
    key = contender.name, in_flight
    if block.laps.spent[key] > plan.once:
        return
    began = time.perf_counter()
    found = processes.turn(contender, block.place, in_flight, plan)
    block.laps.spent[key] += time.perf_counter() - began
    block.laps.add(key, found)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the measurements of a turn as JSON values, or only whether the client can be measured."""
    from benchmarks.contenders import ALL

    contender = evolve(ALL[question["contender"]], without="")
    if "place" not in question:
        try:
            contender.make("http://127.0.0.1:1", 1, None)
        except ImportError as error:
            return {"error": str(error)}
        return {"error": ""}
    plan = question["plan"]
    plan |= {"in_flight": tuple(plan["in_flight"])}
    lap = asyncio.run(turn(contender, Place(*question["place"]), question["in_flight"], Plan(**plan)))
    return {"lap": [lap.count, lap.cpu, lap.wall, lap.elsewhere]}


def main(without: str) -> None:
    """Answer turns until standard input ends."""
    sys.modules[without] = None  # type: ignore[assignment]  # the import system's own way to say that there is none
    keep_to_core(CORE)
    print(0, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
