"""Publishing over one subscription and one timer: each message has its own answer, or is known to have none.

Most tests have a client of nats-py's methods that sends nothing, so that each answer, and its moment, is the test's.
"""

import asyncio
import gc
import json
import threading

import anyio
import pytest
from nats.errors import MaxPayloadError

from helpers.deliveries import delivery
from rbim.jetstream import JetStreamInbox, publisher as publishing
from rbim.jetstream.connection import Connection
from rbim.jetstream.nats_py import (
    APIError,
    KeyWrongLastSequenceError,
    Msg,
    NatsError,
    NoStreamResponseError,
    subscribe,
)
from rbim.jetstream.publisher import Acknowledgement, Publisher
from rbim.jetstream.settings import NatsSettings, addresses

TIMEOUT = 2.0


class Wire:
    """The methods of a client that a publisher uses. ``sent`` has the subject for the answer of each message."""

    def __init__(self):
        self.sent, self.subscribed, self.failure = [], None, None
        self.inboxes = 0

    def new_inbox(self):
        self.inboxes += 1
        return f"_INBOX.{id(self)}{self.inboxes}"

    async def subscribe(self, subject, *, cb):
        self.subscribed, self._call = subject, cb

    async def publish(self, _subject, _body, reply, _headers):
        if self.failure is not None:
            raise self.failure
        assert self.subscribed == f"{reply.rpartition('.')[0]}.*", "its answer would not come"
        self.sent.append(reply)

    async def answer(self, reply, data=b"", **headers):
        if not isinstance(data, bytes):
            data = json.dumps(data).encode()
        await self._call(Msg(_client=None, subject=reply, data=data, headers=headers or None))

    async def acknowledge(self, reply, sequence, **more):
        await self.answer(reply, {"stream": "s", "seq": sequence, **more})


class Time:
    """The time of the running loop, which passes by itself and by :meth:`advance`."""

    def __init__(self, monkeypatch):
        loop = asyncio.get_running_loop()
        passing, self._more = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: passing() + self._more)

    async def advance(self, seconds):
        self._more += seconds
        await settle()


async def settle():
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def wire():
    return Wire()


@pytest.fixture
async def publisher(wire):
    publisher = Publisher(wire, timeout=TIMEOUT)
    await publisher.start()
    return publisher


async def end(*tasks):
    """Return what the tasks return or raise, soon."""
    with anyio.fail_after(5):
        return await asyncio.gather(*tasks, return_exceptions=True)


def begin(publisher, count=1):
    return [asyncio.create_task(publisher.publish("subject", b"body", {})) for _ in range(count)]


# ------------------------------------------------------------------------------------ answers


async def test_each_message_gets_its_own_answer_in_whatever_order_they_come(publisher, wire):
    tasks = begin(publisher, 300)
    await settle()
    for number in reversed(range(300)):
        await wire.acknowledge(wire.sent[number], number + 1)
    assert await end(*tasks) == [(number, False) for number in range(1, 301)]
    assert publisher.pending == 0


async def test_a_duplicate_is_known_as_one(publisher, wire):
    first, second = begin(publisher, 2)
    await settle()
    await wire.acknowledge(wire.sent[0], 7)
    await wire.acknowledge(wire.sent[1], 7, duplicate=True)
    assert await end(first, second) == [(7, False), (7, True)]


@pytest.mark.parametrize("code", [400, 404, 429, 500, 503])
async def test_an_error_of_the_stream_is_raised(publisher, wire, code):
    (task,) = begin(publisher)
    await settle()
    await wire.answer(
        wire.sent[0], {"error": {"code": code, "err_code": 10077, "description": "too many"}, "stream": "s", "seq": 0}
    )
    (failure,) = await end(task)
    assert isinstance(failure, APIError)
    assert (failure.code, failure.err_code, failure.description) == (code, 10077, "too many")


