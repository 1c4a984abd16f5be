"""Whole jobs on emulated time keep to a limit that nobody told them, and come back soon after an outage.

What they reach is counted in the emulator's own journal.
"""

import sys

import anyio
import pytest

from helpers.paced_job import Chance, PacedJob
from helpers.platform_simulation import TokenBucket

LATENCIES = pytest.mark.parametrize("latency", [0.001, 0.1])


def paced(latency, limit, capsys, *, steady, backend):
    """Run a job with an outage of half a minute after ``steady`` seconds."""
    job = PacedJob(latency=latency, limit=limit)

    async def run():
        await job.run(steady + 45, outage=(steady, steady + 30))

    anyio.run(run, backend=backend)
    share, recovery = job.share(10, steady), job.recovery(steady + 30, 0.9)
    with capsys.disabled():
        sys.stdout.write(f"\n{backend}, {limit}/s, {latency * 1000:g} ms: {share:.1%} used, back after {recovery:.1f} s\n")
    assert job.share(10, steady) <= 1.01  # it was the limit that was measured
    assert job.share(steady + 0.2, steady + 30) == 0  # and an outage
    assert share >= 0.9
    assert recovery <= 10
    assert job.throttled(10, steady) < 0.05


def test_a_job_uses_a_bucket_that_asks_for_pauses():
    job = PacedJob(latency=0.1, speed=50, limiter=TokenBucket(50, 5), retry_after=1.0)
    anyio.run(job.run, 40)
    assert job.share(10, 40) >= 0.9
    assert job.throttled(10, 40) <= 0.05


def hot(seconds):
    job = PacedJob(latency=0.4, sigma=0.3, speed=239, groups=20, hot=1, hot_rate=2)
    anyio.run(job.run, seconds)
    assert job.rate(10, seconds, job.names[1:]) >= 0.9 * 239 * 19 / 20
    return job.rate(10, seconds, job.names[:1]) / 2


def test_a_job_with_a_hot_group_goes_on_with_the_others():
    assert hot(20) >= 0.7


@pytest.mark.slow
def test_a_hot_group_uses_nine_tenths_of_its_limit():
    assert hot(70) >= 0.9


def test_chance_does_not_slow_a_job():
    job = PacedJob(latency=0.4, speed=250, limiter=Chance(0.05))
    anyio.run(job.run, 20)
    assert job.rate(0, 20) >= 0.6 * 250


@LATENCIES
def test_a_job_uses_nine_tenths_of_a_limit_and_recovers_from_an_outage(latency, capsys):
    paced(latency, 100, capsys, steady=25, backend="asyncio")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@LATENCIES
def test_a_job_does_so_for_a_minute(latency, backend, capsys):
    paced(latency, 200, capsys, steady=60, backend=backend)
