"""The pace that all workers of a queue share: rates and halts, in one key that is moved by compare-and-set."""

# Theory of operation
#
# The key ``pace`` holds, for each rate, the time at which an even stream would send its next request (GCRA, as in
# `rbim.client.limits`), and for each halted scope the time until which nothing of it leaves. A worker that wants to send
# computes the time of its slot, writes the key with that slot taken, and sleeps until then. If another worker was faster,
# the write fails, and it reads the key and computes again.
#
# A halt is judged by each worker from the answers that it sees, by the rules of a client (`rbim.client.halts`), and written
# into the same key. A worker with rates has the newest halts whenever its write succeeds; others read the key every second.
#
# Clocks: all times are those of the server that leads the bucket, which each worker reads every few seconds and carries on
# with its own monotonic clock. So the clocks of the machines with workers do not matter at all. If another server takes the
# lead, a difference of its clock delays or advances the next slots once by so much.
# An answer says that its time lay between the question and the answer, and nothing about when: without a leader, seconds may
# lie between them. So what is known is moved only as far as an answer contradicts it: workers whose clocks are moved by
# slow answers, each by another difference, would use slots of different times at once.
#
# What must always hold:
# - A slot is in the key before it is used, so no two workers have the same one.
# - A slot is used by LATE seconds after its time, or not at all: after an outage of the servers the slots of all workers
#   would be late at once.
# - What dies with a worker is at most the slots that it has taken and not used: those of twice BATCH_SECONDS, or two.

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import define, field

from rbim.client.halts import Halts
from rbim.errors import InvalidRequest
from rbim.jetstream.connection import REQUEST_TIMEOUT
from rbim.jetstream.nats_py import NatsError

if TYPE_CHECKING:
    from rbim.client.limits import Rate
    from rbim.jetstream.requests import Record, Requests
    from rbim.operations.base import Operation

__all__ = ["EngineClock", "SharedPace"]

KEY = "pace"
LATE = 0.1
"""Seconds after its time in which a slot can be used."""

BATCH_SECONDS = 0.05
"""Seconds of a rate that one worker takes at once, if so many of its operations wait."""

REFRESH = 1.0  # seconds between two reads of the key
SYNC = 10.0  # seconds between two reads of the servers' clock
TRIES = 5  # answers that a worker waits for, at the start, until one of them is quick
EARLIEST = 0.0  # before all times


