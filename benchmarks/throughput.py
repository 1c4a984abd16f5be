"""The CPU time of a call: rbim over each transport, beside hand-written clients and the least that Python can do.

On asyncio's own loop, in one process on one core, N tasks do the same work again and again, so that N calls are in flight.
The server is a process on another core. The measurement starts when the connections are open, the tasks that began together
have spread out, and the code is warm. In a burst, all calls begin at once, and the next burst begins when all are answered.
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
SPREAD = 5  # rounds of answers until tasks that began together have spread out
SATURATED = 0.9


@frozen(kw_only=True)
class Plan:
    """The plan: calls in flight and in a burst; ``seconds`` per figure, and ``warm`` seconds before it.

    A figure that took more than ``once`` seconds is not measured again. One that took more than ``long`` seconds without
    latency is left out with latency, because it would be the same. The measurement and the time before it last at most
    ``most`` seconds each.
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
    """The client of rbim; each call makes its operation."""

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
        """Let each task invite once, and again while ``more`` returns True."""
        await together(self.invite, self._in_flight, more)


@frozen
class Contender:
    """One row: its name, the function that makes it for an origin and a number in flight, and the module that it needs.

    ``bursts``: whether it can begin any number of calls at once.
    """

    name: str
    make: Callable[[str, int], Carrier]
    needs: str = ""
    bursts: bool = True

    @property
    def missing(self) -> bool:
        """Whether the module that it needs is not installed."""
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
CONCURRENCY_GOAL = 1.3  # at most: the cost at 1000 in flight as a multiple of that at 10


async def turn(contender: Contender, served: Served, in_flight: int, plan: Plan) -> tuple[Lap, Lap | None]:
    """Measure one client with ``in_flight`` calls: steady work, then bursts if the plan has bursts of this size."""
    stopwatch = Stopwatch(
        skip=SPREAD * in_flight,
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
    """The measurements with one latency, by client and calls in flight."""

    steady: dict[tuple[str, int], list[Lap]] = field(factory=lambda: defaultdict(list))
    bursts: dict[tuple[str, int], list[Lap]] = field(factory=lambda: defaultdict(list))
    spent: dict[tuple[str, int], float] = field(factory=lambda: defaultdict(float))
    saturated: set[str] = field(factory=set[str])

    def measure(self, contender: Contender, served: Served, in_flight: int, plan: Plan) -> None:
        """Measure once more, unless the measurements already took too long."""
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
    """Measure in interleaved rounds: each round with 100 in flight, only half of them with other numbers."""
    laps = _Laps()
    for number in range(rounds):
        for in_flight in plan.in_flight:
            if number < (rounds + 1) // 2 or in_flight == 100:  # noqa: PLR2004  # most goals are about 100 in flight
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
        "Bursts: CPU ms per 1000 calls that begin at once, over open connections, by size of the burst",
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
            yield Goal(name=f"{name}, 1000 in flight / 10", value=_ratio(many, few), at_most=CONCURRENCY_GOAL)


def _ratio(ours: list[Lap], theirs: list[Lap]) -> float:
    """Return the median ratio over the rounds that both clients have."""
    return median(a.ms / b.ms for a, b in zip(ours, theirs, strict=False))


def _notes(at_once: _Laps, late: _Laps, slow: Iterable[tuple[str, int]]) -> Iterable[str]:
    yield f"asyncio's own loop; {versions(*PACKAGES)}."
    yield "requests has at most 32 calls in flight, also in the columns with more."
    missing = [client.name for client in CLIENTS if client.missing]
    if missing:
        yield f"Not installed: {', '.join(missing)}."
    for name, in_flight in sorted(slow):
        yield f"{name}, {in_flight:,} in flight, took too long: not measured with latency."
    many, few = (at_once.steady.get((FLOOR.name, number)) for number in (1000, 10))
    if many and few:
        yield f"The floor's own cost with 1000 in flight is {_ratio(many, few):.2f} times that with 10."
    share = max(lap.elsewhere / lap.wall for laps in (at_once, late) for found in laps.steady.values() for lap in found)
    yield f"The server used at most {share:.0%} of its core."
    for laps, latency in ((at_once, "no latency"), (late, "latency")):
        if laps.saturated:
            yield f"More than {SATURATED:.0%} of it, with {latency}, under {', '.join(sorted(laps.saturated))}."
