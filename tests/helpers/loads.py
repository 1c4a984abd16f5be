"""Loads on emulated time: calls that come when they come, over a platform with latency; and what a client could do at best.

The event loop's own time is emulated (asyncio: a loop that jumps, trio: its MockClock), so ``asyncio.timeout`` and
``trio.move_on_after`` are too.
"""

import asyncio
import json
import math
import selectors
from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

import anyio
import trio
from attrs import define, field
from trio.testing import MockClock

from rbim import AsyncClient, Operation, Outcome, RbimError, Response, SystemClock, Unanswered

from .stubs import BASE_URL, CREDENTIALS, answer


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: it lets the time of its loop pass instead."""

    elapsed = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is not None:
            self.elapsed += max(0.0, timeout)
        return ready


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.elapsed


class LoopClock(SystemClock):
    """The time of the running event loop."""

    def monotonic(self):
        return anyio.current_time()


def run_emulated(backend, work):
    if backend == "trio":
        trio.run(work, clock=MockClock(autojump_threshold=0))
        return
    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        runner.run(work())


@define(eq=False)
class Call:
    """A call of the load: it comes at ``at``, with a deadline, and gives up after ``patience`` (by default never)."""

    at: float
    operation: Operation[Any]
    deadline: float
    patience: float = math.inf
    kind: str = ""
    ended: float | None = None
    error: BaseException | None = None

    @property
    def until(self):
        """The time until which an answer is of use."""
        return self.at + min(self.deadline, self.patience)

    @property
    def in_time(self):
        return self.ended is not None and self.error is None


class Sent(NamedTuple):
    """A request that left: when, in seconds since the load began; its path and its group."""

    at: float
    path: str
    group: str | None


@define
class Platform:
    """A transport whose answers take ``latency()`` seconds; each is a success, or what ``instead()`` returns."""

    latency: Callable[[], float]
    instead: Callable[[], Response | None] = lambda: None
    sends: list[Sent] = field(factory=list)
    start: float = 0.0
    in_flight: int = 0
    most: int = 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def send(self, request, /, *, timeout):
        assert timeout > 0
        self.sends.append(Sent(anyio.current_time() - self.start, request.path, json.loads(request.body).get("groupId")))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            takes = self.latency()
            await anyio.sleep(min(takes, timeout))
        finally:
            self.in_flight -= 1
        if takes >= timeout:
            raise Unanswered(f"no answer within {timeout:g} s")
        return self.instead() or answer(groupId="g")


def run(calls, platform, limits, *, backend="asyncio", **options):
    clients = []

    async def work():
        client = AsyncClient(
            base_url=BASE_URL, credentials=CREDENTIALS, transport=platform, limits=limits, clock=LoopClock(), **options
        )
        clients.append(client)

        async def one(call):
            try:
                with anyio.move_on_after(call.patience):
                    await client.tuned(deadline=call.deadline).send(call.operation)
                    call.ended = anyio.current_time() - start
            except RbimError as error:
                call.error = error
                call.ended = anyio.current_time() - start

        async with client, anyio.create_task_group() as tasks:
            start = anyio.current_time()
            platform.start = start
            for call in sorted(calls, key=lambda each: each.at):
                await anyio.sleep(max(0.0, start + call.at - anyio.current_time()))
                tasks.start_soon(one, call)

    run_emulated(backend, work)
    return clients[0]


def in_time(calls):
    return sum(each.in_time for each in calls)


def unknown(calls):
    return sum(isinstance(each.error, RbimError) and each.error.outcome is Outcome.UNKNOWN for each in calls)


def possible(calls, limits, usual, slowest):
    """Return how many calls a client can answer in time that knows all deadlines and the usual latency.

    It serves those whose deadline is nearest, of all that may leave at the moment; an answer takes ``usual`` seconds, and
    what has less than ``slowest`` left is not sent.
    """
    model, coming, number = _Model(limits, usual, slowest), sorted(calls, key=lambda each: each.at), 0
    served, now = 0, 0.0
    while True:
        while number < len(coming) and coming[number].at <= now:
            model.add(coming[number])
            number += 1
        went, soonest = model.serve(now)
        served += went
        if not went:
            now = min(soonest, coming[number].at if number < len(coming) else math.inf)
        if now == math.inf:
            return served


class _Model:
    """What waits, by the rates that count it; when each rate may be used next; when places become free."""

    def __init__(self, limits, usual, slowest):
        self.limits = limits
        self.usual = usual
        self.slowest = slowest
        self.waiting = defaultdict(list)
        self.due = defaultdict(lambda: -math.inf)
        self.places = []
        self.number = 0

    def add(self, call):
        group = getattr(call.operation, "group_id", None)
        counted = [(n, each) for n, each in enumerate(self.limits.rates) if _counts(each, call.operation)]
        self.number += 1
        heappush(
            self.waiting[tuple((n, group if each.each_group else None) for n, each in counted)], (call.until, self.number)
        )

    def serve(self, now):
        """Serve one call if possible; return whether one was, and when one may be next."""
        while self.places and self.places[0] <= now:
            heappop(self.places)
        if len(self.places) >= self.limits.concurrency:
            return False, self.places[0]
        ready, soonest = [], math.inf
        for keys, queue in self.waiting.items():
            while queue and queue[0][0] < now + self.slowest:
                heappop(queue)
            turn = max(
                (self.due[key] - self._interval(key) * (self._rate(key).burst - 1) for key in keys), default=-math.inf
            )
            if queue and turn <= now + 1e-9:
                ready.append((queue[0], keys))
            elif queue:
                soonest = min(soonest, turn)
        if not ready:
            return False, soonest
        keys = min(ready, key=lambda each: each[0])[1]
        heappop(self.waiting[keys])
        heappush(self.places, now + self.usual)
        for key in keys:
            self.due[key] = max(self.due[key], now) + self._interval(key)
        return True, now

    def _rate(self, key):
        return self.limits.rates[key[0]]

    def _interval(self, key):
        return self._rate(key).per / self._rate(key).limit


def _counts(rate, operation):
    concerned = not rate.operations or isinstance(operation, rate.operations)
    return concerned and not (rate.each_group and getattr(operation, "group_id", None) is None)


def offered(draw, per_second, seconds, make):
    calls, at = [], 0.0
    while (at := at + draw.expovariate(per_second)) < seconds:
        calls.append(make(at))
    return calls


def excess(rate, times):
    """Return by how many requests some window exceeds ``burst + rate``: any n of them take at least n - burst intervals."""
    worst, highest = -math.inf, -math.inf
    for number, at in enumerate(times):
        level = number - at * rate.limit / rate.per
        highest = max(highest, -level)
        worst = max(worst, level + highest + 1 - rate.burst)
    return worst
