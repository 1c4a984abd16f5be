"""Deliveries whose sinks have scopes, tasks and time-outs of their own, and whose tasks are cancelled from outside."""

import asyncio
import itertools
import time
from collections import Counter
from contextlib import suppress

import anyio
from anyio.lowlevel import checkpoint

from helpers.credentials import CREDENTIALS
from helpers.receiving_in_time import (
    LITTLE,
    SOON,
    Sink,
    at_once,
    cancels,
    content,
    everywhere,
    impatient,
    left_over,
    never,
    on_asyncio,
    post,
)
from rbim.callbacks import Receiver, SqliteInbox


async def has_tasks(_):
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(anyio.sleep_forever)


async def gives_back_what_hangs_too(_):
    """As a pool does whose database is gone: giving back the connection asks it once more."""
    try:
        await anyio.sleep_forever()
    finally:
        await anyio.sleep(20)


async def tries_again_after_a_cancellation(_):
    """As what takes every cancellation for the end of a time-out of its own."""
    with suppress(BaseException):
        await anyio.sleep_forever()
    await anyio.sleep(20)


OF_ANYIO = [gives_back_what_hangs_too, tries_again_after_a_cancellation, has_tasks]


async def answered_in_time(accept):
    """Deliver to such a sink, twice alone and five times at once; each is answered in time, and nothing is left behind."""
    receiver, statuses = impatient(Sink(accept)), []

    async def one(number):
        began = time.perf_counter()
        statuses.append(await post(receiver, content(number)))
        assert time.perf_counter() - began < 7 * SOON + LITTLE
        await checkpoint()
        assert cancels() == 0

    async with receiver:
        with anyio.fail_after(2):
            await one(0)
            await one(1)
            async with anyio.create_task_group() as tasks:
                for number in range(2, 7):
                    tasks.start_soon(one, number)
        assert left_over(receiver) == {}
    assert statuses == [503] * 7


@everywhere
async def test_a_sink_with_scopes_of_its_own_is_left_in_time():
    for accept in OF_ANYIO:
        await answered_in_time(accept)


@on_asyncio
async def test_a_task_that_is_cancelled_is_cancelled_also_at_the_moment_of_its_time_out():
    loop, outcomes = asyncio.get_running_loop(), Counter()
    async with impatient(Sink(never)) as receiver:
        for number, at in enumerate((SOON / 5, SOON - 0.0005, SOON + 0.0005) * 3):
            until = loop.time() + SOON
            task = asyncio.create_task(post(receiver, content(number)))
            handle = loop.call_at(until - SOON + at, task.cancel)
            if at > SOON / 2:
                loop.call_at(until - 0.02, time.sleep, 0.03)  # both fall due in one turn of the loop
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            outcomes[type(ended)] += 1
            handle.cancel()
            assert left_over(receiver) == {}
    assert set(outcomes) == {asyncio.CancelledError}, "a cancellation was swallowed"


LOOPS = ["asyncio", "trio"]


def run(name, function, *args):
    return anyio.run(function, *args, backend=name)


async def a_slow_and_a_quick_one(receiver):
    async with receiver:
        with anyio.fail_after(5):
            receiver.sink._accept = never
            slow = await post(receiver, content("slow"))
            receiver.sink._accept = at_once
            return slow, await post(receiver, content("quick"))


def test_a_receiver_may_be_entered_in_one_loop_after_the_other(tmp_path):
    for first, then in itertools.product(LOOPS, LOOPS):
        receiver = impatient(Sink(at_once))
        for name in (first, then):
            assert run(name, a_slow_and_a_quick_one, receiver) == (503, 200)

    durable = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))

    async def one(number):
        async with durable:
            return await post(durable, content(number)), (await durable.sink.counts()).waiting

    found = [run(name, one, number) for number, name in enumerate(["asyncio", "asyncio", "trio"])]
    assert found == [(200, 1), (200, 2), (200, 3)]
