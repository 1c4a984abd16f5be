"""Whole jobs on emulated time keep to a limit that nobody told them, and come back soon after an outage.

What they reach is counted in the emulator's own journal.
"""

import anyio
import pytest

from helpers.paced_job import Chance, PacedJob
from helpers.platform_simulation import TokenBucket


@pytest.mark.parametrize(
    ("latency", "limit", "steady", "backend"),
    [(0.1, 40, 30, "asyncio"), *(pytest.param(0.001, 100, 25, each, marks=pytest.mark.ci) for each in ("asyncio", "trio"))],
)
def test_a_job_uses_most_of_a_limit_and_recovers_from_an_outage(latency, limit, steady, backend):
    """The outage lasts for half a minute."""
    job = PacedJob(latency=latency, limit=limit)

    async def run():
        await job.run(steady + 45, outage=(steady, steady + 30))

    anyio.run(run, backend=backend)
    share, recovery = job.share(10, steady), job.recovery(steady + 30, 0.9)
    assert job.share(10, steady) <= 1.01  # it was the limit that was measured
    assert job.share(steady + 0.2, steady + 30) == 0  # and an outage
    assert share >= 0.85
    assert recovery <= 10
    assert job.throttled(10, steady) < 0.05


@pytest.mark.ci
@pytest.mark.no_cover
def test_a_job_uses_a_bucket_that_asks_for_pauses():
    job = PacedJob(latency=0.1, speed=50, limiter=TokenBucket(50, 5), retry_after=1.0)
    anyio.run(job.run, 40)
    assert job.share(10, 40) >= 0.85
    assert job.throttled(10, 40) <= 0.05


@pytest.mark.ci
@pytest.mark.no_cover
def test_a_job_with_a_hot_group_goes_on_with_the_others():
    job = PacedJob(latency=0.4, sigma=0.3, speed=239, groups=20, hot=1, hot_rate=2)
    anyio.run(job.run, 20)
    assert job.rate(10, 20, job.names[1:]) >= 0.9 * 239 * 19 / 20
    assert job.rate(10, 20, job.names[:1]) / 2 >= 0.6


@pytest.mark.ci
@pytest.mark.no_cover
def test_chance_does_not_slow_a_job():
    job = PacedJob(latency=0.4, speed=250, limiter=Chance(0.01))
    anyio.run(job.run, 20)
    assert job.rate(0, 20) >= 0.85 * 250
