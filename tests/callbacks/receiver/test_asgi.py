"""The receiver's HTTP door, by ASGI messages."""

import anyio
import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving_asgi import LIMIT, TINY, Peer, Server, Sink, call, content, nothing, scope_of, signed
from rbim import InvalidRequest
from rbim.callbacks import Reason, Receiver, Refused, SqliteInbox, Text
from rbim.emulator import EmulatedClock

# ------------------------------------------------------------------------------ by ASGI messages


async def test_a_signed_post_is_answered_exactly_200_at_any_path(receiver, sink):
    paths = ["/", "", "/copies", "/a/b/c/", "/%E4%BD%A0", "/é", "//"]
    async with receiver:
        answers = [(await call(receiver.asgi, content(), path=path)).answer for path in paths]
    assert answers == [(200, {"content-length": "0"}, b"")] * len(paths)
    assert sink.bodies == [content()] * len(paths)


async def test_every_other_method_is_answered_405_without_reading_a_byte(receiver, sink):
    async with receiver:
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "BREW"):
            peer = await call(receiver.asgi, content(), method=method)
            status, headers, body = peer.answer
            assert (status, headers["allow"], body, peer.taken) == (405, "POST", TINY, 0)
    assert sink.bodies == []


async def test_a_body_in_pieces_is_one_body(receiver, sink):
    body = content(body="长" * 500)
    async with receiver:
        for size in (1, 2, 7, 1000):
            parts = [body[at : at + size] for at in range(0, len(body), size)]
            parts[1:1] = [b"", b""]  # servers may send those
            assert (await call(receiver.asgi, *parts)).answer[0] == 200
            assert (await call(receiver.asgi, *parts, b"")).answer[0] == 200
    assert sink.bodies == [body] * 8


LENGTHS = {
    "honest": {"content-length": str(50 * LIMIT)},
    "too small": {"content-length": "10"},
    "too large": {"content-length": str(10**18)},
    "missing": {},
    "nonsense": {"content-length": "-1, x"},
    "chunked": {"transfer-encoding": "chunked"},
}


async def test_a_body_over_the_limit_is_answered_413_and_not_read_whatever_its_length_says(receiver, sink, facts):
    part, body = b"x" * 65536, content()
    async with receiver:
        for length in LENGTHS.values():
            peer = await call(receiver.asgi, *[part] * 800, headers=signed(b"") | length)
            status, headers, text = peer.answer
            assert (status, headers["connection"], text) == (413, "close", TINY)
            assert LIMIT < peer.taken <= LIMIT + len(part)
            assert [(type(fact), fact.reason) for fact in facts] == [(Refused, Reason.TOO_LARGE)]
            assert sink.bodies == []
            assert (await call(receiver.asgi, body, headers=signed(body) | length)).answer[0] == 200  # within the limit
            assert sink.bodies.pop() == body
            facts.clear()


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


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("parts", HANGING.values(), ids=HANGING)
async def test_a_body_that_does_not_come_whole_within_the_budget_is_answered_400(sink, parts):
    clock = EmulatedClock()
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, clock=clock, budget=2)
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


async def test_a_client_that_leaves_half_way_leaves_nothing_behind(receiver, sink, facts):
    async with receiver:
        for parts in ((), (b"{",), (b"{",) * 50, (content(),)):
            peer = Peer(*parts, whole=False)
            if not parts:
                peer.messages.clear()
            await receiver.asgi(scope_of(headers=signed(b"".join(parts))), peer.receive, peer.send)
            assert peer.sent == []
    assert (sink.bodies, facts) == ([], [])


# -------------------------------------------------------------------------------------- other scopes


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
