"""The pace of whole jobs without a configured rate, on eight platforms and after an outage, on emulated time.

Run: python -m benchmarks.bulk pace

The emulator is the platform. A limit is judged by the share of it that the job used from second 10 to the end, and by the
share of throttled requests in that time; noise (a share of requests that is throttled by chance) by the speed compared with
the same job without noise; a hot group by the speed of the other groups, and by the share of its own limit that it used.
Unlimited, the latency and 100 requests in flight allow 239 requests per second; *ramp* is the seconds to nine tenths of
that. After an outage of 30 seconds in which every connection is refused, *recovery* is the seconds until the end of the
first whole second with nine tenths of the limit.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from benchmarks.results import Goal, Result, Table

if TYPE_CHECKING:
    from benchmarks.results import Options

__all__ = ["pace"]

FROM = 10.0  # seconds
SLOW: dict[str, Any] = {"latency": 0.4, "sigma": 0.3, "speed": 239}  # the mean latency allows 239 requests per second
LIMIT = 50
GROUPS, HOT_RATE = 40, 2
LIMIT_GOAL, THROTTLED_GOAL, RAMP_GOAL, OTHERS_GOAL, HOT_GOAL, RECOVERY_GOAL = 0.85, 0.05, 3.0, 0.9, 0.7, 10.0
NOISE_GOALS = {0.001: 0.97, 0.01: 0.85}


def ran(seconds: float, *, outage: tuple[float, float] | None = None, **platform: Any) -> Any:
    """Return a job that ran for so many emulated seconds."""
    from tests.helpers.paced_job import PacedJob

    job = PacedJob(**platform)
    asyncio.run(job.run(seconds, outage=outage))
    return job


def pace(options: Options | None = None) -> Result:
    """Return the pace of jobs on eight platforms, and how fast they recover after an outage."""
    from tests.helpers.paced_job import Chance
    from tests.helpers.platform_simulation import Fixed, TokenBucket  # pyright: ignore[reportUnknownVariableType]  # no types

    quick = options is not None and options.quick
    end = 14.0 if quick else 70.0
    rows: list[tuple[str | float | None, ...]] = []
    goals: list[Goal] = []

    def line(name: str, job: Any, figure: float, begun: float) -> None:
        rows.append((name, job.rate(FROM, end), 100 * figure, 100 * job.throttled(FROM, end), time.perf_counter() - begun))

    begun = time.perf_counter()
    free = ran(end, **SLOW)
    line("unlimited", free, free.share(FROM, end), begun)
    ramp = free.recovery(0.0, 0.9)
    goals.append(Goal(name="unlimited: seconds to full speed, and one more", value=ramp, at_most=RAMP_GOAL + 1))
    limits: dict[str, dict[str, Any]] = {
        "seconds": {"limiter": Fixed(LIMIT, 0.3)},
        "a bucket": {"limiter": TokenBucket(LIMIT, LIMIT)},
        "a bucket, Retry-After: 1": {"limiter": TokenBucket(LIMIT, LIMIT), "retry_after": 1.0},
    }
    for kind, limiter in limits.items():
        begun = time.perf_counter()
        job = ran(end, latency=0.1, speed=LIMIT, **limiter)
        share, throttled, name = job.share(FROM, end), job.throttled(FROM, end), f"{LIMIT}/s, {kind}"
        line(name, job, share, begun)
        goals.append(Goal(name=f"{name}: share used", value=share, at_least=LIMIT_GOAL))
        goals.append(Goal(name=f"{name}: share throttled", value=throttled, at_most=THROTTLED_GOAL))
    for share, least in list(NOISE_GOALS.items())[-1 if quick else 0 :]:
        begun = time.perf_counter()
        job = ran(end, **SLOW, limiter=Chance(share))
        kept, name = job.rate(0, end) / free.rate(0, end), f"noise of {share:.1%}"
        line(name, job, kept, begun)
        goals.append(Goal(name=f"{name}: share of the speed without it", value=kept, at_least=least))
    begun = time.perf_counter()
    job = ran(end, **SLOW, groups=GROUPS, hot=1, hot_rate=HOT_RATE)
    others = job.rate(FROM, end, job.names[1:]) / free.rate(FROM, end) * GROUPS / (GROUPS - 1)
    line("one hot group", job, others, begun)
    goals.append(Goal(name="one hot group: speed of the others", value=others, at_least=OTHERS_GOAL))
    used = job.rate(FROM, end, job.names[:1]) / HOT_RATE
    goals.append(Goal(name="one hot group: share of its limit used", value=used, at_least=HOT_GOAL))
    begun = time.perf_counter()
    if not quick:
        down, up = end - 45, end - 15
        job = ran(end, latency=0.1, limit=LIMIT, outage=(down, up))
        line("an outage of 30 s", job, job.share(FROM, down), begun)
        goals.append(Goal(name="an outage: seconds to recover", value=job.recovery(up, 0.9), at_most=RECOVERY_GOAL))
    table = Table(
        title=f"Pace of a job without a configured rate, from second {FROM:.0f} to {end:.0f}",
        columns=("", "requests/s", "% of what is possible", "% throttled", "real seconds"),
        rows=tuple(rows),
    )
    return Result(part="bulk: pace", tables=(table,), goals=tuple(goals))
