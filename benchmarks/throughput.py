"""The CPU time of a call: rbim over each transport, beside hand-written clients and the least that Python can do.

In one process on one core, N tasks do the same work again and again, so that N calls are in flight. The server is a process
on another core. Each of its answers has a head of its own, with the date and a request id, as platforms send them. The
measurement starts when the connections are open, the tasks that began together have spread out, and the code is warm.

*h11* is AsyncioTransport in a process in which httptools cannot be imported.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks.certificates import certificates
from benchmarks.contenders import CLIENTS, FLOOR, SENDS
from benchmarks.httpload import on_cores, process
from benchmarks.results import Goal, Result, Table, versions
from benchmarks.turns import CORE, SATURATED, Block, Laps, Place, Plan, Processes, interleave, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.contenders import Contender
    from benchmarks.results import Options
    from benchmarks.work import Lap

__all__ = ["run"]

PACKAGES = ("httptools", "orjson", "httpx", "httpx2", "aiohttp", "pyreqwest")
QUICK = Plan(in_flight=(1, 10), seconds=0.01, warm=0.01)
HUNDRED = 100

ASYNCIO, H11 = "rbim over AsyncioTransport", "rbim over AsyncioTransport, h11"
HTTPX, AIOHTTP = "rbim over HttpxTransport", "rbim over AiohttpTransport"
BY_HAND = "aiohttp by hand"
FEW = (ASYNCIO, H11, HTTPX, BY_HAND, "httpx by hand", FLOOR.name)
PLAIN, TLS, SEND = "plain", "TLS 1.3", "sends"
GROWTH = 1.5  # at most: the cost with 1000 in flight as a multiple of that with 10


@frozen
class Aim:
    """A ratio of two clients with the same number in flight, and its goal; without a goal, the ratio is only shown."""

    ours: str
    theirs: str
    in_flight: int
    at_most: float | None
    among: str = PLAIN


GOALS = (
    Aim(HTTPX, BY_HAND, 100, 1.3),
    *(Aim(HTTPX, BY_HAND, number, 1.7) for number in (10, 1000)),
    *(Aim(HTTPX, BY_HAND, number, 1.7, TLS) for number in (10, 100, 1000)),
    Aim(HTTPX, "httpx by hand", 100, 0.15),
    Aim(HTTPX, "httpx by hand", 1000, 0.02),
    Aim(HTTPX, "httpx by hand", 100, None, TLS),
    Aim(ASYNCIO, BY_HAND, 100, 0.30),
    Aim(ASYNCIO, BY_HAND, 100, None, TLS),
    Aim(H11, BY_HAND, 100, 0.80),
    Aim(ASYNCIO, FLOOR.name, 100, 3.2),
    Aim(ASYNCIO, "pyreqwest by hand", 100, 0.75),
    Aim(AIOHTTP, BY_HAND, 100, 1.2),
    Aim("fan_out", "send", 100, 1.4, SEND),
)


@frozen
class Measured:
    """The measurements at each place, and the plan that they followed."""

    plan: Plan
    at: dict[str, Laps]

    def __getitem__(self, name: str) -> Laps:
        return self.at[name]


def run(options: Options) -> Result:
    """Measure all clients that are installed."""
    plan = QUICK if options.quick else Plan()
    with on_cores(CORE), Processes() as processes:
        every = (*CLIENTS, *SENDS)
        missing = {contender.name: why for contender in every if (why := processes.missing(contender))}
        if options.quick:
            missing |= {contender.name: "" for contender in CLIENTS if contender.name not in FEW}
        found = _measured(plan, options.rounds, missing, processes)
    tables = tuple(table for table in _tables(found) if table.rows)
    return Result(part="throughput", tables=tables, goals=tuple(goals(found)), notes=tuple(_notes(found, missing)))


def _measured(plan: Plan, rounds: int, missing: dict[str, str], processes: Processes) -> Measured:
    def there(contenders: Iterable[Contender]) -> list[Contender]:
        return [contender for contender in contenders if contender.name not in missing]

    found = Measured(plan, {name: Laps() for name in (PLAIN, TLS, SEND)})
    many = tuple(number for number in plan.in_flight if number != 1)
    most = (min(HUNDRED, max(many)),)
    with process("benchmarks.target") as served:
        place = Place.of(served)
        interleave([Block(found[PLAIN], place, there(CLIENTS), plan.in_flight)], processes, plan, rounds)
        interleave([Block(found[SEND], place, there(SENDS), most)], processes, plan, rounds)
    with certificates() as files, process("benchmarks.target", "--certificate", files.server) as served:
        clients = there(client for client in CLIENTS if client.name != "httpx2 by hand")
        block = Block(found[TLS], Place.of(served, files.ca), clients, many, {"httpx by hand": most})
        interleave([block], processes, plan, rounds)
    return found


def _tables(found: Measured) -> Iterable[Table]:
    plan = found.plan
    many = tuple(number for number in plan.in_flight if number != 1)
    yield _table("CPU ms per 1000 calls, no latency, by calls in flight", found[PLAIN].steady, plan.in_flight)
    yield _table("CPU ms per 1000 calls, TLS 1.3, by calls in flight", found[TLS].steady, many)
    yield _table(
        "Calls per second, limited only by the client, no latency, by calls in flight",
        found[PLAIN].steady,
        plan.in_flight,
        lambda lap: lap.count / lap.wall,
    )
    yield _table(
        "Many operations over AsyncioTransport: CPU ms per 1000 operations, by operations in flight",
        found[SEND].steady,
        (min(HUNDRED, max(many)),),
    )
    yield growth(found[PLAIN])


def _table(
    title: str,
    laps: dict[tuple[str, int], list[Lap]],
    in_flight: Sequence[int],
    of: Callable[[Lap], float] = lambda lap: lap.ms,
) -> Table:
    names = list(dict.fromkeys(name for name, _ in laps))
    cells = {key: median(of(lap) for lap in found) for key, found in laps.items() if found}
    rows = tuple((name, *(cells.get((name, number)) for number in in_flight)) for name in names)
    return Table(title=title, columns=("client", *map(str, in_flight)), rows=rows)


def growth(laps: Laps) -> Table:
    """Return the cost with 1000 calls in flight beside that with 10, and both beside the floor's."""
    floor = laps.ratio((FLOOR.name, 1000), (FLOOR.name, 10))
    rows: list[tuple[str | float | None, ...]] = []
    for name in dict.fromkeys(name for name, _ in laps.steady):
        own = laps.ratio((name, 1000), (name, 10))
        if own is not None and (name.startswith("rbim") or name in {BY_HAND, "pyreqwest by hand", FLOOR.name}):
            costs = laps.cost(name, 10), laps.cost(name, 1000)
            rows.append((name, *costs, own, own / floor if floor else None))
    return Table(
        title="Growth of the cost of a call with the calls in flight: CPU ms per 1000 calls",
        columns=("client", "10", "1000", "1000 / 10", "relative to the floor's"),
        rows=tuple(rows),
        digits=2,
    )


