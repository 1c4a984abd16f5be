"""The inbox in memory: what it keeps, whom it lets wait, and what its backlog gives out."""

import json

import anyio
import pytest
from anyio.lowlevel import checkpoint

from helpers.waiting import settle
from helpers.workers import NOON, text
from rbim import InvalidRequest
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.memory import MemorySink


def said(claim):
    return None if claim is None else json.loads(claim.body)["body"]


# ------------------------------------------------------------------------------------------ accepting


async def test_an_event_is_known_while_it_is_remembered(monkeypatch):
    monkeypatch.setattr("rbim.callbacks.inbox.memory.FORGET_EVERY", 1)
    sink = MemorySink(remember=2)

    async def handled(number):
        new = await sink.accept(text(number))
        async with sink.backlog() as backlog:
            for claim in await backlog.claim(1):
                await backlog.done([claim], more=0)
        return new

    assert [await handled(number) for number in (1, 1, 2, 1, 3, 2, 4, 1)] == [
        True, False, True, False, True, False, True, True,
    ]  # fmt: skip


async def test_what_cannot_be_handled_goes_to_quarantine_however_full_it_is():
    sink = MemorySink(capacity=1)
    await sink.accept(text(1))
    unreadable = [delivery_of(b"no JSON %d" % number, app_id="app", received=NOON) for number in range(3)]
    assert [await sink.accept(delivery) for delivery in unreadable] == [True] * 3
    assert await sink.accept(unreadable[2]) is False
    assert [letter.body for letter in await sink.quarantined()] == [each.body for each in unreadable]
    assert len(sink.events) == 1


async def test_who_finds_no_room_waits_for_it_in_the_order_of_coming():
    sink, log = MemorySink(capacity=2), []

    async def bring(number):
        log.append((number, await sink.accept(text(number))))

    async with anyio.create_task_group() as tasks, sink.backlog() as backlog:
        for number in (0, 1, 2, 3, 3, 4):
            tasks.start_soon(bring, number)
            await checkpoint()
        await settle()
        assert log == [(0, True), (1, True)]
        assert await sink.accept(text(1)) is False  # what is known needs no room
        (claim,) = await backlog.claim(1)
        await settle()
        assert len(log) == 2  # what is being handled takes room as well
        (claim,) = await backlog.done([claim], more=1)
        await settle()
        assert log[2:] == [(2, True)]
        (claim,) = await backlog.dead_letter(claim, error="x", more=1)
        await settle()
        assert sorted(log[3:]) == [(3, False), (3, True)]  # a copy of what is there now has its answer as well
        (claim,) = await backlog.done([claim], more=1)
        await settle()
        assert log[5:] == [(4, True)]
        assert said(claim) == "3"
    assert [event.body for event in sink.events] == ["3", "4"]


async def test_who_gives_up_waiting_leaves_its_place_to_the_next():
    sink, log = MemorySink(capacity=1), []

    async def bring(number):
        log.append((number, await sink.accept(text(number))))

    await sink.accept(text(0))
    async with anyio.create_task_group() as tasks, sink.backlog() as backlog:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(bring, 1)
                await settle()
                tasks.start_soon(bring, 2)
                await settle()
                scope.cancel()
        (claim,) = await backlog.claim(1)
        await backlog.done([claim], more=0)
        await settle()
        assert log == [(2, True)]
        assert await backlog.claim(1)
    assert [event.body for event in sink.events] == ["2"]


def test_options_that_make_no_sense_are_refused():
    for option in ("capacity", "remember"):
        with pytest.raises(InvalidRequest) as raised:
            MemorySink(**{option: 0})
        assert raised.value.field == option
