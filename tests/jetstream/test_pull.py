"""No more messages are in hand than there are places, whatever happens to the requests for them."""

import asyncio
import json

import pytest

from rbim.jetstream import pull as module
from rbim.jetstream.pull import Pull


class Client:
    """Notes what is published; ``subscribed`` is set when a subscription may be made."""

    def __init__(self):
        self.asked = []
        self.subscribed = asyncio.Event()

    async def subscribe(self, subject, *, cb):
        del subject, cb
        await self.subscribed.wait()

    async def publish(self, subject, data, *, reply):
        del subject, reply
        self.asked.append(json.loads(data)["batch"])


class Message:
    def __init__(self):
        self.headers, self.data, self.given_back = None, b"{}", False

    async def nak(self):
        self.given_back = True


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_what_comes_beyond_the_places_is_given_back():
    taken, messages = [], [Message() for _ in range(4)]
    pull = Pull("stream", "consumer", 2, taken.append)
    for message in messages:
        await pull._on_message(message)
    assert taken == messages[:2]
    assert [each.given_back for each in messages] == [False, False, True, True]
    pull.free()
    await pull._on_message(last := Message())
    assert taken[-1] is last


@pytest.mark.anyio
async def test_nothing_is_asked_for_before_the_answers_can_come(monkeypatch):
    monkeypatch.setattr(module, "EXPIRES", 0.001)  # it looks again and again
    client, pull = Client(), Pull("stream", "consumer", 2, lambda _: None)
    client.subscribed.set()
    await pull.connected(client)
    asking = asyncio.create_task(pull.run())
    await turns()
    assert client.asked == [2]
    client.subscribed.clear()
    connecting = asyncio.create_task(pull.connected(client))
    await turns()
    pull.free()  # a message of before has ended: its place is free
    await turns()
    assert client.asked == [2]
    client.subscribed.set()
    await connecting
    asking.cancel()
