"""Whole jobs on emulated time keep to a limit that nobody told them, and come back soon after an outage.

What they reach is counted in the emulator's own journal.
"""

import sys

import anyio
import pytest

from helpers.paced_job import PacedJob

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


@LATENCIES
def test_a_job_uses_nine_tenths_of_a_limit_and_recovers_from_an_outage(latency, capsys):
    paced(latency, 100, capsys, steady=25, backend="asyncio")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@LATENCIES
def test_a_job_does_so_for_a_minute(latency, backend, capsys):
    paced(latency, 200, capsys, steady=60, backend=backend)
