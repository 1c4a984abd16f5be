"""CPU time of a call: rbim over each transport, beside clients written by hand and the least that Python can do.

As many tasks as calls are in flight do the work again and again, on asyncio's own loop, in one process on one core; the
target is a process on another. What is measured begins once connections are open, the first crowd has dispersed and the
code is warm. A burst is the other way to be busy: all calls at once, then nothing until each is answered.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING

from attrs import field, frozen

from benchmarks.floor import Floor
from benchmarks.httpload import on_cores, process
from benchmarks.peers import Aiohttp, Httpx, Httpx2, Pyreqwest, Requests
from benchmarks.results import Goal, Result, Table, versions
from benchmarks.work import ACCOUNTS, APP_ID, APP_TOKEN, GROUP, TIMEOUT, Lap, Stopwatch, once, together
from rbim import AsyncClient, Credentials, Limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from benchmarks.httpload import Served
    from benchmarks.results import Options
    from benchmarks.work import Carrier
    from rbim.http import Transport

__all__ = ["CLIENTS", "CORE", "FLOOR", "PACKAGES", "Contender", "Plan", "Rbim", "run", "turn"]

CORE = 0
PACKAGES = ("httptools", "orjson", "httpx", "httpx2", "aiohttp", "pyreqwest", "requests")
LATENCY = 0.02
CROWDS = 5  # rounds of answers until those who began together have dispersed
SATURATED = 0.9


@frozen(kw_only=True)
class Plan:
    """How much is measured: calls in flight, and in a burst; seconds of one figure, and of what goes before it.

    What took more than ``once`` seconds is not measured again; what took more than ``long`` without latency is left out
    with it, since it is the same there. Neither what is measured nor what goes
    before it lasts for more than ``most`` seconds.
    """

    in_flight: tuple[int, ...] = (1, 10, 100, 1000)
    bursts: tuple[int, ...] = (100, 1000)
    seconds: float = 0.25
    warm: float = 0.05
    once: float = 10.0
    long: float = 20.0
    most: float = 12.0


QUICK = Plan(in_flight=(1, 10), bursts=(10,), seconds=0.01, warm=0.01)


class Rbim:
    """rbim's client; each call makes its operation."""

    def __init__(self, transport: Transport, origin: str, in_flight: int) -> None:
        self._in_flight = in_flight
        self.client = AsyncClient(
            base_url=origin,
            credentials=Credentials(app_id=APP_ID, app_token=APP_TOKEN),
            transport=transport,
            limits=Limits(concurrency=in_flight),
            timeout=TIMEOUT,
            deadline=2 * TIMEOUT,  # as by default, an attempt may take less than the call
        )
        invite = self.client.groups.invite
        self.invite: Callable[[int], Awaitable[object]] = lambda _: invite(group_id=GROUP, members=ACCOUNTS)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    async def run(self, more: Callable[[], bool], /) -> None:
        """Let each task invite once, and again for as long as ``more`` says so."""
        await together(self.invite, self._in_flight, more)


@frozen
class Contender:
    """One row: what it is called, how it is made for an address and so many in flight, and the modules it needs.

    ``bursts`` says that it can begin as many calls at once as it is told.
    """

    name: str
    make: Callable[[str, int], Carrier]
    needs: str = ""
    bursts: bool = True

    @property
    def missing(self) -> bool:
        """Whether what it needs is not installed."""
        return bool(self.needs) and find_spec(self.needs) is None


def _rbim(module: str, name: str, needs: str) -> Contender:
    def make(origin: str, in_flight: int) -> Rbim:
        transport = getattr(import_module(f"rbim.transports.{module}"), name)
        return Rbim(transport(), origin, in_flight)

    return Contender(f"rbim over {name}", make, needs)


