"""The platforms on which the pace of a job is judged, and what it must reach there: for tests and for the benchmark."""

import random
from dataclasses import dataclass
from itertools import product

from helpers.platform_simulation import Fixed, Platform, Sliding, TokenBucket, simulate
from rbim import InviteJoinGroup
from rbim.bulk.pace import Pace

RATES = (5, 50, 200)
LATENCIES = (0.001, 0.1)
KINDS = ("second", "any second", "bucket", "small bucket", "bucket, Retry-After", "small bucket, Retry-After")
NOISE = {0.001: 0.97, 0.01: 0.85, 0.05: 0.6}
"""Shares of throttled requests, and the share of the speed that they leave at least."""


class Minutes:
    """A limit of requests in each minute."""

    def __init__(self, limit):
        self.limit, self.minute, self.number = limit, -1, 0

    def allows(self, now):
        if (minute := int(now // 60)) != self.minute:
            self.minute, self.number = minute, 0
        self.number += 1
        return self.number <= self.limit


def limited(kind, rate, *, latency, seed=1):
    """Return a platform with a limit. A bucket holds the tokens of a second, a small one those of a tenth."""
    if kind == "second":
        limiter = Fixed(rate, random.Random(seed).random())
    elif kind == "any second":
        limiter = Sliding(rate)
    else:
        limiter = TokenBucket(rate, max(1, rate // 10 if "small" in kind else rate))
    return Platform(limiter=limiter, latency=latency, retry_after=1.0 if "Retry" in kind else None, seed=seed)


def groups(number):
    return [InviteJoinGroup(group_id=f"g{each}", members=["1001"]) for each in range(number)]


@dataclass(frozen=True)
class Used:
    """Shares from second 10 to 70: of the limit that was used, and of the requests that were throttled."""

    share: float
    throttled: float


def used(kind, rate, *, latency, seed=1):
    record = simulate(Pace(), limited(kind, rate, latency=latency, seed=seed), 70)
    return Used(record.rate(10, 70) / rate, record.throttled(10, 70))


def speed(platform, *, adaptive=True, seconds=70):
    return simulate(Pace(adaptive=adaptive), platform(), seconds, ops=groups(40)).rate(0, seconds)


def hot(number, of, *, rate, latency, retry_after=None):
    """Simulate a job of which the first groups are limited.

    ``rate``: requests per second; 0: they are always throttled. Returns the answers in a second of the others, and the
    shares of their limit that the limited groups used.
    """
    names = [f"g{each}" for each in range(number)]
    platform = Platform(latency=latency, groups={name: Sliding(rate) for name in names}, retry_after=retry_after)
    record = simulate(Pace(), platform, 70, ops=groups(of))
    of_group = {group: sum(10 <= at < 70 for at in times) / 60 for group, times in record.answered_of.items()}
    limits = [of_group.pop(name, 0.0) / (rate or 1.0) for name in names]
    return sum(of_group.values()), limits, record


ALL = tuple(product(KINDS, RATES, LATENCIES))
