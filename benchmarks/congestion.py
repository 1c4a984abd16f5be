"""What is answered of a platform that throttles, on emulated time.

Run: python -m benchmarks congestion

The platform has a token bucket. Calls come at random, each with ten seconds for its answer; the client has no rates. *used*
is the share of what the platform could have answered from second 5 on, *after* the share of calls that are answered from 5 s
after the end of an overload of three times the limit for three seconds, when 0.8 of the limit is asked for.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from benchmarks.results import Goal, Result, Table

if TYPE_CHECKING:
    from benchmarks.results import Options

__all__ = ["run"]

LIMITS, BURSTS, ASKED, OFFERED = (20, 50, 200), (1, 5, 0), (None, "1", "2", "5", "date"), (0.8, 1.1, 2.0, 5.0)
QUICK: tuple[Any, Any, Any] = ((50,), (5,), ("2",))
SECONDS, FROM = 20.0, 5.0
USED, AFTER = 0.8, 0.95
OVERLOAD = 3.0


def emulated(limit: int, burst: int, asked: str | None, offered: Any) -> tuple[Any, Any]:
    """Return the calls and the platform, after all have ended."""
    from rbim import Limits
    from tests.helpers import loads, throttling

    calls, platform = throttling.drawn(offered, SECONDS), throttling.throttling(limit, burst, asked)
    loads.run(calls, platform, Limits())
    return calls, platform


def figures(limit: int, burst: int, asked: str | None) -> tuple[list[float], float]:
    """Return what is used at each load, and what is answered after an overload."""
    used = [
        emulated(limit, burst, asked, lambda _, times=times: times * limit)[1].rate(FROM, SECONDS)
        / (limit * min(1.0, times))
        for times in OFFERED
    ]
    calls, _ = emulated(limit, burst, asked, lambda at: (3 if at < OVERLOAD else 0.8) * limit)
    late = [call for call in calls if call.at >= OVERLOAD + FROM]
    return used, sum(call.in_time for call in late) / len(late)


def run(options: Options) -> Result:
    """Return what is used of platforms that throttle, as one part of the benchmarks."""
    limits, bursts, asked = QUICK if options.quick else (LIMITS, BURSTS, ASKED)
    rows: list[tuple[str | float | None, ...]] = []
    least, recovered = 1.0, 1.0
    for limit, burst in product(limits, bursts):
        found = [figures(limit, burst or limit, each) for each in asked]
        used = [min(each) for each in zip(*(used for used, _ in found), strict=True)]
        after = min(after for _, after in found)
        least, recovered = min(least, *used), min(recovered, after)
        rows.append((f"{limit}/s, burst {burst or limit}", *(100 * each for each in (*used, after))))
    goals = (
        Goal(name="least share used, emulated", value=least, at_least=USED),
        Goal(name="least share answered after an overload, emulated", value=recovered, at_least=AFTER),
    )
    columns = ("", *(f"used at {each:g}" for each in OFFERED), "after")
    title = "Throttled calls on emulated time, % of what is possible, the least of all Retry-After"
    return Result(part="congestion", tables=(Table(title=title, columns=columns, rows=tuple(rows)),), goals=goals)
