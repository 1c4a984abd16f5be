"""The health of a receiver: as a value, and at the door for load balancers."""

import json
import logging

import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from rbim import InvalidRequest
from rbim.callbacks import MemorySink, NotEntered, Receiver, SqliteInbox
from rbim.emulator import EmulatedClock


class Failing(MemorySink):
    fails = False

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
