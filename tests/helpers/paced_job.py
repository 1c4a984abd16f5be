"""A whole job on emulated time, to an emulator with limits and outages, for tests and for the benchmark."""

import random
import tempfile
from bisect import bisect_left
from pathlib import Path

from attrs import evolve

from rbim import AsyncClient, Credentials, GroupType
from rbim.bulk import InviteJob
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults import Fault, Latency, Refuse

from .platform_simulation import Sliding

CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")
GROUP_SIZE = 1900
MEMORY = "/dev/shm"  # a file system in memory: emulated time does not wait for a disk, so that a test need not, either


class Limited:
    """A limit of the platform, for one group or for all requests: what a limiter does not allow is answered 429."""

    def __init__(self, limiter, retry_after=None, group=None):
        self.limiter, self.retry_after, self.group = limiter, retry_after, group

    def applied(self, op, injection, now):
        of_others = self.group is not None and getattr(op, "group_id", None) != self.group
        if of_others or injection.refuse or injection.status or self.limiter.allows(now):
            return injection
        return evolve(injection, status=429, retry_after=self.retry_after)


def hold(emulator, limits):
    planned, clock = emulator.faults.next_injection, emulator.clock

    def next_injection(op):
        injection = planned(op)
        for each in limits:
            injection = each.applied(op, injection, clock.monotonic())
        return injection

    emulator.faults.next_injection = next_injection


class Chance:
    """A limiter that refuses a share of all requests."""

    def __init__(self, share, seed=1):
        self.share, self.chance = share, random.Random(seed)

    def allows(self, _now):
        return self.chance.random() >= self.share


class PacedJob:
    """A job that is given no rate, of requests of one account each; times are seconds since it began.

    The platform takes ``limit`` requests in any second, or what ``limiter`` allows, with a ``retry_after`` if one is given.
    ``speed``: requests in a second that it can reach at most (default: ``limit``). The first ``hot`` groups are limited to
    ``hot_rate`` each. ``moments`` are the times at which a request took effect, by the emulator's own journal.
    """

    def __init__(  # what describes a platform
        self,
        *,
        latency,
        sigma=0.0,
        limit=None,
        limiter=None,
        retry_after=None,
        speed=0,
        groups=0,
        hot=0,
        hot_rate=2,
        adaptive=True,
    ):
        """Prepare it; ``latency`` is in seconds, log-normal with ``sigma``."""
        self.limit = limit or speed
        self.adaptive, self.groups, self.hot, self.hot_rate = adaptive, groups, hot, hot_rate
        self.moments = []
        self.of_group = {}
        self.names = []
        self._refused = []
        self._plan = [Fault(effect=Latency(latency, sigma))]
        limiter = limiter or (Sliding(limit) if limit else None)
        self._limits = [] if limiter is None else [Limited(limiter, retry_after)]

    async def run(self, seconds, *, outage=None):
        """Run it for so many emulated seconds; between two of them every connection is refused."""
        clock = EmulatedClock(auto=True)
        emulator = Emulator(clock=clock, credentials=CREDENTIALS)
        quiet = outage[1] - outage[0] if outage else 0.0
        rows = int(self.limit * (seconds - quiet) * 1.1) + 100
        folder = MEMORY if Path(MEMORY).is_dir() else None
        async with AsyncClient(
            base_url="http://emulator", transport=emulator, credentials=CREDENTIALS, clock=clock
        ) as client:
            number = max(self.groups, rows // GROUP_SIZE + 1)
            groups = [await client.groups.create(name="g", type=GroupType.VIP) for _ in range(number)]
            self.names = [each.group_id for each in groups]
            self._limits += [Limited(Sliding(self.hot_rate), group=name) for name in self.names[: self.hot]]
            emulator.requests.clear()
            emulator.faults.add(*self._plan)
            hold(emulator, self._limits)
            with tempfile.TemporaryDirectory(dir=folder) as journals:
                job = InviteJob(client, journal=Path(journals, "job"), chunk=1, adaptive=self.adaptive)
                began = clock.monotonic()
                async with job.run((groups[row % number].group_id, f"user-{row}") for row in range(rows)) as run:
                    if outage is not None:
                        await clock.sleep(outage[0])
                        _replace(emulator, [Fault(effect=Refuse())])
                        await clock.sleep(quiet)
                        _replace(emulator, self._plan)
                    await clock.sleep(began + seconds - clock.monotonic())
                    run.stop()
        for record in emulator.requests:
            if record.effect:
                self.moments.append(record.at - began)
                self.of_group.setdefault(record.operation.group_id, []).append(record.at - began)
        self._refused = [record.at - began for record in emulator.requests if "status" in record.trouble]

    def rate(self, begins, ends, groups=None):
        times = [self.moments] if groups is None else [self.of_group.get(each, []) for each in groups]
        return sum(_number(each, begins, ends) for each in times) / (ends - begins)

    def share(self, begins, ends):
        return _number(self.moments, begins, ends) / (self.limit * (ends - begins))

    def throttled(self, begins, ends):
        refused = _number(self._refused, begins, ends)
        return refused / max(1, refused + _number(self.moments, begins, ends))

    def recovery(self, since, share):
        """Return the seconds from a time to the end of the first whole second in which that share took effect."""
        for moment in self.moments[bisect_left(self.moments, since) :]:
            if self.share(moment, moment + 1) >= share:
                return moment + 1 - since
        return float("inf")


def _replace(emulator, plan):
    emulator.faults.clear()
    emulator.faults.add(*plan)


def _number(times, begins, ends):
    return bisect_left(times, ends) - bisect_left(times, begins)
