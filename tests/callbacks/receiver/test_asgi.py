"""The receiver's HTTP door: over real servers and raw sockets, through frameworks, and by ASGI messages on both backends."""

import time
from datetime import timedelta

import anyio
import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import results_for
from helpers.receiving_asgi import LIMIT, SOON, TINY, Peer, Server, Sink, call, content, nothing, scope_of, signed
from rbim import InvalidRequest
from rbim.callbacks import Policy, Reason, Receiver, Refused, SqliteInbox, Text
from rbim.emulator import EmulatedClock

# ------------------------------------------------------------------------------ by ASGI messages


@pytest.mark.parametrize("path", ["/", "", "/copies", "/a/b/c/", "/%E4%BD%A0", "/é", "//"])
async def test_a_signed_post_is_answered_exactly_200_at_any_path(receiver, sink, path):
    async with receiver:
        peer = await call(receiver.asgi, content(), path=path)
    assert peer.answer == (200, {"content-length": "0"}, b"")
    assert sink.bodies == [content()]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "BREW"])
async def test_every_other_method_is_answered_405_without_reading_a_byte(receiver, sink, method):
    async with receiver:
        peer = await call(receiver.asgi, content(), method=method)
    status, headers, body = peer.answer
    assert (status, headers["allow"], body, peer.taken) == (405, "POST", TINY, 0)
    assert sink.bodies == []


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_a_body_in_pieces_is_one_body(receiver, sink, size):
    body = content(body="长" * 500)
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    parts[1:1] = [b"", b""]  # servers may send those
    async with receiver:
        assert (await call(receiver.asgi, *parts)).answer[0] == 200
        assert (await call(receiver.asgi, *parts, b"")).answer[0] == 200
    assert sink.bodies == [body, body]


async def test_messages_may_leave_out_what_has_a_default(receiver, sink):
    async def call_with(body, *messages):
        sent, messages = [], list(messages)

        async def receive():
            return messages.pop(0)

        async def send(message):
            sent.append(message)

        await receiver.asgi(scope_of(headers=signed(body)), receive, send)
        return sent[0]["status"]

    async with receiver:
        assert await call_with(b"", {"type": "http.request"}) == 200  # in quarantine: there is no event in it
        assert await call_with(b"{}", {"type": "http.request", "body": b"{}"}) == 200
        last = {"type": "http.request"}
        assert await call_with(content(), {"type": "http.request", "body": content(), "more_body": True}, last) == 200
    assert sink.bodies == [b"", content()]


OVER = {
    "honest": {"content-length": str(50 * LIMIT)},
    "too small": {"content-length": "10"},
    "too large": {"content-length": str(10**18)},
    "missing": {},
    "nonsense": {"content-length": "-1, x"},
    "chunked": {"transfer-encoding": "chunked"},
}


@pytest.mark.parametrize("length", OVER)
async def test_a_body_over_the_limit_is_answered_413_and_not_read_whatever_its_length_says(receiver, sink, facts, length):
    part = b"x" * 65536
    async with receiver:
        peer = await call(receiver.asgi, *[part] * 800, headers=signed(b"") | OVER[length])
    status, headers, body = peer.answer
    assert (status, headers["connection"], body) == (413, "close", TINY)
    assert LIMIT < peer.taken <= LIMIT + len(part)
    assert [(type(fact), fact.reason) for fact in facts] == [(Refused, Reason.TOO_LARGE)]
    assert sink.bodies == []


@pytest.mark.parametrize("length", OVER)
async def test_a_body_within_the_limit_is_taken_whatever_its_length_says(receiver, sink, length):
    body = content()
    async with receiver:
        assert (await call(receiver.asgi, body, headers=signed(body) | OVER[length])).answer[0] == 200
    assert sink.bodies == [body]


@pytest.mark.parametrize(("limit", "size"), [(LIMIT, LIMIT), (100, 100), (1, 1), (None, 3 * LIMIT)])
@pytest.mark.parametrize("pieces", [1, 3])
async def test_the_limit_is_what_the_policy_says_to_the_byte(sink, limit, size, pieces):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, policy=Policy(max_body=limit))

    async def status(size):
        body = b"x" * size
        cut = max(1, -(-size // pieces))
        return (await call(receiver.asgi, *[body[at : at + cut] for at in range(0, size, cut)])).answer[0]

    async with receiver:
        assert await status(size) == 200
        assert await status(size + 1) == (200 if limit is None else 413)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "GZIP", "gzip, identity", "x"])
