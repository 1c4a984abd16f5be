"""The CPU time of a call: rbim over each transport, beside hand-written clients and the least that Python can do.

In one process on one core, N tasks do the same work again and again, so that N calls are in flight. The server is a process
on another core. Each of its answers has a head of its own, with the date and a request id, as platforms send them. The
measurement starts when the connections are open, the tasks that began together have spread out, and the code is warm. In a
burst, all calls begin at once, and the next burst begins when all are answered. Unless its name says uvloop, a client runs
on asyncio's own event loop.

*h11* is AsyncioTransport in a process in which httptools cannot be imported.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from benchmarks.certificates import certificates
from benchmarks.contenders import CLIENTS, FLOOR, ON_UVLOOP, SENDS, chosen
from benchmarks.httpload import on_cores, process
from benchmarks.results import Goal, Result, Table, versions
from benchmarks.turns import CORE, SATURATED, Block, Laps, Place, Plan, Processes, interleave, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.contenders import Contender
    from benchmarks.results import Options
    from benchmarks.work import Lap

__all__ = ["FEW", "GOALS", "PACKAGES", "Aim", "Measured", "explanations", "goals", "growth", "run"]

PACKAGES = ("httptools", "orjson", "httpx", "httpx2", "aiohttp", "pyreqwest", "requests", "uvloop")
LATENCY = 0.02
QUICK = Plan(in_flight=(1, 10), bursts=(10,), seconds=0.01, warm=0.01)
HUNDRED = 100

ASYNCIO, H11 = "rbim over AsyncioTransport", "rbim over AsyncioTransport, h11"
HTTPX, AIOHTTP = "rbim over HttpxTransport", "rbim over AiohttpTransport"
BY_HAND = "aiohttp by hand"
FEW = (ASYNCIO, HTTPX, "httpx by hand", FLOOR.name)
HEADS = (ASYNCIO, H11, BY_HAND, FLOOR.name)
NO_TLS = ("requests in 32 threads", "httpx2 by hand")
PLAIN, LATE, TLS, UVLOOP, CONSTANT, UNIQUE, SEND = "plain", "late", "TLS 1.3", "uvloop", "constant heads", "heads", "sends"
GROWTH = 1.5  # at most: the cost with 1000 in flight as a multiple of that with 10


@frozen
class Aim:
    """A ratio of two clients with the same number in flight, and its goal; without a goal, the ratio is only shown."""

    ours: str
    theirs: str
    in_flight: int
    at_most: float | None
    among: str = PLAIN
    bursts: bool = False


GOALS = (
    *(Aim(HTTPX, BY_HAND, number, 1.7, among) for among in (PLAIN, TLS) for number in (10, 100, 1000)),
    Aim(HTTPX, "httpx by hand", 100, 0.15),
    Aim(HTTPX, "httpx by hand", 1000, 0.02),
    Aim(HTTPX, "httpx by hand", 1000, None, bursts=True),
    Aim(HTTPX, "httpx by hand", 100, None, TLS),
    Aim(ASYNCIO, BY_HAND, 100, 0.30),
    Aim(ASYNCIO, BY_HAND, 100, None, CONSTANT),
    Aim(ASYNCIO, BY_HAND, 100, None, TLS),
    Aim(f"{ASYNCIO}, uvloop", f"{BY_HAND}, uvloop", 100, None, UVLOOP),
    Aim(H11, BY_HAND, 100, 0.80),
    Aim(H11, BY_HAND, 100, None, CONSTANT),
    Aim(ASYNCIO, FLOOR.name, 100, 3.5),
    Aim(ASYNCIO, FLOOR.name, 100, None, CONSTANT),
    Aim(f"{ASYNCIO}, uvloop", f"{FLOOR.name}, uvloop", 100, None, UVLOOP),
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
        every = (*CLIENTS, *ON_UVLOOP, *SENDS)
        missing = {contender.name: why for contender in every if (why := processes.missing(contender))}
        if options.quick:
            missing |= {contender.name: "" for contender in CLIENTS if contender.name not in {*FEW, *HEADS}}
        found = _measured(plan, options.rounds, missing, processes)
    tables = tuple(table for table in _tables(found) if table.rows)
    return Result(part="throughput", tables=tables, goals=tuple(goals(found)), notes=tuple(_notes(found, missing)))


def _measured(plan: Plan, rounds: int, missing: dict[str, str], processes: Processes) -> Measured:
    def there(contenders: Iterable[Contender]) -> list[Contender]:
        return [contender for contender in contenders if contender.name not in missing]

    found = Measured(plan, {name: Laps() for name in (PLAIN, LATE, TLS, UVLOOP, CONSTANT, UNIQUE, SEND)})
    many = tuple(number for number in plan.in_flight if number != 1)
    most = (min(HUNDRED, max(many)),)
    steady = evolve(plan, bursts=())
    with process("benchmarks.target") as served, process("benchmarks.target", "--constant") as same:
        place = Place.of(served)
        interleave([Block(found[PLAIN], place, there(CLIENTS), plan.in_flight)], processes, plan, rounds)
        heads = [(found[UNIQUE], place), (found[CONSTANT], Place.of(same))]
        blocks = [Block(laps, where, there(chosen(*HEADS)), most) for laps, where in heads]
        interleave(blocks, processes, steady, rounds)
        interleave([Block(found[UVLOOP], place, there(ON_UVLOOP), many)], processes, steady, rounds)
        interleave([Block(found[SEND], place, there(SENDS), most)], processes, steady, rounds)
    with certificates() as files, process("benchmarks.target", "--certificate", files.server) as served:
        block = Block(
            found[TLS],
            Place.of(served, files.ca),
            there(client for client in CLIENTS if client.name not in NO_TLS),
            many,
            {"httpx by hand": most},
        )
        interleave([block], processes, steady, rounds)
    with process("benchmarks.target", "--latency", str(LATENCY)) as served:
        block = Block(found[LATE], Place.of(served), there(CLIENTS), plan.in_flight)
        for (name, number), spent in found[PLAIN].spent.items():
            if spent > plan.long:
                block.only[name] = tuple(each for each in block.only.get(name, plan.in_flight) if each != number)
        interleave([block], processes, steady, max(1, rounds // 3))
    return found


def _tables(found: Measured) -> Iterable[Table]:
    plan = found.plan
    many = tuple(number for number in plan.in_flight if number != 1)
    yield _table("CPU ms per 1000 calls, no latency, by calls in flight", found[PLAIN].steady, plan.in_flight)
    yield _table(
        f"CPU ms per 1000 calls, {LATENCY * 1000:.0f} ms latency, by calls in flight", found[LATE].steady, plan.in_flight
    )
    yield _table("CPU ms per 1000 calls, TLS 1.3, by calls in flight", found[TLS].steady, many)
    yield _table("CPU ms per 1000 calls, uvloop, by calls in flight", found[UVLOOP].steady, many)
    yield _heads(found)
    yield _table(
        "Calls per second, limited only by the client, no latency, by calls in flight",
        found[PLAIN].steady,
        plan.in_flight,
        lambda lap: lap.count / lap.wall,
    )
    yield _table(
        "Bursts: CPU ms per 1000 calls that begin at once, over open connections, by size of the burst",
        found[PLAIN].bursts,
        plan.bursts,
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


def _heads(found: Measured) -> Table:
    rows: list[tuple[str | float | None, ...]] = []
    number = max((number for _, number in found[UNIQUE].steady), default=0)
    for name in dict.fromkeys(name for name, _ in found[UNIQUE].steady):
        key = name, number
        rows.append((name, *(found[each].cost(*key) for each in (UNIQUE, CONSTANT)), _across(found, key)))
    title = f"CPU ms per 1000 calls by the heads of the answers, {number} in flight"
    return Table(title=title, columns=("client", "unique", "constant", "unique / constant"), rows=tuple(rows), digits=2)


def _across(found: Measured, key: tuple[str, int]) -> float | None:
    return ratio(found[UNIQUE].steady.get(key), found[CONSTANT].steady.get(key))


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
        laps = found[aim.among].bursts if aim.bursts else found[aim.among].steady
        value = ratio(laps.get((aim.ours, aim.in_flight)), laps.get((aim.theirs, aim.in_flight)))
        if value is not None:
            place = "" if aim.among in {PLAIN, SEND, UVLOOP} else f", {aim.among}"
            name = f"{aim.ours} / {aim.theirs}, {aim.in_flight} in flight{place}{', bursts' * aim.bursts}"
            yield Goal(name=name, value=value, at_most=aim.at_most)
    for name, _, _, own, _ in growth(found[PLAIN]).rows:
        if isinstance(own, float):
            ours = str(name).startswith("rbim")
            yield Goal(name=f"{name}, 1000 in flight / 10", value=own, at_most=GROWTH if ours else None)


def _notes(found: Measured, missing: dict[str, str]) -> Iterable[str]:
    yield f"{versions(*PACKAGES)}."
    yield "requests has at most 32 calls in flight, also in the columns with more."
    yield from (f"Left out: {name} ({why})." for name, why in missing.items() if why)
    for (name, in_flight), spent in sorted(found[PLAIN].spent.items()):
        if spent > found.plan.long:
            yield f"{name}, {in_flight:,} in flight, took too long: not measured with latency."
    for (name, in_flight), laps in sorted(found[PLAIN].steady.items()):
        if found[PLAIN].spent[name, in_flight] > found.plan.once:
            rounds = f"{len(laps)} round{'s' * (len(laps) > 1)}"
            yield f"{name}, {in_flight:,} in flight, is so slow that it was measured in {rounds} only."
    yield from explanations(found[PLAIN])
    every = [(name, lap) for name, laps in found.at.items() for measured in laps.steady.values() for lap in measured]
    share = max(lap.elsewhere / lap.wall for _, lap in every)
    yield f"The server used at most {share:.0%} of its core."
    for name, laps in found.at.items():
        if laps.saturated:
            yield f"More than {SATURATED:.0%} of it ({name}), under {', '.join(sorted(laps.saturated))}."


def explanations(laps: Laps) -> Iterable[str]:
    """Set the growth of each transport whose cost grows too much beside that of the floor."""
    rows = {str(name): cells for name, *cells in growth(laps).rows}
    if FLOOR.name not in rows:
        return
    few, many, floor, _ = (float(cell or 0) for cell in rows[FLOOR.name])
    for name, cells in rows.items():
        at_ten, at_thousand, own, rest = (float(cell or 0) for cell in cells)
        if name.startswith("rbim") and own > GROWTH:
            verdict = "within the goal" if rest <= GROWTH else "still too much"
            yield (
                f"{name}: with 1000 in flight a call costs {own:.2f} times as much as with 10, more than {GROWTH:g}. "
                f"Divided by the floor's own growth of {floor:.2f}, that is {rest:.2f}, {verdict}. In CPU ms per 1000 "
                f"calls, it grows by {at_thousand - at_ten:.1f}, the floor by {many - few:.1f}."
            )