class EngineClock:
    """The clock of the servers, as seconds since the epoch."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._offset = 0.0
        self._reads = 0
        self.known = asyncio.Event()
        """Set when the clock was read: by an answer that took at most LATE, or by TRIES of them."""

    def now(self) -> float:
        """Return the time, once it is known."""
        return asyncio.get_running_loop().time() + self._offset

    async def sync(self) -> bool:
        """Read the servers' clock; return whether the answer was quick.

        The clock differs from theirs by at most the time that the answer took, and by half of it if this is the first one.
        """
        loop = asyncio.get_running_loop()
        before = loop.time()
        found = (await self._requests.time()).timestamp()
        after = loop.time()
        known = self._offset if self._reads else found - (before + after) / 2
        self._offset = min(max(known, found - after), found - before)
        self._reads += 1
        quick = after - before <= LATE
        if quick or self._reads >= TRIES:
            self.known.set()
        return quick


@define(eq=False)
class _Kind:
    """The operations to which the same rates apply: the slots that are taken for them, and how many wait."""

    slots: deque[float] = field(factory=deque[float])
    waiting: int = 0
    lock: asyncio.Lock = field(factory=asyncio.Lock)


class SharedPace:
    """Rates and halts of one worker; ``rates`` are for all workers of the queue together."""

    def __init__(self, requests: Requests, rates: tuple[Rate, ...]) -> None:
        if any(rate.each_group for rate in rates):
            raise InvalidRequest("rates: a rate for each group belongs to the job, not to its workers", field="rates")
        self._requests = requests
        self._rates = {_name_of(rate): rate for rate in rates}
        self._halts = Halts()
        self.clock = EngineClock(requests)
        self._revision = 0
        self._due: dict[str, float] = {}
        self._halted: dict[str, float] = {}
        self._kinds = defaultdict[tuple[str, ...], _Kind](_Kind)
        self._moving = asyncio.Lock()
        self._calls = 0

    async def keep(self) -> None:
        """Keep the clock and the halts up to date, until it is cancelled."""
        loop = asyncio.get_running_loop()
        synced = loop.time()
        while True:
            if not self.clock.known.is_set() or loop.time() - synced >= SYNC:
                with suppress(NatsError, TimeoutError, OSError, LookupError):
                    if await self.clock.sync():
                        synced = loop.time()
            await self._read()
            await asyncio.sleep(REFRESH if self.clock.known.is_set() else REFRESH / 10)

    async def take(self, op: Operation[Any]) -> float:
        """Wait until the operation may leave, and take a slot for that in all rates that count it; return its time."""
        names = tuple(name for name, rate in self._rates.items() if rate.key(op) is not None)
        kind = self._kinds[names]
        kind.waiting += 1
        try:
            while True:
                async with kind.lock:  # first come, first served; not much sooner than it leaves
                    await self._until(self._halted_until(op))
                    if not names:
                        return self.clock.now()
                    if not kind.slots:
                        await self._move(names, kind)
                    at = kind.slots.popleft()
                    await self._until(at - BATCH_SECONDS)
                await self._until(at)
                if self._halted_until(op) <= self.clock.now() <= at + LATE:
                    return at
        finally:
            kind.waiting -= 1

    def is_late(self, at: float) -> bool:
        """Return whether the slot of that time cannot be used any more."""
        return bool(self._rates) and self.clock.now() > at + LATE

    async def _until(self, at: float) -> None:
        """Sleep until the time, at most as long as a halt is news."""
        while (left := at - self.clock.now()) > 0:  # noqa: ASYNC110  # time passes, nothing happens
            await asyncio.sleep(min(left, REFRESH))

    def _halted_until(self, op: Operation[Any]) -> float:
        return max(self._halted.get(scope, EARLIEST) for scope in _scopes(op))

    async def _move(self, names: tuple[str, ...], kind: _Kind) -> None:
        """Take the next slots for operations that these rates count."""
        rates = [self._rates[name] for name in names]
        most = min(max(1, int(BATCH_SECONDS * rate.limit / rate.per)) for rate in rates)
        async with self._moving:
            while True:
                due, slots = dict(self._due), list[float]()
                now = self.clock.now()
                for _ in range(min(most, kind.waiting)):
                    at = max(now, *(due.get(name, EARLIEST) - _slack(rate) for name, rate in zip(names, rates, strict=True)))
                    for name, rate in zip(names, rates, strict=True):
                        due[name] = max(due.get(name, EARLIEST), at) + rate.per / rate.limit
                    slots.append(at)
                if await self._write(due, self._halted):
                    kind.slots.extend(slots)
                    return

    async def sent(self, op: Operation[Any]) -> None:
        """Count an operation that was sent."""
        self._calls += 1
        if self._halts.watching(asyncio.get_running_loop().time()):
            for scope in dict.fromkeys(_scopes(op)):
                self._halts.sent(scope)

    async def throttled(self, op: Operation[Any], seconds: float) -> None:
        """Note that the platform asked for a pause; halt all workers if there is evidence that it concerns them."""
        now = asyncio.get_running_loop().time()
        narrow, wide = _scopes(op)
        self._halts.throttled(narrow, wide, seconds=seconds, now=now, calls=self._calls)
        ends = {scope: self._halts.until(scope) - now for scope in (narrow, wide) if self._halts.until(scope) > now}
        if not ends:
            return
        async with self._moving:
            while True:
                now = self.clock.now()
                halted = {scope: until for scope, until in self._halted.items() if until > now}
                news = {scope: now + left for scope, left in ends.items() if now + left > halted.get(scope, EARLIEST)}
                if not news or await self._write(self._due, halted | news):
                    return

    async def _write(self, due: dict[str, float], halted: dict[str, float]) -> bool:
        """Move the key; return False if another worker has moved it: then its values are those that are known now."""
        fields = {"due": due, "halted": halted}
        done, found = await self._requests.update(KEY, fields, self._revision)
        self._adopt(found)
        return done

    async def _read(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(REQUEST_TIMEOUT), self._moving:
                found = await self._requests.look(KEY)
                if found is not None:
                    self._adopt(found)

    def _adopt(self, found: Record) -> None:
        self._revision = found.revision
        self._due = dict(found.fields.get("due", {}))
        self._halted = dict(found.fields.get("halted", {}))


def _scopes(op: Operation[Any]) -> tuple[str, str]:
    """Return the narrow scope of an operation, with its group, and the wide one; equal for an operation without group."""
    wide = op.spec.name
    group = getattr(op, "group_id", None)
    return (wide if group is None else json.dumps([wide, group])), wide


def _slack(rate: Rate) -> float:
    return (rate.burst - 1) * rate.per / rate.limit


def _name_of(rate: Rate) -> str:
    names = ",".join(sorted(kind.spec.name for kind in rate.operations))
    return f"{rate.limit:g}/{rate.per:g} {rate.burst} {names}".strip()