def goals(found: Measured) -> Iterable[Goal]:
    """Return every ratio that was measured, with its goal."""
    for aim in GOALS:
        laps = found[aim.among].steady
        value = ratio(laps.get((aim.ours, aim.in_flight)), laps.get((aim.theirs, aim.in_flight)))
        if value is not None:
            name = f"{aim.ours} / {aim.theirs}, {aim.in_flight} in flight{f', {TLS}' * (aim.among == TLS)}"
            yield Goal(name=name, value=value, at_most=aim.at_most)
    for name, _, _, own, _ in growth(found[PLAIN]).rows:
        if isinstance(own, float):
            ours = str(name).startswith("rbim")
            yield Goal(name=f"{name}, 1000 in flight / 10", value=own, at_most=GROWTH if ours else None)


def _notes(found: Measured, missing: dict[str, str]) -> Iterable[str]:
    yield f"{versions(*PACKAGES)}."
    yield from (f"Left out: {name} ({why})." for name, why in missing.items() if why)
    for (name, in_flight), laps in sorted(found[PLAIN].steady.items()):
        if found[PLAIN].spent[name, in_flight] > found.plan.once:
            rounds = f"{len(laps)} round{'s' * (len(laps) > 1)}"
            yield f"{name}, {in_flight:,} in flight, is so slow that it was measured in {rounds} only."
    every = [(name, lap) for name, laps in found.at.items() for measured in laps.steady.values() for lap in measured]
    share = max(lap.elsewhere / lap.wall for _, lap in every)
    yield f"The server used at most {share:.0%} of its core."
    for name, at in found.at.items():
        if at.saturated:
            yield f"More than {SATURATED:.0%} of it ({name}), under {', '.join(sorted(at.saturated))}."
