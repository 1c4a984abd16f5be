"""A platform that throttles, and calls that come at random to it, on emulated time: for tests and for the benchmark."""

import math
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
from attrs import define, field

from rbim import CreateGroup, GroupType, Limits, Response

from .loads import Call, Platform, run
from .stubs import answer

CREATE = CreateGroup(name="x", type=GroupType.TEMPORARY)


@define
class Throttling(Platform):
    """Takes ``limit`` requests in a second, ``burst`` at once; of those that ``hot`` is in only ``hot_limit``."""

    limit: float = 50.0
    burst: float = 1.0
    retry_after: str | None = None
    hot: str | None = None
    hot_limit: float = 2.0
    levels: dict = field(factory=dict)
    passed: list = field(factory=list)
    throttled: list = field(factory=list)

    def takes(self, key, limit, burst, now) -> bool:
        level, at = self.levels.get(key, (0.0, 0.0))
        level = max(0.0, level - (now - at) * limit)
        taken = level + 1 <= burst + 1e-9
        self.levels[key] = (level + taken, now)
        return taken

    async def send(self, request, /, *, timeout):  # noqa: ARG002  # its latency is short
        now, group = anyio.current_time() - self.start, request.path + request.body.decode()
        its = self.takes("hot", self.hot_limit, 1, now) if self.hot and self.hot in group else True
        passes = its and self.takes("all", self.limit, self.burst, now)
        (self.passed if passes else self.throttled).append((now, group))
        await anyio.sleep(self.latency())
        headers = {} if self.retry_after is None else {"retry-after": self.retry_after}
        return answer(groupId="g") if passes else Response(429, headers, b'{"statusCode":"112310","statusMsg":"x"}')

    def rate(self, begins, ends) -> float:
        return sum(begins <= at < ends for at, _ in self.passed) / (ends - begins)


def load(limit, burst, retry_after, offered, *, seconds=20, backend="asyncio", operation=lambda _: CREATE, **platform):
    calls = drawn(offered, seconds, operation)
    done = throttling(limit, burst, retry_after, **platform)
    run(calls, done, Limits(), backend=backend)
    return calls, done


def drawn(offered, seconds, operation=lambda _: CREATE):
    draw, calls, at = random.Random(1), [], 0.0
    while (at := at + draw.expovariate(offered(at))) < seconds:
        calls.append(Call(at, operation(draw), 10.0))
    return calls


def throttling(limit, burst, retry_after, **platform):
    """Return a platform that answers after some 50 ms; ``retry_after``: seconds as text, "date" (in 2 s) or None."""
    if retry_after == "date":
        retry_after = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    draw = random.Random(2)
    return Throttling(
        lambda: 0.05 * math.exp(draw.gauss(0, 0.2)), limit=limit, burst=burst, retry_after=retry_after, **platform
    )
