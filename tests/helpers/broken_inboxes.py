"""Inboxes that break the contract, one for each part of the conformance suite, and the cases that have to fail them."""
# a method that breaks the contract need not use its arguments

from contextlib import asynccontextmanager

from rbim.callbacks.inbox.protocols import LeaseLost

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


@fails("accept: a known key is accepted once, before and after it was handled")
class CallsEverythingNew(Wrapped):
    async def accept(self, delivery):
        return bool(await self._inbox.accept(delivery)) or True


@breaks_backlog("claims: a leased conversation is not claimed again, also by other workers")
class ForgetsLeases(Wrapped.Backlog):
    async def claim(self, limit):
        claims = await self._backlog.claim(limit)
        for claim in claims[:1]:
            await self._backlog.release(claim)
        return claims


@breaks_backlog("done: a settled event cannot be settled again", "fences: with an old one nothing is recorded")
class KnowsNoFences(Wrapped.Backlog):
    async def done(self, claims, *, more):
        try:
            return await self._backlog.done(claims, more=more)
        except LeaseLost:
            return []


@breaks_backlog("deaths: the oldest event of each lease is retried alone, and nothing else")
class CountsNothing(Wrapped.Backlog):
    async def claim(self, limit):
        claims = await self._backlog.claim(limit)
        await self._backlog.discount(claims)
        return claims


@fails("archive: the lag is the age of the oldest event that waits")
class HasNoLag(Wrapped):
    async def lag(self):
        return 0.0
