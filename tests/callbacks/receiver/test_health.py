"""The health of a receiver: as a value, and at the door for load balancers."""

import json
import logging
import threading

import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from helpers.waiting import until
from rbim import InvalidRequest
from rbim.callbacks import MemorySink, NotEntered, Receiver, SqliteInbox
from rbim.callbacks.worker import runner
from rbim.emulator import EmulatedClock


class Failing(MemorySink):
    fails = False

    def accept_now(self, delivery, /):
        if self.fails:
            return None
        return super().accept_now(delivery)

    async def accept(self, delivery, /):
        if self.fails:
            reason = "disk full"
            raise OSError(reason)
        return await super().accept(delivery)


async def asked(receiver, path="/health", method="GET", root=""):
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "root_path": root, "headers": []}
    await receiver.asgi(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def made(sink=None, **options):
    return Receiver(**{"sink": sink or MemorySink(), "credentials": CREDENTIALS, "health": "/health", **options})


async def test_a_receiver_without_handlers_accepts_and_does_not_handle(tmp_path):
    clock = EmulatedClock()
    receiver = made(SqliteInbox(tmp_path / "events.db", clock=clock), clock=clock)
    assert not (await receiver.health()).ok
    async with receiver:
        await post(receiver, body(msgId="1"))
        await post(receiver, body(msgId="2"))
        await clock.advance(5)
        health = await receiver.health()
        assert (health.ok, health.accepting, health.handling) == (True, True, None)
        assert (health.waiting, health.restarts, health.error) == (2, 0, "")
        assert health.lag == pytest.approx(5, abs=1)
    assert not (await receiver.health()).accepting


async def test_the_door_answers_200_while_deliveries_are_stored_and_handled():
    receiver = made()
    receiver.fallback(print)
    assert (await asked(receiver))[0] == 503
    async with receiver:
        status, headers, text = await asked(receiver)
        assert status == 200
        assert headers[b"content-type"] == b"application/json"
        assert json.loads(text)["ok"] is True
        assert json.loads(text)["handling"] is True
        assert (await asked(receiver, "/in/health", root="/in"))[0] == 200
        status, headers, text = await asked(receiver, method="HEAD")
        assert (status, text) == (200, b"")
        for path, method in (("/", "GET"), ("/health/x", "GET"), ("/health", "PUT")):
            assert (await asked(receiver, path, method))[0] == 405
    assert (await asked(receiver))[0] == 503


async def test_without_a_path_there_is_no_door():
    async with made(health=None) as receiver:
        assert (await asked(receiver))[0] == 405


async def test_deliveries_that_cannot_be_stored_make_it_unhealthy_for_a_while():
    clock, sink = EmulatedClock(), Failing()
    async with made(sink, clock=clock) as receiver:
        sink.fails = True
        assert (await post(receiver, body(msgId="1"))).status == 503
        health = await receiver.health()
        assert not health.ok
        assert "disk full" in health.error
        status, _, text = await asked(receiver)
        assert status == 503
        assert b"disk full" not in text
        await clock.advance(10)
        assert (await receiver.health()).ok  # a load balancer sends deliveries again
        assert (await post(receiver, body(msgId="2"))).status == 503
        sink.fails = False
        assert (await post(receiver, body(msgId="3"))).status == 200
        assert (await receiver.health()).ok


async def test_a_sink_that_cannot_be_counted_is_reported(tmp_path):
    class Broken(SqliteInbox):
        async def lag(self):
            reason = "no table"
            raise OSError(reason)

    async with made(Broken(tmp_path / "events.db")) as receiver:
        health = await receiver.health()
    assert (health.waiting, health.lag, health.ok) == (None, None, True)
    assert "no table" in health.error


async def test_a_worker_of_which_the_loop_is_blocked_does_not_handle(monkeypatch):
    monkeypatch.setattr(runner, "SHORTEST_LIMIT", 0.05)
    release, begun = threading.Event(), threading.Event()
    receiver = made(own_thread=True, timeout=0.1)

    @receiver.fallback
    async def blocks(_event):
        begun.set()
        assert release.wait(20)

    async def status():
        return (await asked(receiver))[0]

    async with receiver:
        assert await status() == 200
        await post(receiver, body())
        await until(begun.is_set)
        await until(lambda: receiver._worker_supervision.blocked)
        health = await receiver.health()
        assert (health.accepting, health.handling, health.ok) == (True, False, False)
        assert "blocks has blocked the event loop of the worker's thread" in health.error
        assert await status() == 503
        assert (await post(receiver, body(msgId="m2"))).status == 200
        release.set()
        await until(lambda: not receiver._worker_supervision.blocked)
        assert await status() == 200


@pytest.mark.parametrize("path", ["health", "", 3, True])
def test_a_wrong_path_is_refused(path):
    with pytest.raises(InvalidRequest, match='health: use a path such as "/health"'):
        made(health=path)


async def test_a_receiver_that_was_not_entered_says_so_once(caplog):
    facts = []
    receiver = made(observers=[facts.append])
    for number in range(3):
        assert (await post(receiver, body(msgId=str(number)))).status == 503
    assert len([each for each in facts if isinstance(each, NotEntered)]) == 1
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "async with receiver" in record.getMessage()
    assert "lifespan" in record.getMessage()


async def test_a_receiver_that_was_left_does_not_say_that_it_was_not_entered(caplog):
    receiver = made()
    async with receiver:
        await until(lambda: True)
    assert (await post(receiver, body())).status == 503
    assert not caplog.records
