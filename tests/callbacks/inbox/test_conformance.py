"""The inboxes of rbim pass the conformance suite for inboxes; broken ones fail it."""

from unittest import SkipTest

import anyio
import pytest

from helpers import inbox_places
from helpers.broken_inboxes import BROKEN, HasNoLag, Wrapped
from helpers.inbox_conformance import CASES, NonConformingInbox, failures

AT_ONCE = 16


def shown(failing):
    """Return failures as what a failing test is to show."""
    return [str(failure) for failure in failing.values()]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("subject", [inbox_places.memory(), inbox_places.file()], ids=["memory", "file"])
async def test_conformance(subject):
    assert shown(await failures(subject, at_once=AT_ONCE)) == []


CASE = {case.name: case for case in CASES}


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
    assert shown(await failures(inbox_places.file(Wrapped), at_once=AT_ONCE)) == []


def test_every_case_has_a_name_of_its_own():
    assert len(CASE) == len(CASES)


async def test_a_case_that_needs_more_is_skipped():
    case = CASE["restart: everything is as it was"]
    with pytest.raises(SkipTest, match="durable"):
        await case(inbox_places.memory())
    assert await failures(inbox_places.memory(), [case]) == {}


async def test_the_message_says_case_cause_and_requirement():
    case = CASE["archive: the lag is the age of the oldest event that waits"]
    with pytest.raises(NonConformingInbox, match=r"^archive: the lag .*: the lag was 0 s, then 0 s; required: 50 s less$"):
        await case(inbox_places.file(HasNoLag))
