"""A platform in virtual time, and a dispatcher that sends to it as a job does, for tests and for the benchmark."""

import heapq
import math
import random
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rbim import InviteJoinGroup

INVITE = InviteJoinGroup(group_id="g1", members=["1001"])
ANSWERED, THROTTLED, LOST = "answered", "throttled", "lost"


class Sliding:
    """A limit of requests in any second; ``limit`` may change with the time."""

    def __init__(self, limit):
        self.limit = limit if callable(limit) else lambda _now: limit
        self.recent = deque()

    def allows(self, now):
        while self.recent and self.recent[0] <= now - 1:
            self.recent.popleft()
        if len(self.recent) >= self.limit(now):
            return False
        self.recent.append(now)
        return True


class Fixed:
    """A limit of requests in each second, which begins ``phase`` seconds before that of the simulation."""

    def __init__(self, limit, phase):
        self.limit, self.phase = limit, phase
        self.second, self.number = -1, 0

    def allows(self, now):
        second = math.floor(now + self.phase)
        if second != self.second:
            self.second, self.number = second, 0
        self.number += 1
        return self.number <= self.limit


class TokenBucket:
    """A bucket of ``burst`` tokens, full at first; ``rate`` tokens come to it in a second."""

    def __init__(self, rate, burst):
        self.rate, self.burst = rate, burst
        self.tokens, self.at = burst, 0.0

    def allows(self, now):
        self.tokens, self.at = min(self.burst, self.tokens + (now - self.at) * self.rate), now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass(kw_only=True)
class Platform:
    """What happens to a request, decided when it arrives; times are seconds.

    ``limit(now)`` requests are accepted in any second, or what ``limiter`` allows, and of a group what its entry in
    ``groups`` allows. ``noise``: the share of requests that is throttled by chance, ``loss``: that gets lost. In an outage
    (from, to) connections are refused after a millisecond or, with ``timeout``, time out.
    """

    limit: object = None
    limiter: Any = None
    groups: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    latency: float = 0.01
    retry_after: float | None = None
    outages: object = ()
    timeout: float | None = None
    loss: float = 0.0
    seed: int = 1

    def __post_init__(self):
        self.chance = random.Random(self.seed)
        if self.limit is not None:
            self.limiter = Sliding(self.limit)

    def serve(self, now, op=INVITE):
        """Return when the answer comes, what it is, and how long to wait."""
        for begins, ends in self.outages:
            if begins <= now < ends:
                return now + (self.timeout or 0.001), LOST, None
        if self.loss and self.chance.random() < self.loss:
            return now + self.latency, LOST, None
        throttled = self.noise and self.chance.random() < self.noise
        for limiter in (self.groups.get(op.group_id), self.limiter):
            throttled = throttled or (limiter is not None and not limiter.allows(now))
        if throttled:
            return now + self.latency, THROTTLED, self.retry_after
        return now + self.latency, ANSWERED, None


@dataclass
class Record:
    """What happened: the times of sending, and those of each kind of end."""

    sent: list[float] = field(default_factory=list)
    ended: dict[str, list[float]] = field(default_factory=lambda: {ANSWERED: [], THROTTLED: [], LOST: []})
    concurrency: list[tuple[float, int]] = field(default_factory=list)
    answered_of: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def number(self, kind, begins, ends):
        times = self.ended[kind]
        return bisect_left(times, ends) - bisect_left(times, begins)

    def rate(self, begins, ends):
        return self.number(ANSWERED, begins, ends) / (ends - begins)

    def throttled(self, begins, ends):
        number = self.number(THROTTLED, begins, ends)
        return number / max(1, number + self.number(ANSWERED, begins, ends))

    def recovery(self, after, rate, span=2.0, until=math.inf):
        """Return the seconds after a time until a span begins in which the rate is reached."""
        times = self.ended[ANSWERED]
        for first in range(bisect_right(times, after), len(times)):
            if times[first] + span > until:
                break
            if bisect_left(times, times[first] + span) - first >= rate * span:
                return times[first] - after
        return math.inf


def simulate(  # noqa: C901, PLR0912  # a loop over events
    pace, platform, seconds, *, ops=(INVITE,)
):
    """Drive the pace as a dispatcher does: operations take turns; one whose group has to wait lets others go first."""
    record, order, now, in_flight = Record(), count(), 0.0, 0
    events = []
    turns = deque(ops)
    waiting = []  # those whose group has to wait
    alarm = -1.0
    while True:
        while in_flight < pace.concurrency():
            while waiting and waiting[0][0] <= now:
                turns.appendleft(heapq.heappop(waiting)[2])
            at = pace.earliest_any_group(turns[0], now) if turns else waiting[0][0]
            if at <= now and (own := pace.earliest(turns[0], now)) > now:
                heapq.heappush(waiting, (own, next(order), turns.popleft()))
                continue
            if at > now:
                at = min(at, waiting[0][0]) if waiting else at
                if turns:
                    pace.earliest(turns[0], now)  # as a dispatcher does: it notes that the rate holds it back
                if alarm <= now or at < alarm:
                    alarm = at
                    heapq.heappush(events, (at, next(order), None, 0.0, None, None))
                break
            op = turns.popleft()
            turns.append(op)
            pace.reserved(op, now)
            pace.left(op, now)
            record.sent.append(now)
            in_flight += 1
            ends, kind, retry_after = platform.serve(now, op)
            heapq.heappush(events, (ends, next(order), kind, now, retry_after, op))
        now, _, kind, begun, retry_after, op = heapq.heappop(events)
        if now > seconds:
            return record
        if kind is None:
            continue
        in_flight -= 1
        record.ended[kind].append(now)
        if kind == ANSWERED:
            pace.answered(op, now, now - begun)
            record.answered_of[op.group_id].append(now)
        elif kind == THROTTLED:
            pace.throttled(op, now, retry_after, now - begun)
        else:
            pace.lost(now, now - begun)
        allowed = pace.concurrency()
        if not record.concurrency or record.concurrency[-1][1] != allowed:
            record.concurrency.append((now, allowed))