async def test_without_a_stream_there_is_no_acknowledgement(publisher, wire):
    (task,) = begin(publisher)
    await settle()
    await wire.answer(wire.sent[0], Status="503")
    (failure,) = await end(task)
    assert isinstance(failure, NoStreamResponseError)


@pytest.mark.parametrize(
    "answer", [b"", b"ok", b"[]", b"3", b"null", b"{}", b'{"seq": "x"}', b'{"error": "x"}', b'{"error": {}}']
)
async def test_what_no_stream_sends_is_no_acknowledgement(publisher, wire, answer):
    (task,) = begin(publisher)
    await settle()
    await wire.answer(wire.sent[0], answer)
    (failure,) = await end(task)
    assert isinstance(failure, NatsError)
    assert "no stream of NATS" in str(failure)


@pytest.mark.parametrize("code", [10071, 10164])
async def test_another_last_message_is_told_from_other_errors(publisher, wire, code):
    wrong = asyncio.create_task(publisher.put("$KV.b.k", b"", 3))
    other = asyncio.create_task(publisher.put("$KV.b.k", b"", 3))
    await settle()
    await wire.answer(wire.sent[0], {"error": {"code": 400, "err_code": code, "description": "wrong last sequence: 4"}})
    await wire.answer(wire.sent[1], {"error": {"code": 400, "err_code": 10077, "description": "too many"}})
    found = await end(wrong, other)
    assert isinstance(found[0], KeyWrongLastSequenceError)
    assert "4" in str(found[0])
    assert isinstance(found[1], APIError)
    assert not isinstance(found[1], KeyWrongLastSequenceError)


async def test_a_message_that_is_not_sent_waits_for_nothing(publisher, wire):
    wire.failure = MaxPayloadError()
    with pytest.raises(MaxPayloadError):
        await publisher.publish("subject", b"", {})
    assert publisher.pending == 0


async def test_callers_go_on_before_all_answers_are_given_out(publisher, wire):
    """Else servers and callers would work in turns."""
    tasks = begin(publisher, 4 * publishing.ANSWERS)
    await settle()
    ended = []
    for reply in list(wire.sent):
        await wire.acknowledge(reply, 1)
        ended.append(sum(task.done() for task in tasks))
    assert ended[publishing.ANSWERS] >= publishing.ANSWERS // 2
    await end(*tasks)


# ------------------------------------------------------------------------------------ no answer


async def test_each_waits_for_its_own_time_and_no_longer(publisher, wire, monkeypatch):
    time = Time(monkeypatch)
    tasks = []
    for _ in range(4):
        tasks += begin(publisher)
        await settle()
        await time.advance(TIMEOUT / 4)
    await wire.acknowledge(wire.sent[1], 1)
    await time.advance(0.001)
    assert [task.done() for task in tasks] == [True, True, False, False]
    await time.advance(TIMEOUT / 4)
    assert [task.done() for task in tasks] == [True, True, False, False]
    await time.advance(TIMEOUT / 4)
    assert [task.done() for task in tasks] == [True, True, True, False]
    await time.advance(TIMEOUT / 4)
    assert [type(each) for each in await end(*tasks)] == [TimeoutError, Acknowledgement, TimeoutError, TimeoutError]
    assert publisher.pending == 0
    (last,) = begin(publisher)  # after a time in which none waited
    await settle()
    await time.advance(TIMEOUT + 0.001)
    assert [str(each) for each in await end(last)] == ["no answer for 2 s"]


async def test_an_answer_that_comes_late_is_for_no_other_message(publisher, wire, monkeypatch):
    time = Time(monkeypatch)
    (late,) = begin(publisher)
    await settle()
    await time.advance(TIMEOUT + 0.001)
    assert [type(each) for each in await end(late)] == [TimeoutError]
    (other,) = begin(publisher)
    await settle()
    await wire.acknowledge(wire.sent[0], 1)
    await settle()
    assert not other.done()
    await wire.acknowledge(wire.sent[1], 2)
    assert await end(other) == [(2, False)]


