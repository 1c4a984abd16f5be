"""What only trio does: its end cancels tasks that nothing waits for, and its cancellations come in groups."""

import pytest
import trio

from helpers.workers import router_of, text
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.observers import HandlingEnded, HandlingFailed, Observers, PartEnded
from rbim.callbacks.worker.worker import Worker


async def sleeping_in_a_nursery(_event):
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(trio.sleep_forever)


def test_the_end_of_the_loop_is_no_end_of_a_worker_by_itself():
    facts = []

    async def main():
        await Worker(MemorySink(), router_of(print), observers=Observers([facts.append])).__aenter__()

    trio.run(main)
    assert [each for each in facts if isinstance(each, PartEnded)] == []


def test_ctrl_c_in_a_handler_ends_the_loop():
    sink = MemorySink()

    async def handler(_event):
        raise KeyboardInterrupt

    async def main():
        async with Worker(sink, router_of(handler)):
            await sink.accept(text(1))
            with trio.fail_after(10):
                await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


def test_a_group_of_cancellations_is_the_end_of_a_handler_and_no_failure():
    sink, facts = MemorySink(), []

    async def main():
        worker = Worker(sink, router_of(sleeping_in_a_nursery), observers=Observers([facts.append]), drain=0.0)
        async with worker:
            await sink.accept(text(1))
            with trio.fail_after(10):
                while (await sink.counts()).waiting != 1 or not facts:
                    await trio.sleep(0.001)

    trio.run(main)
    (ended,) = [each for each in facts if isinstance(each, HandlingEnded)]
    assert (ended.cancelled, ended.error) == (True, None)
    assert [each for each in facts if isinstance(each, HandlingFailed)] == []
    assert len(sink.events) == 1