async def test_a_content_encoding_is_answered_415(receiver, sink, encoding):
    body = content()
    async with receiver:
        peer = await call(receiver.asgi, body, headers=signed(body) | {"content-encoding": encoding})
    status, headers, text = peer.answer
    assert (status, headers["connection"], text) == (415, "close", TINY)
    assert sink.bodies == []


@pytest.mark.parametrize("encoding", ["identity", "Identity", "", " identity "])
async def test_no_content_encoding_may_be_said_aloud(receiver, encoding):
    body = content()
    async with receiver:
        assert (await call(receiver.asgi, body, headers=signed(body) | {"content-encoding": encoding})).answer[0] == 200


async def test_every_refusal_has_the_same_tiny_body(receiver):
    body = content()
    good = signed(body)
    async with receiver:
        answers = [
            (await call(receiver.asgi, body, headers=headers, **options)).answer
            for headers, options in [
                ({}, {}),
                (good | {"MD5": "0" * 32}, {}),
                (good | {"CheckSum": "0" * 32}, {}),
                (good | {"CurTime": "1"}, {}),
                ([*good.items(), ("md5", good["MD5"])], {}),
                (good | {"content-encoding": "gzip"}, {}),
                (good, {"method": "GET"}),
            ]
        ]
        answers.append((await call(receiver.asgi, b"x" * LIMIT, b"x" * LIMIT)).answer)
    unauthentic = {(status, *headers.items(), text) for status, headers, text in answers[:5]}
    assert unauthentic == {(401, ("content-type", "text/plain; charset=utf-8"), ("content-length", "8"), TINY)}
    assert [status for status, _, _ in answers] == [401, 401, 401, 401, 401, 415, 405, 413]
    assert {text for _, _, text in answers} == {TINY}


async def test_outside_its_block_the_door_answers_503_and_who_is_not_authentic_learns_nothing(receiver, sink):
    for _ in range(2):
        status, headers, body = (await call(receiver.asgi, content())).answer
        assert (status, headers["retry-after"], body) == (503, "1", TINY)
        assert (await call(receiver.asgi, content(), headers={})).answer[0] == 401
        async with receiver:
            assert (await call(receiver.asgi, content())).answer[0] == 200
    assert len(sink.bodies) == 2


# ------------------------------------------------------------------- a body that does not come, or not whole

HANGING = {"at once": (), "after a part": (b"{",), "after many": (b"x",) * 50, "after nothing": (b"", b"")}


@pytest.mark.parametrize("parts", HANGING.values(), ids=HANGING)
async def test_a_body_that_does_not_come_whole_within_the_budget_is_answered_400(sink, facts, parts):
    clock = EmulatedClock()
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, clock=clock, budget=2, observers=[results_for(facts.append)])
    peer = Peer(*parts, then="hang", whole=False)
    if not parts:
        peer.messages.clear()
    async with receiver, anyio.create_task_group() as tasks:
        tasks.start_soon(receiver.asgi, scope_of(headers=signed(b"{}", clock.now())), peer.receive, peer.send)
        await clock.advance(1.999)
        assert peer.sent == []
        await clock.advance(0.001)
        status, headers, body = peer.answer
    assert (status, headers["connection"], body) == (400, "close", TINY)
    assert sink.bodies == []
    assert clock.next_due() is None


@pytest.mark.parametrize("parts", HANGING.values(), ids=HANGING)
async def test_a_body_that_does_not_come_whole_is_answered_400_by_the_machines_clock_too(sink, parts):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=SOON)
    async with receiver:
        began = time.monotonic()
        with anyio.fail_after(5):
            peer = await call(receiver.asgi, *parts, headers={}, then="hang", whole=False)
            took = time.monotonic() - began
            assert (await call(receiver.asgi, content())).answer[0] == 200
    assert peer.answer[0] == 400
    assert SOON * 0.9 <= took < SOON + 1
    assert sink.bodies == [content()]


async def test_a_body_that_drips_is_answered_400_when_the_budget_is_over(sink):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=SOON)
    sent, drops = [], 0

    async def receive():
        nonlocal drops
        drops += 1
        await anyio.sleep(0.002)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message):
        sent.append(message)

    async with receiver:
        with anyio.fail_after(5):
            await receiver.asgi(scope_of(), receive, send)
    assert sent[0]["status"] == 400
    assert drops < 60


