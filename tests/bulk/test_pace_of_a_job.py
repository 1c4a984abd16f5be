"""Whole jobs on emulated time keep to a limit that nobody told them, and come back soon after an outage.

What they reach is counted in the emulator's own journal.
"""

import anyio
import pytest

from helpers.paced_job import PacedJob


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