FLOOR = Contender("bytes-level floor", Floor)
CLIENTS = (
    _rbim("asyncio", "AsyncioTransport", "httptools"),
    _rbim("pyreqwest", "PyreqwestTransport", "pyreqwest"),
    _rbim("aiohttp", "AiohttpTransport", "aiohttp"),
    _rbim("httpx", "HttpxTransport", "httpx"),
    _rbim("httpx2", "Httpx2Transport", "httpx2"),
    Contender("pyreqwest by hand", Pyreqwest, "pyreqwest"),
    Contender("aiohttp by hand", Aiohttp, "aiohttp"),
    Contender("httpx by hand", Httpx, "httpx"),
    Contender("httpx2 by hand", Httpx2, "httpx2"),
    Contender("requests in 32 threads", Requests, "requests", bursts=False),
    FLOOR,
)
FEW = ("rbim over AsyncioTransport", "rbim over HttpxTransport", "httpx by hand", FLOOR.name)

GOALS = (
    ("rbim over HttpxTransport", "httpx by hand", 100, 0.25),
    ("rbim over HttpxTransport", "httpx by hand", 1000, 0.02),
    ("rbim over AiohttpTransport", "aiohttp by hand", 100, 1.2),
    ("rbim over PyreqwestTransport", "pyreqwest by hand", 100, 1.3),
    ("rbim over AsyncioTransport", "aiohttp by hand", 100, 0.40),
    ("rbim over AsyncioTransport", "pyreqwest by hand", 100, 0.75),
    ("rbim over AsyncioTransport", FLOOR.name, 100, 3.0),
)
CROWDED = 1.3  # at most: the cost at 1000 in flight as a multiple of that at 10


async def turn(contender: Contender, served: Served, in_flight: int, plan: Plan) -> tuple[Lap, Lap | None]:
    """Measure one client with so many in flight: at work on and on, then in bursts where the plan has any of that size."""
    stopwatch = Stopwatch(
        skip=CROWDS * in_flight,
        warm=plan.warm,
        count=in_flight,
        seconds=plan.seconds,
        most=plan.most,
        elsewhere=lambda: served.cpu,
    )
    async with contender.make(f"http://127.0.0.1:{served.port}", in_flight) as carrier:
        gc.collect()
        await carrier.run(stopwatch.more)
        assert stopwatch.lap is not None
        bursts = contender.bursts and in_flight in plan.bursts
        return stopwatch.lap, await _burst(carrier, in_flight, plan.seconds) if bursts else None


async def _burst(carrier: Carrier, in_flight: int, seconds: float) -> Lap:
    count = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while not count or time.perf_counter() - wall < seconds:
        await carrier.run(once)
        count += in_flight
    return Lap(count, time.process_time() - cpu, time.perf_counter() - wall, 0.0)


@frozen
class _Laps:
    """What was measured with one latency, by client and in flight."""

    steady: dict[tuple[str, int], list[Lap]] = field(factory=lambda: defaultdict(list))
    bursts: dict[tuple[str, int], list[Lap]] = field(factory=lambda: defaultdict(list))
    spent: dict[tuple[str, int], float] = field(factory=lambda: defaultdict(float))
    saturated: set[str] = field(factory=set[str])

    def measure(self, contender: Contender, served: Served, in_flight: int, plan: Plan) -> None:
        """Measure once more, unless it took too long already."""
        key = contender.name, in_flight
        if self.spent[key] > plan.once:
            return
        began = time.perf_counter()
        lap, burst = asyncio.run(turn(contender, served, in_flight, plan))
        self.spent[key] += time.perf_counter() - began
        self.steady[key].append(lap)
        if lap.elsewhere / lap.wall > SATURATED:
            self.saturated.add(f"{contender.name} ({in_flight:,} in flight)")
        if burst is not None:
            self.bursts[key].append(burst)

    def table(self, title: str, plan: Plan, note: str = "") -> Table:
        """Return the CPU ms of 1000 calls."""
        return _table(title, self.steady, plan.in_flight, lambda lap: lap.ms, note)


def _table(
    title: str, laps: dict[tuple[str, int], list[Lap]], in_flight: Sequence[int], of: Callable[[Lap], float], note: str = ""
) -> Table:
    names = list(dict.fromkeys(name for name, _ in laps))
    cells = {key: median(of(lap) for lap in found) for key, found in laps.items() if found}
    rows = tuple((name, *(cells.get((name, number)) for number in in_flight)) for name in names)
    return Table(title=title, columns=("client", *map(str, in_flight)), rows=rows, note=note)


