"""Receivers may be left by any task and in any order, and nothing of them is left behind."""

import asyncio
import sys
from contextvars import ContextVar

import anyio
import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from helpers.waiting import until
from rbim._support.event_loops import backend
from rbim.callbacks import Backoff, MemorySink, PartEnded, PartRestarted, Receiver, SqliteInbox
from rbim.callbacks.worker import supervision

TENANT = ContextVar("TENANT", default="")


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def provider():
    return CREDENTIALS


@pytest.fixture(params=[CREDENTIALS, provider], ids=["credentials", "provider"])
def credentials(request):
    return request.param


class Closing(MemorySink):
    closed = False

    async def __aexit__(self, *details):
        self.closed = True
        return await super().__aexit__(*details)


def made(log, credentials=CREDENTIALS, *, seconds=0.05, **options):
    receiver = Receiver(sink=Closing(), credentials=credentials, **options)

    @receiver.fallback
    async def handle(_):
        log.append("begins")
        try:
            await anyio.sleep(seconds)
            log.append("ends")
        except BaseException:
            log.append("cancelled")
            raise

    return receiver


async def other_task(function, *arguments):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(function, *arguments)


def tasks_of_receivers():
    return [each for each in anyio.get_running_tasks() if each.name == "rbim-receiver"]


async def test_receivers_may_be_left_in_the_order_in_which_they_were_entered(credentials):
    logs = [], []
    receivers = [made(log, credentials) for log in logs]
    for number, each in enumerate(receivers):
        await each.__aenter__()
        assert (await post(each, body(msgId=str(number)))).status == 200
    await until(lambda: all(logs))
    for each in receivers:
        await each.__aexit__(None, None, None)
    assert logs == (["begins", "ends"],) * 2  # each had its drain
    assert all(each.sink.closed for each in receivers)
    await anyio.sleep(0)  # this task is not cancelled
    if backend() == "asyncio":
        assert tasks_of_receivers() == []


async def test_an_error_of_the_block_is_raised_as_it_is(tmp_path, credentials):
    receiver = Receiver(credentials=credentials, sink=SqliteInbox(tmp_path / "events.db"))
    receiver.fallback(print)
    with pytest.raises(KeyError):
        async with receiver:
            raise KeyError


async def test_a_receiver_may_be_left_by_another_task_than_the_one_that_entered_it(credentials):
    log = []
    receiver = made(log, credentials)
    await other_task(receiver.__aenter__)
    await post(receiver, body())
    await until(lambda: log)
    await other_task(receiver.__aexit__, None, None, None)
    assert log == ["begins", "ends"]
    assert receiver.sink.closed


async def test_handlers_see_the_context_variables_of_the_task_that_entered():
    seen = []
    receiver = Receiver(sink=MemorySink(), credentials=CREDENTIALS)

    @receiver.fallback
    async def handle(_):
        seen.append(TENANT.get())

    TENANT.set("a")
    async with receiver:
        TENANT.set("b")
        await post(receiver, body())
        await until(lambda: seen)
    assert seen == ["a"]


async def test_a_block_that_is_cancelled_cancels_the_handlers_and_waits_for_their_end(credentials):
    log = []
    receiver = made(log, credentials, seconds=10, drain=10)
    with anyio.fail_after(2):
        with anyio.CancelScope() as scope:
            async with receiver:
                await post(receiver, body())
                await until(lambda: log)
                scope.cancel()
                await anyio.sleep(10)
        assert scope.cancelled_caught
    assert log == ["begins", "cancelled"]
    assert receiver.sink.closed
    assert len(receiver.sink.events) == 1


@pytest.fixture
def at_once(monkeypatch):
    """Restarts without a pause."""
    monkeypatch.setattr(supervision, "RESTARTS", Backoff(attempts=sys.maxsize, first=0.001, most=0.001))


@pytest.mark.usefixtures("at_once")
def test_a_receiver_whose_tasks_are_all_cancelled_is_started_again(tmp_path):
    asyncio.run(cancel_all_tasks(tmp_path))  # of pytest's own loop, they would be those of the test, too


async def cancel_all_tasks(tmp_path):
    facts, handled = [], []
    receiver = Receiver(sink=SqliteInbox(tmp_path / "events.db"), credentials=CREDENTIALS, observers=[facts.append])

    @receiver.fallback
    async def handle(event):
        handled.append(event.body)

    async with receiver, asyncio.timeout(20):
        for _ in range(2):
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            count = len([each for each in facts if isinstance(each, PartRestarted) and each.part == "receiver"])
            await until(lambda count=count: receiver._supervision.restarts > count and receiver._supervision.running)
        assert (await post(receiver, body())).status == 200
        await until(lambda: handled)
        assert (await receiver.health()).ok
        assert (await receiver.health()).restarts >= 2
    ended = [each for each in facts if isinstance(each, PartEnded) and each.part == "receiver"]
    assert len(ended) == 2
    assert "503" in str(ended[0])
    assert tasks_of_receivers() == []
