"""The inboxes of rbim pass the conformance suite for inboxes; broken ones fail it."""

from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from helpers import inbox_places
from helpers.inbox_conformance import CASES, failures
from rbim.callbacks.inbox.protocols import LeaseLost

AT_ONCE = 16


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("subject", [inbox_places.memory(), inbox_places.file()], ids=["memory", "file"])
async def test_conformance(subject):
    assert await failures(subject, at_once=AT_ONCE) == {}


CASE = {case.name: case for case in CASES}


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

    @asynccontextmanager
    async def backlog(self):
        async with self._inbox.backlog() as backlog:
            yield self.Backlog(backlog)

    class Backlog:
        def __init__(self, backlog):
            self._backlog = backlog

        def __getattr__(self, name):
            return getattr(self._backlog, name)


class CallsEverythingNew(Wrapped):
    async def accept(self, delivery):
        return bool(await self._inbox.accept(delivery)) or True


class HasNoLag(Wrapped):
    async def lag(self):
        return 0.0


class ForgetsLeases(Wrapped):
    class Backlog(Wrapped.Backlog):
        async def claim(self, limit):
            claims = await self._backlog.claim(limit)
            for claim in claims[:1]:
                await self._backlog.release(claim)
            return claims


class KnowsNoFences(Wrapped):
    class Backlog(Wrapped.Backlog):
        async def done(self, claims, *, more):
            with suppress(LeaseLost):
                return await self._backlog.done(claims, more=more)
            return []


class CountsNothing(Wrapped):
    class Backlog(Wrapped.Backlog):
        async def claim(self, limit):
            claims = await self._backlog.claim(limit)
            await self._backlog.discount(claims)
            return claims


BROKEN = {
    CallsEverythingNew: ["accept: a known key is accepted once, before and after it was handled"],
    HasNoLag: ["archive: the lag is the age of the oldest event that waits"],
    ForgetsLeases: ["claims: a leased conversation is not claimed again, also by other workers"],
    KnowsNoFences: ["done: a settled event cannot be settled again", "fences: with an old one nothing is recorded"],
    CountsNothing: ["deaths: the oldest event of each lease is retried alone, and nothing else"],
}
"""Inboxes that break the contract, with the cases that have to fail."""


@pytest.mark.ci
async def test_a_broken_inbox_fails():
    passed = {}

    async def run(broken):
        cases = [CASE[name] for name in BROKEN[broken]]
        found = await failures(inbox_places.file(broken), cases, at_once=AT_ONCE)
        passed[broken.__name__] = [case.name for case in cases if case.name not in found]

    async with anyio.create_task_group() as tasks:
        for broken in BROKEN:
            tasks.start_soon(run, broken)
    assert passed == {broken.__name__: [] for broken in BROKEN}


@pytest.mark.ci
async def test_a_wrapped_inbox_passes():
    assert await failures(inbox_places.file(Wrapped), at_once=AT_ONCE) == {}


def test_every_case_has_a_name_of_its_own():
    assert len(CASE) == len(CASES)


async def test_a_case_for_durable_inboxes_is_left_out_for_others():
    case = CASE["restart: everything is as it was"]
    assert case.durable
    assert await failures(inbox_places.memory(), [case]) == {}


async def test_a_failure_says_case_cause_and_requirement():
    name = "archive: the lag is the age of the oldest event that waits"
    found = await failures(inbox_places.file(HasNoLag), [CASE[name]])
    assert found == {name: f"{name}: the lag was 0 s, then 0 s; required: 50 s less"}