def run(options: Options) -> Result:
    """Measure all clients that are installed."""
    plan = QUICK if options.quick else Plan()
    clients = [client for client in CLIENTS if not client.missing and (not options.quick or client.name in FEW)]
    with on_cores(CORE):
        with process("benchmarks.target") as served:
            at_once = _measured(clients, served, plan, options.rounds)
        slow = {key for key, spent in at_once.spent.items() if spent > plan.long}
        with process("benchmarks.target", "--latency", str(LATENCY)) as served:
            late = _measured(clients, served, plan, max(1, options.rounds // 3), skip=slow)
    return Result(
        part="throughput",
        tables=tuple(_tables(at_once, late, plan)),
        goals=tuple(_goals(at_once)),
        notes=tuple(_notes(at_once, late, slow)),
    )


def _measured(
    clients: Iterable[Contender], served: Served, plan: Plan, rounds: int, skip: Iterable[tuple[str, int]] = ()
) -> _Laps:
    """Measure in interleaved rounds: all of them with 100 in flight, half of them with any other number."""
    laps = _Laps()
    for number in range(rounds):
        for in_flight in plan.in_flight:
            if number < (rounds + 1) // 2 or in_flight == 100:  # noqa: PLR2004  # what most goals are about
                for contender in clients:
                    if (contender.name, in_flight) not in skip:
                        laps.measure(contender, served, in_flight, plan)
    return laps


def _tables(at_once: _Laps, late: _Laps, plan: Plan) -> Iterable[Table]:
    yield at_once.table("CPU ms per 1000 calls, no latency, by calls in flight", plan)
    yield late.table(f"CPU ms per 1000 calls, {LATENCY * 1000:.0f} ms latency, by calls in flight", plan)
    yield _table(
        "Calls per second, no latency, by calls in flight", at_once.steady, plan.in_flight, lambda lap: lap.count / lap.wall
    )
    yield _table(
        "Bursts: CPU ms per 1000 calls where so many begin at once, over open connections",
        at_once.bursts,
        plan.bursts,
        lambda lap: lap.ms,
    )


def _goals(laps: _Laps) -> Iterable[Goal]:
    for ours, theirs, in_flight, at_most in GOALS:
        for kind, measured in (("", laps.steady), (", bursts", laps.bursts)):
            mine, others = measured.get((ours, in_flight)), measured.get((theirs, in_flight))
            if mine and others and (not kind or in_flight != 100):  # noqa: PLR2004  # bursts of 100 have no goal
                yield Goal(
                    name=f"{ours} / {theirs}, {in_flight} in flight{kind}", value=_ratio(mine, others), at_most=at_most
                )
    for name in dict.fromkeys(name for name, _ in laps.steady):
        many, few = laps.steady.get((name, 1000)), laps.steady.get((name, 10))
        if name.startswith("rbim") and many and few:
            yield Goal(name=f"{name}, 1000 in flight / 10", value=_ratio(many, few), at_most=CROWDED)


def _ratio(ours: list[Lap], theirs: list[Lap]) -> float:
    """Return the median over the rounds that both took part in."""
    return median(a.ms / b.ms for a, b in zip(ours, theirs, strict=False))


def _notes(at_once: _Laps, late: _Laps, slow: Iterable[tuple[str, int]]) -> Iterable[str]:
    yield f"asyncio's own loop; {versions(*PACKAGES)}."
    yield "requests has no more than 32 calls in flight, whatever its column says."
    missing = [client.name for client in CLIENTS if client.missing]
    if missing:
        yield f"Not installed: {', '.join(missing)}."
    for name, in_flight in sorted(slow):
        yield f"{name}, {in_flight:,} in flight, took too long to be measured with latency as well."
    many, few = (at_once.steady.get((FLOOR.name, number)) for number in (1000, 10))
    if many and few:
        yield f"The floor's own cost with 1000 in flight is {_ratio(many, few):.2f} times that with 10."
    share = max(lap.elsewhere / lap.wall for laps in (at_once, late) for found in laps.steady.values() for lap in found)
    yield f"The target used at most {share:.0%} of its core."
    for laps, latency in ((at_once, "no latency"), (late, "latency")):
        if laps.saturated:
            yield f"More than {SATURATED:.0%} of it, with {latency}, under {', '.join(sorted(laps.saturated))}."
