"""A platform in virtual time, and a dispatcher that sends to it as a job does, for tests and for the benchmark."""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import TYPE_CHECKING

from rbim import InviteJoinGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rbim.bulk.pace.controller import PaceController

INVITE = InviteJoinGroup(group_id="g1", members=["1001"])
ANSWERED, THROTTLED, LOST = "answered", "throttled", "lost"


@dataclass(kw_only=True)
class Platform:
    """What happens to a request, decided when it arrives; times are seconds.

    ``limit(now)`` requests are accepted in any second. With ``servers`` each request takes ``latency`` of one of them, and
    the others queue. ``sigma``: the spread of log-normal latencies. In an outage (from, to) connections are refused after a
    millisecond or, with ``timeout``, time out. ``loss``: the share of requests that gets lost.
    """

    limit: Callable[[float], float] = lambda _now: math.inf
    latency: float = 0.01
    sigma: float = 0.0
    retry_after: float | None = None
    servers: int = 0
    outages: Sequence[tuple[float, float]] = ()
    timeout: float | None = None
    loss: float = 0.0
    seed: int = 1
    recent: deque[float] = field(default_factory=deque)
    busy: list[float] = field(default_factory=list)

    def __post_init__(self):
        """Seed the chance."""
        self.chance = random.Random(self.seed)
        self.busy = [0.0] * self.servers

    def serve(self, now: float) -> tuple[float, str, float | None]:
        """Return when the answer comes, what it is, and how long to wait."""
        for begins, ends in self.outages:
            if begins <= now < ends:
                return now + (self.timeout or 0.001), LOST, None
        latency = self.latency * math.exp(self.sigma * self.chance.gauss(0, 1)) if self.sigma else self.latency
        if self.loss and self.chance.random() < self.loss:
            return now + latency, LOST, None
        while self.recent and self.recent[0] <= now - 1:
            self.recent.popleft()
        if len(self.recent) >= self.limit(now):
            return now + latency, THROTTLED, self.retry_after
        self.recent.append(now)
        if not self.servers:
            return now + latency, ANSWERED, None
        ends = max(now, heapq.heappop(self.busy)) + latency
        heapq.heappush(self.busy, ends)
        return ends, ANSWERED, None


@dataclass
class Record:
    """What happened: the times of sending, those of each kind of end, and (time, seconds) of each answer."""

    sent: list[float] = field(default_factory=list)
    ended: dict[str, list[float]] = field(default_factory=lambda: {ANSWERED: [], THROTTLED: [], LOST: []})
    latencies: list[tuple[float, float]] = field(default_factory=list)
    concurrency: list[tuple[float, int]] = field(default_factory=list)

    def number(self, kind: str, begins: float, ends: float) -> int:
        """Return how many ended so from ``begins`` until ``ends``."""
        times = self.ended[kind]
        return bisect_left(times, ends) - bisect_left(times, begins)

    def rate(self, begins: float, ends: float) -> float:
        """Return answers per second."""
        return self.number(ANSWERED, begins, ends) / (ends - begins)

    def throttled(self, begins: float, ends: float) -> float:
        """Return the share of what was throttled."""
        number = self.number(THROTTLED, begins, ends)
        return number / max(1, number + self.number(ANSWERED, begins, ends))

    def recovery(self, after: float, rate: float, span: float = 2.0, until: float = math.inf) -> float:
        """Return the seconds after a time until a span begins in which the rate is reached."""
        times = self.ended[ANSWERED]
        for first in range(bisect_right(times, after), len(times)):
            if times[first] + span > until:
                break
            if bisect_left(times, times[first] + span) - first >= rate * span:
                return times[first] - after
        return math.inf


def simulate(pace: PaceController, platform: Platform, seconds: float, *, ops=(INVITE,), timer: float = 0.0) -> Record:  # noqa: C901  # a loop over events
    """Drive the steering as a dispatcher does. Timers ring only at the multiples of ``timer`` seconds."""
    record, order, now, in_flight = Record(), count(), 0.0, 0
    events: list[tuple[float, int, str | None, float, float | None]] = []
    work = cycle(ops)
    op = next(work)
    alarm = -1.0
    while True:
        while in_flight < pace.concurrency(now):
            at = pace.earliest(op, now)
            if at > now:
                if timer:
                    at = max(at, math.ceil(at / timer) * timer)
                if alarm <= now or at < alarm:
                    alarm = at
                    heapq.heappush(events, (at, next(order), None, 0.0, None))
                break
            pace.sent(op, now)
            record.sent.append(now)
            in_flight += 1
            ends, kind, retry_after = platform.serve(now)
            heapq.heappush(events, (ends, next(order), kind, now, retry_after))
            op = next(work)
        now, _, kind, begun, retry_after = heapq.heappop(events)
        if now > seconds:
            return record
        if kind is None:
            continue
        in_flight -= 1
        record.ended[kind].append(now)
        if kind == ANSWERED:
            pace.answered(now, now - begun)
            record.latencies.append((now, now - begun))
        elif kind == THROTTLED:
            pace.throttled(now, retry_after, now - begun)
        else:
            pace.lost(now, now - begun)
        allowed = pace.concurrency(now)
        if not record.concurrency or record.concurrency[-1][1] != allowed:
            record.concurrency.append((now, allowed))
