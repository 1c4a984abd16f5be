"""The parts of the conformance suite for inboxes: a case, the inbox under test, and what cases do with it."""

import json
from collections.abc import Callable
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint
from attrs import field, frozen

from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.emulator.clock import START

AT = START  # when the deliveries of the cases were received
PATIENCE = 10.0  # seconds of real time for whatever must happen soon


@frozen
class InboxConformance:
    """An inbox under test: a function that makes a new place for the events of one case, such as an empty file.

    - ``place.inbox()`` returns an inbox, not entered, as another process would make it; one that is not durable is the same
      each time.
    - ``await place.pass_time(seconds)`` lets time pass, for pauses, leases and ages.
    - ``await place.kill(backlog)`` ends a worker as the death of its process does: it gives nothing back. It returns when
      others may claim its events. For durable inboxes only.

    ``durable`` (default: True): events survive the process, and all inboxes of a place share them.
    """

    make: Callable
    durable: bool = field(default=True, kw_only=True)


@frozen
class InboxCase:
    """A test of one rule of the contract; ``durable``: for durable inboxes only."""

    name: str
    run: Callable
    durable: bool

    async def failure(self, subject):
        """Return in words how the inbox breaks the rule; None if it does not, or the case is not for it."""
        if self.durable and not subject.durable:
            return None
        try:
            with anyio.fail_after(6 * PATIENCE):
                async with subject.make() as place:
                    await self.run(Bench(subject, place))
        except Exception as error:
            while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            return f"{self.name}: {error if isinstance(error, AssertionError) else f'unexpected {error!r}'}"
        return None


class Cases(list):
    """The cases of one module, in order; ``durable``: all of them need a durable inbox."""

    def __init__(self, *, durable=False):
        super().__init__()
        self._durable = durable

    def add(self, name, *, durable=False):
        def added(run):
            self.append(InboxCase(name, run, durable or self._durable))
            return run

        return added


def check(condition, message):
    if not condition:
        raise AssertionError(message)  # pytest adds nothing to it


def same(found, required, of):
    check(found == required, f"{of}: got {found!r}; required: {required!r}")


async def accepted(sink, given, *, new):
    found = await sink.accept(given)
    check(found is new, f"accept of {given.body[:100]!r} returned {found!r}; required: {new}")


def told(claims):
    return [json.loads(claim.body)["msgId"] for claim in claims]


async def lost(call, what):
    try:
        await call
    except LeaseLost:
        return
    raise AssertionError(f"{what} succeeded; required: LeaseLost")


async def cancelled(steps, call, *arguments):
    """Begin a call, and cancel it after so many turns of the event loop."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, *arguments)
        for _ in range(steps):
            await checkpoint()
        tasks.cancel_scope.cancel()


class Bench:
    """A place, and what cases do there."""

    def __init__(self, subject, place):
        self.subject = subject
        self.place = place

    def inbox(self):
        return self.place.inbox()

    @asynccontextmanager
    async def open(self, *deliveries):
        async with self.inbox() as inbox, inbox.backlog() as backlog:
            for each in deliveries:
                await accepted(inbox, each, new=True)
            yield inbox, backlog

    @asynccontextmanager
    async def worker(self):
        """Enter a backlog as another process has it."""
        async with self.inbox().backlog() as backlog:
            yield backlog

    async def claim(self, backlog, count=1, *, limit=None):
        """Claim ``count`` events, as soon as they can be claimed, with at most ``limit`` at once (default: ``count``)."""
        found = []
        with anyio.move_on_after(PATIENCE):
            while len(found) < count:
                claims = await backlog.claim(limit or count - len(found))
                check(len(claims) <= (limit or count - len(found)), f"claim({limit or count}) returned {len(claims)}")
                found += claims
                if len(found) < count:
                    await backlog.wait()
        check(len(found) >= count, f"{len(found)} events were claimed within {PATIENCE:g} s; required: {count}")
        return found

    async def nothing(self, backlog, why):
        claims = await backlog.claim(10)
        check(not claims, f"claimed {told(claims)}, although {why}; required: nothing")

    async def handle(self, backlog, count):
        """Handle ``count`` events, each when it can be claimed; return their claims in this order."""
        handled = []
        while len(handled) < count:
            (claim,) = await self.claim(backlog)
            handled.append(claim)
            while (left := count - len(handled)) and (following := await backlog.done((claim,), more=1)):
                (claim,) = following
                handled.append(claim)
            if not left:
                await backlog.done((claim,), more=0)
        return handled
