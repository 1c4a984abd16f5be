"""Inboxes that break the contract in one point each, and the cases in which the conformance suite has to fail them."""
# ruff: noqa: ARG002  # a method that breaks the contract need not use its arguments

import random
from contextlib import asynccontextmanager

import anyio

from rbim.callbacks.inbox.protocols import Counts, LeaseLost, OtherContent

BROKEN = {}


def fails(*cases):
    """Say in which cases an inbox fails."""

    def decorator(kind):
        BROKEN[kind] = cases
        return kind

    return decorator


class Wrapped:
    """An inbox around another one: each class overrides what it breaks."""

    def __init__(self, inbox):
        self._inbox = inbox

    def __getattr__(self, name):
        return getattr(self._inbox, name)

    async def __aenter__(self):
        await self._inbox.__aenter__()
        return self

    async def __aexit__(self, *ending):
        return await self._inbox.__aexit__(*ending)

    async def accept(self, delivery):
        return await self._inbox.accept(delivery)

    @asynccontextmanager
    async def backlog(self):
        async with self._inbox.backlog() as backlog:
            yield self.Backlog(backlog)

    class Backlog:
        def __init__(self, backlog):
            self._backlog = backlog

        def __getattr__(self, name):
            return getattr(self._backlog, name)


def backlog_of(kind):
    """Return an inbox whose backlog is of this kind."""
    return type(kind.__name__, (Wrapped,), {"Backlog": kind})


def breaks_backlog(*cases):
    def decorator(kind):
        BROKEN[backlog_of(kind)] = cases
        return kind

    return decorator


# Accepting.


@fails("sink: a key is new once", "accept: a known key is accepted once, before and after it was handled")
class CallsEverythingNew(Wrapped):
    async def accept(self, delivery):
        return bool(await self._inbox.accept(delivery)) or True


@fails("accept: other content under a known key is kept apart, once")
class DropsOtherContent(Wrapped):
    async def accept(self, delivery):
        accepted = await self._inbox.accept(delivery)
        return False if isinstance(accepted, OtherContent) else accepted


@fails("accept: what has a problem goes into quarantine and is never claimed")
class HandlesEverything(Wrapped):
    async def accept(self, delivery):
        return await self._inbox.accept(delivery._replace(problem=None))


@fails(
    "accept: numbers grow in the order of acceptance", "order: the events of a conversation come in the order of acceptance"
)
class StoresOneLate(Wrapped):
    """The first delivery is stored behind a later one of its conversation."""

    _kept = None

    async def accept(self, delivery):
        if self._kept is None and b'"0"' in delivery.body:
            self._kept = delivery
            return True
        new = await self._inbox.accept(delivery)
        if self._kept is not None and b'"3"' in delivery.body:
            kept, self._kept = self._kept, None
            await self._inbox.accept(kept)
        return new


# Claims.


@breaks_backlog("claims: a leased conversation is not claimed again, also by other workers")
class ForgetsLeases(Wrapped.Backlog):
    async def claim(self, limit):
        claims = await self._backlog.claim(limit)
        for claim in claims[:1]:
            await self._backlog.release(claim)
        return claims


@breaks_backlog("waiting: it ends when another process has accepted an event", "waiting: it ends when a pause is over")
class IsNotWoken(Wrapped.Backlog):
    async def wait(self):
        await anyio.sleep_forever()


# Results.


@breaks_backlog("done: a settled event cannot be settled again", "fences: with an old one nothing is recorded")
class KnowsNoFences(Wrapped.Backlog):
    async def done(self, claims, *, more):
        try:
            return await self._backlog.done(claims, more=more)
        except LeaseLost:
            return []


@breaks_backlog("retry: its conversation pauses, all others do not")
class NeverPauses(Wrapped.Backlog):
    async def retry(self, claim, *, error, pause):
        await self._backlog.retry(claim, error=error, pause=0)


@breaks_backlog("dead letter: the event is kept with its traceback, and the next one follows")
class LosesDeadLetters(Wrapped.Backlog):
    async def dead_letter(self, claim, *, error, more):
        return await self._backlog.done((claim,), more=more)


# Deaths.


@breaks_backlog("deaths: the oldest event of each lease is retried alone, and nothing else")
class CountsNothing(Wrapped.Backlog):
    async def claim(self, limit):
        claims = await self._backlog.claim(limit)
        await self._backlog.discount(claims)
        return claims


# Archive.


@fails("archive: counts of waiting, dead and quarantined events")
class CountsWrongly(Wrapped):
    async def counts(self):
        counts = await self._inbox.counts()
        return Counts(waiting=counts.waiting + counts.dead, done=counts.done, dead=counts.dead, quarantined=0)


@fails("archive: the lag is the age of the oldest event that waits")
class HasNoLag(Wrapped):
    async def lag(self):
        return 0.0


@fails("replay: handled events come again in their old order")
class ReplaysNothingThatWasHandled(Wrapped):
    async def replay(self, since=None, kind=None, *, dead_only=False):
        return await self._inbox.replay(since, kind, dead_only=True)


@fails("requeue: dead letters wait again, before what waits behind them, and attempts count from 1")
class RequeuesOne(Wrapped):
    async def requeue(self, numbers):
        return await self._inbox.requeue(random.Random(1).sample(sorted(set(numbers)), 1))
