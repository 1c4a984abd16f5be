"""Receiver, router and worker on different inboxes of the same servers, with the emulator's signed copies."""

import asyncio
from contextlib import asynccontextmanager

import anyio
import pytest

from rbim import InvalidRequest
from rbim.callbacks import Receiver, Router, Spooled, Worker
from rbim.emulator import Emulator
from rbim.jetstream import JetStreamInbox


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


def test_in_normal_mode_a_sink_on_a_network_needs_an_overflow_file(tmp_path):
    emulator, sink = Emulator(), JetStreamInbox("127.0.0.1:1")
    with pytest.raises(InvalidRequest, match=r"JetStreamInbox is reached over a network.* spool="):
        Receiver(credentials=emulator.credentials, sink=sink)
    Receiver(credentials=emulator.credentials, sink=sink, spool=tmp_path / "spool")
    Receiver(credentials=emulator.credentials, sink=sink, mode="high-guarantee")
