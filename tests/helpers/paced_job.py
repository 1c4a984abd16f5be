"""A whole job on emulated time, to an emulator with a limit and an outage, for tests and for the benchmark."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from pathlib import Path

from rbim import AsyncClient, Credentials, GroupType
from rbim.bulk import InviteJob
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults.requests import Fault, Latency, Refuse, Throttle

CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")
GROUP_SIZE = 1900
MEMORY = "/dev/shm"  # a file system in memory: emulated time does not wait for a disk, so that a test need not, either


class PacedJob:
    """An adaptive job, told no rate, of requests of one account each; the emulator takes ``limit`` of them in a second.

    ``moments`` are the times at which one took effect, by the emulator's own journal, in seconds since the job began.
    """

    def __init__(self, *, latency: float, limit: int) -> None:
        """Prepare it; ``latency`` is in seconds."""
        self.limit = limit
        self.moments: list[float] = []
        self._refused: list[float] = []
        self._plan = [Fault(effect=Latency(latency)), Fault(effect=Throttle(limit))]

    async def run(self, seconds: float, *, outage: tuple[float, float]) -> None:
        """Run it for so many emulated seconds; between two of them every connection is refused."""
        clock = EmulatedClock(auto=True)
        emulator = Emulator(clock=clock, credentials=CREDENTIALS)
        rows = int(self.limit * (seconds - outage[1] + outage[0]) * 1.1)
        folder = MEMORY if Path(MEMORY).is_dir() else None
        async with AsyncClient(
            base_url="http://emulator", transport=emulator, credentials=CREDENTIALS, clock=clock
        ) as client:
            groups = [await client.groups.create(name="g", type=GroupType.VIP) for _ in range(rows // GROUP_SIZE + 1)]
            emulator.requests.clear()
            emulator.faults.add(*self._plan)
            with tempfile.TemporaryDirectory(dir=folder) as journals:
                job = InviteJob(client, journal=Path(journals, "job"), chunk=1)
                began = clock.monotonic()
                async with job.run((groups[row % len(groups)].group_id, f"user-{row}") for row in range(rows)) as run:
                    await clock.sleep(outage[0])
                    _replace(emulator, [Fault(effect=Refuse())])
                    await clock.sleep(outage[1] - outage[0])
                    _replace(emulator, self._plan)
                    await clock.sleep(seconds - outage[1])
                    run.stop()
        self.moments = [record.at - began for record in emulator.requests if record.effect]
        self._refused = [record.at - began for record in emulator.requests if "status" in record.trouble]

    def share(self, begins: float, ends: float) -> float:
        """Return which share of what the limit allows took effect between two times."""
        return _number(self.moments, begins, ends) / (self.limit * (ends - begins))

    def throttled(self, begins: float, ends: float) -> float:
        """Return which share of the requests between two times was one too many."""
        refused = _number(self._refused, begins, ends)
        return refused / (refused + _number(self.moments, begins, ends))

    def recovery(self, since: float, share: float) -> float:
        """Return the seconds from a time to the end of the first whole second in which that share took effect."""
        for moment in self.moments[bisect_left(self.moments, since) :]:
            if self.share(moment, moment + 1) >= share:
                return moment + 1 - since
        return float("inf")


def _replace(emulator: Emulator, plan: list[Fault]) -> None:
    emulator.faults.clear()
    emulator.faults.add(*plan)


def _number(times: list[float], begins: float, ends: float) -> int:
    return bisect_left(times, ends) - bisect_left(times, begins)