async def test_what_the_body_took_of_the_budget_the_sink_has_not(tmp_path):
    clock = EmulatedClock()
    waited = []

    class Slow(Sink):
        async def accept(self, _):
            began = clock.monotonic()
            try:
                await anyio.sleep_forever()
            finally:
                waited.append(clock.monotonic() - began)

    receiver = Receiver(credentials=CREDENTIALS, sink=Slow(), clock=clock, spool=tmp_path / "spool")
    body = content()
    sent = []

    async def receive():
        await clock.sleep(1.5)
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    async with receiver, anyio.create_task_group() as tasks:
        tasks.start_soon(receiver.asgi, scope_of(headers=signed(body, clock.now())), receive, send)
        await clock.advance(1.999)
        assert sent == []
        await clock.advance(0.001)
        with anyio.fail_after(5):
            while not sent:
                await anyio.sleep(0.001)
    assert sent[0]["status"] == 200
    assert waited[0] == 0.5


@pytest.mark.parametrize("parts", [(), (b"{",), (b"{",) * 50, (content(),)])
async def test_a_client_that_leaves_half_way_leaves_nothing_behind(receiver, sink, facts, parts):
    async with receiver:
        peer = Peer(*parts, whole=False)
        if not parts:
            peer.messages.clear()
        await receiver.asgi(scope_of(headers=signed(b"".join(parts))), peer.receive, peer.send)
        assert peer.sent == []
    assert (sink.bodies, facts) == ([], [])


# -------------------------------------------------------------------------------------- other scopes


async def test_a_websocket_is_closed(receiver):
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    async with receiver:
        await receiver.asgi({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]


async def test_a_scope_of_an_unknown_type_is_an_error_and_not_answered(receiver):
    sent = []

    async def send(message):
        sent.append(message)

    async with receiver:
        with pytest.raises(Exception, match=r".+"):
            await receiver.asgi({"type": "carrier pigeon"}, Peer().receive, send)
    assert sent == []


async def test_a_servers_lifespan_enters_and_leaves_the_receiver(receiver, sink):
    async with Server.of(receiver.asgi) as server:
        assert await server.say("startup") == {"type": "lifespan.startup.complete"}
        assert sink.entered == 1
        assert (await call(receiver.asgi, content())).answer[0] == 200
        assert await server.say("shutdown") == {"type": "lifespan.shutdown.complete"}
        assert sink.entered == 0
        assert (await call(receiver.asgi, content())).answer[0] == 503
    assert server.error is None


async def test_a_startup_that_fails_is_told_to_the_server_and_raised(sink, tmp_path):
    without = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))
    without.on(Text)(nothing)
    nowhere = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "no" / "events.db"))
    plain = Receiver(credentials=CREDENTIALS, sink=sink)
    plain.fallback(nothing)
    for receiver, why in [(without, "fallback"), (nowhere, "no directory"), (plain, "gives out no events")]:
        async with Server.of(receiver.asgi) as server:
            told = await server.say("startup")
        assert told["type"] == "lifespan.startup.failed"
        assert why in told["message"]
        assert isinstance(server.error, InvalidRequest)
        assert (await call(receiver.asgi, content())).answer[0] == 503
    assert sink.entered == 0


async def test_a_shutdown_that_fails_is_told_to_the_server_and_raised():
    class Bad(Sink):
        async def __aexit__(self, *_):
            reason = "cannot be left"
            raise OSError(reason)

    receiver = Receiver(credentials=CREDENTIALS, sink=Bad())
    async with Server.of(receiver.asgi) as server:
        assert (await server.say("startup"))["type"] == "lifespan.startup.complete"
        assert await server.say("shutdown") == {"type": "lifespan.shutdown.failed", "message": "cannot be left"}
    assert isinstance(server.error, OSError)


async def test_a_receiver_can_be_started_again_after_its_startup_failed():
    class Late(Sink):
        works = False

        async def __aenter__(self):
            if not self.works:
                reason = "not yet"
                raise OSError(reason)
            return await super().__aenter__()

    receiver = Receiver(credentials=CREDENTIALS, sink=Late())
    async with Server.of(receiver.asgi) as server:
        assert await server.say("startup") == {"type": "lifespan.startup.failed", "message": "not yet"}
    receiver.sink.works = True
    async with Server.of(receiver.asgi) as server:
        assert (await server.say("startup"))["type"] == "lifespan.startup.complete"
        assert (await call(receiver.asgi, content())).answer[0] == 200
        assert (await server.say("shutdown"))["type"] == "lifespan.shutdown.complete"


# -------------------------------------------------------------------------- what time does to a signature


async def test_the_age_of_a_delivery_counts_from_the_moment_its_body_was_there(sink):
    clock = EmulatedClock()
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, clock=clock)
    async with receiver:
        stale = clock.now() - timedelta(seconds=300.001)
        assert (await call(receiver.asgi, content(), now=stale)).answer[0] == 401
        assert (await call(receiver.asgi, content(), now=clock.now() - timedelta(seconds=300))).answer[0] == 200
