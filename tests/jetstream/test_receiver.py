"""Receiver, router and worker on different inboxes of the same servers, with the emulator's signed copies."""

import asyncio
from contextlib import asynccontextmanager

import anyio
import pytest

from rbim import InvalidRequest
from rbim.callbacks import Backoff, Receiver, Router, Spooled, Worker
from rbim.emulator import Emulator
from rbim.jetstream import JetStreamInbox
from rbim.timeouts import is_unshielded


def inbox(servers, name):
    return JetStreamInbox(servers.urls, name=name, partitions=4, replicas=1, takeover=1.0, retention=3600.0)


@asynccontextmanager
async def working(copies, router, **options):
    worker = Worker(copies, router, **options)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def until(condition):
    with anyio.fail_after(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def said():
    return []


@pytest.fixture
def router(said):
    router = Router()

    @router.fallback
    async def handle(event):
        if event.body == "fails":
            raise ValueError("as it has to")
        said.append(event.body)

    return router


async def test_copies_get_from_a_receiver_over_the_servers_to_a_worker(nats, name, said, router, tmp_path):
    emulator = Emulator()
    async with (
        Receiver(credentials=emulator.credentials, sink=inbox(nats, name), spool=tmp_path / "spool") as receiver,
        working(inbox(nats, name), router, backoff=Backoff(attempts=2, first=0.01, most=0.01)),
    ):
        emulator.copy_to(receiver)
        for number in range(5):
            emulator.say("1001", "1002", f"to 1002: {number}")
            emulator.say("1001", "1003", f"to 1003: {number}")
        emulator.say("1001", "1004", "fails")
        await emulator.deliver()
        await until(lambda: len(said) == 10)
        for account in ("1002", "1003"):
            assert [text for text in said if account in text] == [f"to {account}: {n}" for n in range(5)]
        async with inbox(nats, name) as copies:
            with anyio.fail_after(20):
                while not (dead := await copies.dead_letters()):
                    await asyncio.sleep(0.02)
            assert "ValueError: as it has to" in dead[0].error
            assert dead[0].attempts == 2
            assert await copies.replay(dead_only=True) == 1
        health = await receiver.health()
        assert health.ok


async def test_a_receiver_without_its_servers_spools_and_forwards_later(own_nats, name, said, router, tmp_path):
    emulator, seen = Emulator(), []
    own_nats.kill()
    async with Receiver(
        credentials=emulator.credentials, sink=inbox(own_nats, name), spool=tmp_path / "spool", observers=[seen.append]
    ) as receiver:
        emulator.copy_to(receiver)
        for number in range(6):
            emulator.say("1001", f"100{number}", str(number))
        with anyio.fail_after(5):
            await emulator.deliver()
        assert len([fact for fact in seen if isinstance(fact, Spooled) and fact.kept]) == 6
        own_nats.start(0)
        async with working(inbox(own_nats, name), router):
            await until(lambda: len(said) == 6)
    assert sorted(said) == [str(number) for number in range(6)]


async def test_a_server_that_does_not_answer_costs_the_budget_and_the_event_is_handled_once(
    own_nats, name, said, router, tmp_path
):
    emulator, seen = Emulator(), []
    async with Receiver(
        credentials=emulator.credentials,
        sink=inbox(own_nats, name),
        spool=tmp_path / "spool",
        budget=0.2,
        observers=[seen.append],
    ) as receiver:
        emulator.copy_to(receiver)
        for number in range(3):
            emulator.say("1001", f"100{number}", str(number))
        own_nats.freeze()
        with anyio.fail_after(1.5):  # less than a request to the servers may take
            await emulator.deliver()
        assert [fact.why for fact in seen if isinstance(fact, Spooled)] == ["the sink took longer than 0.2 s"] * 3
        own_nats.thaw()  # now it stores what it was sent, and then the same from the overflow file
        async with working(inbox(own_nats, name), router):
            await until(lambda: len(said) == 3)
        async with inbox(own_nats, name) as copies:
            counts = await copies.counts()
            assert (counts.waiting, counts.done) == (0, 3)
    assert sorted(said) == ["0", "1", "2"]


def test_in_normal_mode_a_sink_on_a_network_needs_an_overflow_file(tmp_path):
    emulator, sink = Emulator(), JetStreamInbox("127.0.0.1:1")
    with pytest.raises(InvalidRequest, match=r"JetStreamInbox is reached over a network.* spool="):
        Receiver(credentials=emulator.credentials, sink=sink)
    Receiver(credentials=emulator.credentials, sink=sink, spool=tmp_path / "spool")
    Receiver(credentials=emulator.credentials, sink=sink, mode="high-guarantee")


def test_accepting_is_marked_as_having_no_shields():
    """Then a receiver needs no second scope for it; that it ends in time is tested above."""
    assert is_unshielded(JetStreamInbox.accept)
