"""The pace of a job on simulated platforms, in virtual time: the figures are the same on every machine.

Run: python -m benchmarks.steering [--calls 200000]

*share* is the share of the platform's capacity that the job used, after the first 15 seconds. *throttled* is the share of
throttled answers. *recovery* is the seconds from a change until the job reaches nine tenths of the new capacity for two
seconds. The last line is measured: the CPU time of all decisions about one request.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from typing import TYPE_CHECKING

from rbim.bulk.pace import Pace
from tests.helpers.platform_simulation import INVITE, Platform, simulate  # pyright: ignore[reportUnknownVariableType]  # no types

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT, LOWER, HIGHER = 200, 50, 400
CHANGES = (40, 100, 160)  # seconds: to the lower limit, to the higher one, end
SETTLED = 15  # seconds
GOAL = 5.0  # microseconds


def line(name: str, share: float, throttled: float, recovery: str = "", latency: str = "") -> None:
    """Print a line of the table."""
    print(f"{name:<52} {share:>7.1%} {throttled:>9.2%} {recovery:>9} {latency:>10}", flush=True)


def always(limit: float) -> Callable[[float], float]:
    """Return a limit that does not change."""
    return lambda _now: limit


def limits() -> None:
    """Simulate a limit of requests per second."""
    for latency in (0.001, 0.1, 1.0):
        for sigma in (0.0, 0.3):
            for retry_after in (None, 1.0):
                platform = Platform(limit=always(LIMIT), latency=latency, sigma=sigma, retry_after=retry_after)
                record = simulate(Pace(concurrency=1000), platform, 75)
                name = f"{LIMIT}/s, {latency * 1000:g} ms{', noisy' * bool(sigma)}{', Retry-After: 1' * bool(retry_after)}"
                line(name, record.rate(SETTLED, 75) / LIMIT, record.throttled(SETTLED, 75))


def changes() -> None:
    """Simulate a limit that changes."""
    lower, higher, end = CHANGES
    for latency in (0.001, 0.1):
        for retry_after in (None, 1.0):
            platform = Platform(
                limit=lambda now: LIMIT if now < lower else LOWER if now < higher else HIGHER,
                latency=latency,
                retry_after=retry_after,
            )
            record = simulate(Pace(concurrency=1000), platform, end)
            for begins, ends, limit in ((lower, higher, LOWER), (higher, end, HIGHER)):
                name = f"then {limit}/s, {latency * 1000:g} ms{', Retry-After: 1' * bool(retry_after)}"
                followed = record.recovery(begins + 1, 0.9 * limit, until=ends) + 1
                share = record.rate(begins + SETTLED, ends) / limit
                line(name, share, record.throttled(begins, ends), f"{followed:.1f} s")


def outages() -> None:
    """Simulate an outage of 30 seconds."""
    for limit in (LIMIT, float("inf")):
        for latency in (0.001, 0.1) if limit == LIMIT else (0.1,):
            for timeout in (None, 10.0):
                platform = Platform(limit=always(limit), latency=latency, outages=[(30, 60)], timeout=timeout)
                record = simulate(Pace(concurrency=100), platform, 90)
                former = record.rate(SETTLED, 30)
                recovery = record.recovery(60, 0.9 * former)
                name = f"outage, {limit:g}/s, {latency * 1000:g} ms, {'timeouts of 10 s' if timeout else 'refused'}"
                line(name, record.rate(70, 90) / former, record.throttled(70, 90), f"{recovery:.1f} s")


def capacity() -> None:
    """Simulate servers that queue requests."""
    for sigma in (0.0, 0.3, 1.0):
        record = simulate(Pace(concurrency=200), Platform(servers=20, latency=0.05, sigma=sigma), 75)
        possible = 400 / math.exp(sigma**2 / 2)
        times = sorted(seconds for at, seconds in record.latencies if at > SETTLED)
        latency = f"{1000 * statistics.median(times):.0f}/{1000 * times[len(times) * 99 // 100]:.0f} ms"
        line(f"20 servers x 50 ms, spread {sigma:g}", record.rate(SETTLED, 75) / possible, 0, "", latency)


def unlimited() -> None:
    """Simulate a platform without a limit, so that only the concurrency limits the job."""
    for latency, possible in ((0.01, 10_000), (0.1, 1000)):
        for sigma, loss in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.0, 0.3)):
            record = simulate(Pace(concurrency=100), Platform(latency=latency, sigma=sigma, loss=loss), 8)
            share = record.rate(2, 8) / possible * math.exp(sigma**2 / 2) / (1 - loss)
            name = f"no limit, {latency * 1000:g} ms, spread {sigma:g}, losses {loss:.0%}"
            line(name, share, 0, f"{record.recovery(0, 0.9 * possible * (1 - loss), 0.5):.1f} s")


def cost(calls: int) -> float:
    """Return the CPU microseconds of the decisions about one request."""
    pace = Pace(concurrency=100)
    pace.throttled(INVITE, 0.0, None)
    took: list[float] = []
    now = 1.0
    for _ in range(7):
        began = time.process_time()
        for _ in range(calls):
            pace.concurrency()
            now = max(now, pace.earliest(INVITE, now))
            pace.reserved(INVITE, now)
            pace.left(INVITE, now)
            pace.answered(INVITE, now + 0.01, 0.01)
        took.append((time.process_time() - began) / calls)
    return 1e6 * statistics.median(took)


def main(options: argparse.Namespace) -> bool:
    """Print the table, and return whether the cost reaches its goal."""
    print(f"{'':<52} {'share':>7} {'throttled':>9} {'recovery':>9} {'p50/p99':>10}")
    limits()
    changes()
    outages()
    capacity()
    unlimited()
    took = cost(options.calls)
    print(f"decisions about one request: {took:.2f} us (goal {GOAL:g}): {'reached' if took <= GOAL else 'NOT reached'}")
    return took <= GOAL


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steering", description="Simulate the pace of a job.")
    parser.add_argument("--calls", type=int, default=200_000)
    sys.exit(not main(parser.parse_args()))