async def test_an_answer_in_the_moment_of_the_timeout_is_one_or_the_other(publisher, wire, monkeypatch):
    time = Time(monkeypatch)
    first, second = begin(publisher, 2)
    await settle()
    await wire.acknowledge(wire.sent[0], 1)
    publisher._expire()
    time._more += TIMEOUT + 0.001
    publisher._expire()
    await wire.acknowledge(wire.sent[1], 2)
    answered, unanswered = await end(first, second)
    assert answered == (1, False)
    assert isinstance(unanswered, TimeoutError)


async def test_a_cancelled_caller_leaves_nothing_and_disturbs_no_other(publisher, wire):
    tasks = begin(publisher, 3)
    await settle()
    tasks[1].cancel()
    await settle()
    assert tasks[1].cancelled()
    assert publisher.pending == 2
    for reply in list(wire.sent):
        await wire.acknowledge(reply, 1)
    assert await end(tasks[0], tasks[2]) == [(1, False)] * 2
    assert publisher.pending == 0


@pytest.mark.parametrize("first", ["cancelled", "ended"])
@pytest.mark.parametrize("how", ["answer", "timeout", "close"])
async def test_a_caller_that_is_cancelled_in_the_moment_of_its_end(publisher, wire, monkeypatch, first, how):
    time = Time(monkeypatch)
    (task,) = begin(publisher)
    await settle()
    if first == "cancelled":
        task.cancel()
    if how == "answer":
        await wire.acknowledge(wire.sent[0], 1)
    elif how == "timeout":
        time._more += TIMEOUT + 0.001
        publisher._expire()
    else:
        publisher.close()
    task.cancel()
    assert [type(each) for each in await end(task)] == [asyncio.CancelledError]
    assert publisher.pending == 0


async def test_a_caller_that_is_cancelled_while_nats_py_still_writes(publisher, wire, monkeypatch, caplog):
    """Where the connection is slower than the callers, publishing waits for it. The error of time has no reader then."""
    time, writing = Time(monkeypatch), asyncio.Event()
    wire.publish = lambda *_: writing.wait()
    (task,) = begin(publisher)
    await settle()
    await time.advance(TIMEOUT + 0.001)
    assert not task.done()
    task.cancel()
    assert [type(each) for each in await end(task)] == [asyncio.CancelledError]
    del task
    gc.collect()
    assert caplog.records == [], "asyncio complains of an exception that was never retrieved"


async def test_a_client_that_is_closed_ends_all_at_once_and_takes_no_more(publisher, wire):
    tasks = begin(publisher, 3)
    await settle()
    await wire.acknowledge(wire.sent[0], 1)
    publisher.close()
    found = await end(*tasks, *begin(publisher))
    assert found[0] == (1, False)
    assert [type(each) for each in found[1:]] == [ConnectionError] * 3
    assert len(wire.sent) == 3


async def test_an_answer_to_an_earlier_client_is_for_none_of_the_next(publisher, wire):
    (earlier,) = begin(publisher)
    await settle()
    publisher.close()
    assert [type(each) for each in await end(earlier)] == [ConnectionError]
    following = Publisher(wire, timeout=TIMEOUT)
    await following.start()
    (task,) = begin(following)
    await settle()
    assert len(set(wire.sent)) == 2
    await wire.acknowledge(wire.sent[0], 1)
    await settle()
    assert not task.done()
    await wire.acknowledge(wire.sent[1], 2)
    assert await end(task) == [(2, False)]


async def test_another_event_loop_is_refused_before_anything_is_sent(publisher, wire):
    found = []

    def elsewhere():
        try:
            asyncio.run(publisher.publish("subject", b"", {}))
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert found == ["a connection to NATS servers is for the event loop that entered it"]
    assert wire.sent == []


# ------------------------------------------------------------------------------------ real servers


def inbox(servers, name):
    return JetStreamInbox(servers.urls, name=name, partitions=4, replicas=servers.nodes, retention=3600.0)


