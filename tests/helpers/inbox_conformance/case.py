"""The parts of the conformance suite for inboxes: a case, the inbox under test, and what cases do with it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol
from unittest import SkipTest

import anyio
from attrs import field, frozen

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.protocols import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
"""When the deliveries of the cases were received."""

PATIENCE = 10.0
"""Seconds of real time for whatever must happen soon."""


class NonConformingInbox(AssertionError):
    """An inbox breaks the contract; the message says case, cause and requirement."""


class Place(Protocol):
    """Where the events of one case are kept: an empty file, an empty stream."""

    def inbox(self):
        """Return an inbox, not entered, for the events of this place: as another process would make it.

        An inbox that is not durable is the same each time.
        """
        ...

    async def pass_time(self, seconds):
        """Let time pass, for pauses, leases and ages: on an emulated clock or really."""
        ...

    async def kill(self, backlog):
        """End a worker as the death of its process does: it gives nothing back. Return when others may claim its events.

        The backlog is left afterwards. Needed with the feature ``deaths`` only.
        """
        ...


@frozen
class InboxConformance:
    """An inbox under test: a function that makes a new :class:`Place`, and the features of the inbox.

    - ``inbox`` (default: True): it gives events out; a sink that does not passes the cases ``sink: ...`` only.
    - ``durable`` (default: True): events survive the process; all inboxes of a place share them.
    - ``archive`` (default: True): the inbox is an Archive.
    - ``compares`` (default: True): it keeps other content under a known key apart.
    - ``keeps`` (default: True): handled events are counted and can be replayed.
    - ``deaths`` (default: True): a worker may die: its events are claimed again, and retried alone.
    - ``expires`` (default: True): leases end by time alone, while their worker lives.
    - ``delay`` (default: 0): real seconds within which an accepted event can be claimed; cases that expect none wait.
    """

    make: Callable[[], AbstractAsyncContextManager[Place]]
    inbox: bool = field(default=True, kw_only=True)
    durable: bool = field(default=True, kw_only=True)
    archive: bool = field(default=True, kw_only=True)
    compares: bool = field(default=True, kw_only=True)
    keeps: bool = field(default=True, kw_only=True)
    deaths: bool = field(default=True, kw_only=True)
    expires: bool = field(default=True, kw_only=True)
    delay: float = field(default=0.0, kw_only=True)

    def has(self, feature):
        """Whether the inbox has the feature with this field name."""
        return bool(getattr(self, feature))


@frozen
class InboxCase:
    """A test of one rule of the contract: ``await case(subject)`` raises NonConformingInbox if the inbox breaks it.

    It raises ``unittest.SkipTest`` if the inbox lacks a feature that the case ``needs``. It takes at most ``seconds``.
    """

    name: str
    run: Callable[[Bench], Awaitable[None]] = field(repr=False)
    needs: frozenset[str] = frozenset()
    seconds: float = 6 * PATIENCE

    def __str__(self):
        return self.name

    async def __call__(self, subject, /):
        """Test the inbox. Raises NonConformingInbox or SkipTest."""
        if missing := sorted(need for need in self.needs if not subject.has(need)):
            raise SkipTest(f"the inbox lacks the features {', '.join(missing)} (fields of InboxConformance)")
        try:
            with anyio.fail_after(self.seconds):
                async with subject.make() as place:
                    await self.run(Bench(subject, place))
        except SkipTest:
            raise
        except Exception as error:
            single = _single(error)
            known = isinstance(single, NonConformingInbox)
            cause = str(single) if known else f"unexpected {type(single).__name__}: {single}"
            if isinstance(single, TimeoutError):
                cause += f"; required: the case ends within {self.seconds:g} s"
            raise NonConformingInbox(f"{self.name}: {cause}") from error


class Cases(list[InboxCase]):
    """The cases of one module, in order; ``needs`` are features that all of them need."""

    def __init__(self, *needs):
        super().__init__()
        self._needs = needs

    def add(self, name, *needs):
        """Return a decorator that adds a function as a case."""

        def added(run):
            self.append(InboxCase(name, run, frozenset((*self._needs, *needs))))
            return run

        return added


def _single(error):
    """Return the exception inside a group, if the group has only one; else the error itself."""
    if not isinstance(error, ExceptionGroup):
        return error
    exceptions = error.exceptions
    return _single(exceptions[0]) if len(exceptions) == 1 else error


def check(condition, message):
    """Raise NonConformingInbox with this message unless the condition is true."""
    if not condition:
        raise NonConformingInbox(message)


def same(found, required, of):
    """Raise NonConformingInbox unless two values are equal."""
    check(found == required, f"{of}: got {found!r}; required: {required!r}")


def delivery(number, team="b", *, msg_type="TEXT", **changes):  # fields of Delivery
    """Return a delivery of a message to a group; ``changes`` replaces fields."""
    document = {
        "eventType": "1",
        "convType": "TEAM",
        "to": team,
        "fromAccount": "app#a",
        "msgType": msg_type,
        "msgId": str(number),
    }
    received = changes.pop("received", AT)
    return delivery_of(json.dumps(document).encode(), app_id="app", received=received)._replace(**changes)


async def accepted(sink, given, *, new):
    """Check that a sink accepts a delivery as a new one, or that it knows its key."""
    found = await sink.accept(given)
    check(found is new, f"accept of {given.body[:100]!r} returned {found!r}; required: {new}")


def told(claims):
    """Return the ``msgId`` of each claim."""
    return [json.loads(claim.body)["msgId"] for claim in claims]


async def lost(call, what):
    """Check that a call raises LeaseLost."""
    try:
        await call
    except LeaseLost:
        return
    raise NonConformingInbox(f"{what} succeeded; required: LeaseLost")


class Bench:
    """A place, and what cases do there."""

    def __init__(self, subject, place):
        self.subject = subject
        self.place = place

    def inbox(self):
        """Return an inbox of the place, to be entered."""
        return self.place.inbox()

    @staticmethod
    def archive(inbox):
        """Return an entered inbox as an archive."""
        return inbox

    @asynccontextmanager
    async def open(self, *deliveries):
        """Enter an inbox and a backlog of it, with these deliveries accepted."""
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
        """Check that no event can be claimed."""
        if self.subject.delay:
            await anyio.sleep(self.subject.delay)
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
