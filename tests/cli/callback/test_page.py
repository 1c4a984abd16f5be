"""The page of ``rbim callback serve`` in this process: any inbox has one, and what it keeps is bounded."""

from __future__ import annotations

import sqlite3
from collections import deque
from datetime import UTC, datetime

import anyio
import httpx
import pytest

from helpers.callback_process import APP, MINE, event
from helpers.page_callbacks import LOST, accepted, fill
from helpers.page_client import PageClient
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.observers import DeadLettered, Handled, HandlingEnded, HandlingFailed, HandlingStarted
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.signature import Policy, sign
from rbim.cli.callback.page import KEPT, CallbackPage, Deliveries, PageFacts
from rbim.page.events import Feed


def page_of(archive, **options):
    facts = PageFacts(inbox="memory", kind="file", mode="normal", handling=("print",))
    return CallbackPage(facts=facts, archive=archive, credentials=(MINE,), policy=Policy(), **options)


@pytest.mark.anyio
async def test_an_inbox_in_memory_has_a_page_too():
    inbox = MemorySink()
    await fill(inbox, [LOST], 1)
    page = page_of(inbox)
    receiver = Receiver(credentials=MINE, sink=inbox, observers=[page.deliveries.observe])
    async with receiver, page.serving("http://127.0.0.1:1/") as address:
        app = httpx.ASGITransport(page.deliveries.watched(receiver.asgi))
        body = event(msgId="m1")
        headers = sign(body, credentials=MINE, now=datetime.now(UTC))
        async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1") as sender:
            assert (await sender.post("/", content=body, headers=headers)).status_code == 200

        def ask():
            with PageClient(address) as client:
                with client.events() as events:
                    levels = next(each["levels"] for each in events if each.get("levels", {}).get("counts"))
                listed = client.get("/letters", kind="dead").json()["letters"]
                assert client.post("/requeue", kind="dead", number=listed[0]["number"]).json()["events"] == 1
                return levels

        levels = await anyio.to_thread.run_sync(ask)
    assert levels["counts"] == {"waiting": 1, "done": 0, "dead": 1, "quarantined": 1}
    assert await inbox.counts() == type(await inbox.counts())(waiting=2, done=0, dead=0, quarantined=1)


class Broken:
    """An inbox that cannot be read now."""

    async def counts(self):
        raise sqlite3.OperationalError("database is locked")

    async def dead_letters(self, *_, **__):
        raise ConnectionError("no server answers")


@pytest.mark.anyio
async def test_an_inbox_that_cannot_be_read_is_said_and_the_rest_goes_on():
    page = page_of(Broken())
    async with page.serving("http://127.0.0.1:1/") as address:

        def ask():
            with PageClient(address) as client, client.events() as events:
                levels = next(each["levels"] for each in events if each.get("levels", {}).get("problem"))
                return levels, client.get("/letters", kind="dead")

        levels, answer = await anyio.to_thread.run_sync(ask)
    assert (levels["counts"], levels["problem"]) == (None, "OperationalError: database is locked")
    assert answer.json() == {"error": "the inbox cannot be used now: no server answers"}
    assert answer.status_code == 400


@pytest.mark.anyio
async def test_the_list_is_bounded_and_a_change_finds_its_delivery():
    feed = Feed()
    deliveries = Deliveries(feed, lambda: 5.0)

    async def app(_, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with httpx.AsyncClient(transport=httpx.ASGITransport(deliveries.watched(app)), base_url="http://x") as sender:
        for number in range(KEPT + 20):
            await sender.post("/", content=event(msgId=f"m{number}"))
        await sender.get("/")
    held = deliveries._stream.held()
    assert (len(held), held[0].number, held[-1].number) == (KEPT, 21, KEPT + 20)
    assert deliveries.counters.deliveries == KEPT + 20
    assert all(each.body is None and not each.headers for each in held)
    assert deliveries.rate() == (KEPT + 20) / 10

    held[-1].key = key = accepted(1).key
    deliveries._by_key[key] = deque([held[-1]])
    common = {"key": key, "attempt": 2}
    known = {"event": "Message", "handler": "on_text", "app_id": APP}
    deliveries.observe(HandlingStarted(**common, **known))
    assert deliveries.counters.in_work == 1
    deliveries.observe(HandlingEnded(**common, elapsed=0.1, error=None, cancelled=False))
    deliveries.observe(HandlingFailed(**common, **known, error="E" * 1000, pause=1.0))
    deliveries.observe(Handled(**common, elapsed=0.1))
    deliveries.observe(DeadLettered(key="unknown", attempt=8, error="E"))
    assert deliveries.counters.in_work == 0
    assert [(each["state"], len(each["error"])) for each in deliveries._changes.held()] == [("failed", 300), ("handled", 0)]
    assert (deliveries.counters.handled, deliveries.counters.failed, deliveries.counters.dead) == (1, 1, 1)