async def until(condition):
    with anyio.fail_after(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_many_at_once_are_each_at_the_place_that_was_acknowledged(nats, name):
    async with inbox(nats, name) as copies:
        publisher = await copies._open.connection.publisher()
        jetstream = await copies._open.jetstream()
        bodies = [f"{number}".encode() for number in range(500)]
        found = await end(*(publisher.publish(f"{name}.new.0", body, {}) for body in bodies))
        assert sorted(each.sequence for each in found) == [*range(1, 501)]
        for number in range(0, 500, 37):
            assert (await jetstream.get_msg(name, seq=found[number].sequence)).data == bodies[number]
        again = {"Nats-Msg-Id": "k"}
        first = await publisher.publish(f"{name}.new.0", b"", again)
        assert await publisher.publish(f"{name}.new.0", b"", again) == (first.sequence, True)
        with pytest.raises(NoStreamResponseError):
            await publisher.publish(f"{name}.no-stream", b"", {})
        key = f"$KV.{name}-state.key"
        one = await publisher.put(key, b"1", 0)
        with pytest.raises(KeyWrongLastSequenceError):
            await publisher.put(key, b"2", 0)
        assert await publisher.put(key, b"2", one) > one


async def test_a_server_that_ends_before_the_answer_has_stored_nothing_that_is_called_stored(own_nats, name, monkeypatch):
    monkeypatch.setattr("rbim.jetstream.connection.REQUEST_TIMEOUT", 0.2)
    async with inbox(own_nats, name) as copies:
        own_nats.freeze()
        publisher = await copies._open.connection.publisher()
        accepting = [asyncio.create_task(copies.accept(delivery(number))) for number in range(20)]
        await until(lambda: publisher.pending == 20)
        own_nats.kill()  # it has read none of them
        assert {type(each) for each in await end(*accepting)} == {TimeoutError}
        assert not copies.ready
        own_nats.start(0)
        await own_nats.ready()
        assert [await copies.accept(delivery(number)) for number in range(20)] == [True] * 20
        assert (await copies.counts()).waiting == 20
        assert publisher.pending == 0


async def test_an_answer_that_is_lost_is_an_error_and_the_event_is_stored_once(nats, name, monkeypatch):
    monkeypatch.setattr("rbim.jetstream.connection.REQUEST_TIMEOUT", 0.2)

    async def lost(*_):
        pass

    with monkeypatch.context() as losing:
        losing.setattr(Publisher, "_on_answer", lost)
        async with inbox(nats, name) as copies:
            with pytest.raises(TimeoutError):
                await copies.accept(delivery(1))
    async with inbox(nats, name) as copies:
        assert await copies.accept(delivery(1)) is False
        assert (await copies.counts()).waiting == 1


async def test_after_a_reconnect_the_same_client_gets_its_answers(own_nats, name):
    async with inbox(own_nats, name) as copies:
        assert await copies.accept(delivery(1))
        publisher = await copies._open.connection.publisher()
        own_nats.kill()
        await until(lambda: not copies.ready)
        own_nats.start(0)
        assert await copies.accept(delivery(2))
        assert await copies._open.connection.publisher() is publisher


async def test_a_client_that_is_replaced_ends_what_waits_at_once(nats, name):
    async def nothing(_):
        pass

    async with Connection(addresses(nats.urls), NatsSettings(), name="test", prepare=nothing) as connection:
        first = await connection.publisher()
        await subscribe(first.client, name, nothing)  # it never answers
        waiting = asyncio.create_task(first.publish(name, b"", {}))
        await until(lambda: first.pending == 1)
        await first.client.close()  # as nats-py does after some errors of a server
        with pytest.raises(ConnectionError, match="before the answer"), anyio.fail_after(1.5):
            await waiting
        with anyio.fail_after(10):
            assert await connection.publisher() is not first
    with pytest.raises(RuntimeError, match="not entered"):
        await connection.publisher()
