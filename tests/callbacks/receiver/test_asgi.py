"""The receiver's HTTP door: over real servers and raw sockets, through frameworks, and by ASGI messages on both backends."""

import asyncio
import gc
import json
import logging
import socket
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta

import anyio
import pytest
import uvicorn
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount, Route

from helpers.rawclient import connected, http
from rbim import Credentials, InvalidRequest
from rbim.callbacks import Event, Policy, Reason, Receiver, Refused, SqliteInbox, Text, sign
from rbim.emulator import EmulatedClock

APP_ID, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"
CREDENTIALS = Credentials(app_id=APP_ID, app_token=TOKEN)
LIMIT = 1024 * 1024
TINY = b"refused\n"
SOON = 0.05  # a budget of real time


def content(number="1", **fields):
    document = {"eventType": "1", "convType": "TEAM", "to": "g1", "fromAccount": f"{APP_ID}#1001", "msgType": "TEXT"}
    return json.dumps(document | {"body": "你好", "msgId": str(number)} | fields).encode()


def signed(body, now=None):
    return sign(body, credentials=CREDENTIALS, now=now or datetime.now(UTC))


class Sink:
    """Keeps what it takes."""

    durable = False
    retention = 0.0

    def __init__(self):
        self.bodies = []
        self.entered = 0

    async def __aenter__(self):
        self.entered += 1
        return self

    async def __aexit__(self, *_):
        self.entered -= 1

    async def accept(self, delivery):
        await checkpoint()
        self.bodies.append(delivery.body)
        return True


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def facts():
    return []


@pytest.fixture
def receiver(sink, facts):
    return Receiver(credentials=CREDENTIALS, sink=sink, observers=[facts.append])


# ------------------------------------------------------------------------------ by ASGI messages


class Peer:
    """What a server is to an application: gives the parts of a body, then hangs or leaves, and keeps what is sent."""

    def __init__(self, *parts, then="leave", whole=True):
        parts = parts or (b"",)
        more = [True] * (len(parts) - 1) + [not whole]
        self.messages = [{"type": "http.request", "body": p, "more_body": m} for p, m in zip(parts, more, strict=True)]
        self.then = then
        self.sent = []
        self.taken = 0

    async def receive(self):
        await checkpoint()
        if self.messages:
            message = self.messages.pop(0)
            self.taken += len(message["body"])
            return message
        if self.then == "hang":
            await anyio.sleep_forever()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await checkpoint()
        self.sent.append(message)

    @property
    def answer(self):
        """Status, headers and body; None where nothing was sent."""
        if not self.sent:
            return None
        start, *parts = self.sent
        assert start["type"] == "http.response.start"
        assert [part["type"] for part in parts] == ["http.response.body"] * len(parts)
        names = [name for name, _ in start["headers"]]
        assert all(name == name.lower() for name in names)
        assert len(set(names)) == len(names)
        body = b"".join(part.get("body", b"") for part in parts)
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        assert headers["content-length"] == str(len(body))
        return start["status"], headers, body


def scope_of(method="POST", path="/", headers=()):
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"here"), *((name.lower().encode(), value.encode()) for name, value in pairs)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


async def call(app, *parts, method="POST", path="/", headers=None, then="leave", whole=True, now=None):
    """Call an application with a signed body in parts; return the peer."""
    body = b"".join(parts)
    peer = Peer(*parts, then=then, whole=whole)
    headers = signed(body, now) if headers is None else headers
    await app(scope_of(method, path, headers), peer.receive, peer.send)
    return peer


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
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, clock=clock, budget=2, observers=[facts.append])
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


class Server:
    """The lifespan half of a server."""

    def __init__(self, app):
        self.app = app
        self.told = []
        self.error = None
        self._to, self._events = anyio.create_memory_object_stream(2)
        self._answers = anyio.create_memory_object_stream(2)

    async def say(self, event):
        await self._to.send({"type": f"lifespan.{event}"})
        with anyio.fail_after(10):
            return await self._answers[1].receive()

    async def run(self):
        try:
            await self.app({"type": "lifespan", "state": {}}, self._events.receive, self._answers[0].send)
        except Exception as error:
            self.error = error

    @classmethod
    @asynccontextmanager
    async def of(cls, app):
        server = cls(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            yield server
            tasks.cancel_scope.cancel()
        for stream in (server._to, server._events, *server._answers):
            stream.close()


async def test_a_servers_lifespan_enters_and_leaves_the_receiver(receiver, sink):
    async with Server.of(receiver.asgi) as server:
        assert await server.say("startup") == {"type": "lifespan.startup.complete"}
        assert sink.entered == 1
        assert (await call(receiver.asgi, content())).answer[0] == 200
        assert await server.say("shutdown") == {"type": "lifespan.shutdown.complete"}
        assert sink.entered == 0
        assert (await call(receiver.asgi, content())).answer[0] == 503
    assert server.error is None


async def nothing(_: Event) -> None:
    pass


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
        ready = False

        async def __aenter__(self):
            if not self.ready:
                reason = "not yet"
                raise OSError(reason)
            return await super().__aenter__()

    receiver = Receiver(credentials=CREDENTIALS, sink=Late())
    async with Server.of(receiver.asgi) as server:
        assert await server.say("startup") == {"type": "lifespan.startup.failed", "message": "not yet"}
    receiver.sink.ready = True
    async with Server.of(receiver.asgi) as server:
        assert (await server.say("startup"))["type"] == "lifespan.startup.complete"
        assert (await call(receiver.asgi, content())).answer[0] == 200
        assert (await server.say("shutdown"))["type"] == "lifespan.shutdown.complete"


# ---------------------------------------------------------------------------------------- in frameworks


async def plainly(request, call_next):
    return await call_next(request)


def lifespan_of(*receivers):
    @asynccontextmanager
    async def lifespan(_):
        async with anyio.create_task_group():
            for receiver in receivers:
                await receiver.__aenter__()
            yield
            for receiver in reversed(receivers):
                await receiver.__aexit__(None, None, None)

    return lifespan


def starlette_route(receiver, *middleware):
    routes = [Route("/copies", receiver.asgi, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan_of(receiver), middleware=middleware), "/copies"


def starlette_mount(receiver, *middleware):
    routes = [Mount("/copies", receiver.asgi)]
    return Starlette(routes=routes, lifespan=lifespan_of(receiver), middleware=middleware), "/copies/x"


def starlette_base(receiver):
    return starlette_route(receiver, Middleware(BaseHTTPMiddleware, dispatch=plainly))


def starlette_base_twice(receiver):
    twice = [Middleware(BaseHTTPMiddleware, dispatch=plainly)] * 2
    return starlette_mount(receiver, *twice)


def starlette_gzip(receiver):
    return starlette_route(receiver, Middleware(GZipMiddleware))


WAYS = [
    starlette_route,
    starlette_mount,
    starlette_base,
    starlette_base_twice,
    starlette_gzip,
]


@pytest.mark.parametrize("way", WAYS)
async def test_it_answers_the_same_wherever_it_is_mounted(sink, way):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=0.5)
    app, path = way(receiver)
    body = content()
    async with Server.of(app) as server:
        assert (await server.say("startup"))["type"] == "lifespan.startup.complete"
        assert sink.entered == 1

        async def status_and_body(*parts, **options):
            with anyio.fail_after(5):
                answer = (await call(app, *parts, path=path, **options)).answer
            return None if answer is None else (answer[0], answer[2])

        assert await status_and_body(body) == (200, b"")
        assert await status_and_body(*(body[at : at + 40] for at in range(0, len(body), 40))) == (200, b"")
        assert await status_and_body(body, headers=signed(body) | {"accept-encoding": "gzip"}) == (200, b"")
        assert (await status_and_body(body, headers={}))[0] == 401
        assert await status_and_body(body, headers=[*signed(body).items(), *signed(body).items()]) == (401, TINY)
        assert await status_and_body(*[b"x" * 65536] * 40) == (413, TINY)
        assert await status_and_body(body, headers=signed(body) | {"content-encoding": "gzip"}) == (415, TINY)
        assert await status_and_body(body[:9], headers=signed(body), then="hang", whole=False) == (400, TINY)
        assert (await status_and_body(body, method="GET"))[0] == 405
        assert await status_and_body(body) == (200, b"")
        assert (await server.say("shutdown"))["type"] == "lifespan.shutdown.complete"
    assert sink.entered == 0
    assert sink.bodies == [body] * 4


@pytest.mark.parametrize("way", [starlette_base, starlette_base_twice])
async def test_a_body_that_drips_through_middleware_ends_with_the_budget(sink, way):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=SOON)
    app, path = way(receiver)

    async def drip():
        await checkpoint()
        return {"type": "http.request", "body": b"", "more_body": True}

    async def one():
        sent = []

        async def send(message):
            sent.append(message)

        await app(scope_of(path=path), drip, send)
        statuses.append(sent[0]["status"])

    statuses = []
    async with Server.of(app) as server:
        await server.say("startup")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(one)
        await server.say("shutdown")
    assert statuses == [400] * 20


async def test_several_receivers_live_in_one_app(tmp_path):
    other = Credentials(app_id="b" * 32, app_token="c" * 32)
    first = Receiver(credentials=CREDENTIALS, sink=Sink())
    second = Receiver(credentials=other, sink=Sink(), mode="high-guarantee")
    third = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))
    routes = [Route("/1", first.asgi, methods=["POST"]), Mount("/2", second.asgi), Mount("/3", third.asgi)]
    app = Starlette(routes=routes, lifespan=lifespan_of(first, second, third))
    body = content()
    async with Server.of(app) as server:
        await server.say("startup")
        statuses = [(await call(app, body, path=path)).answer[0] for path in ("/1", "/2/", "/3/")]
        alien = sign(b"[]", credentials=other, now=datetime.now(UTC))
        statuses += [(await call(app, b"[]", path=path, headers=alien)).answer[0] for path in ("/1", "/2/", "/3/")]
        counts = await third.sink.counts()
        await server.say("shutdown")
    assert statuses == [200, 401, 200, 401, 200, 401]
    assert (first.sink.bodies, second.sink.bodies, counts.waiting) == ([body], [b"[]"], 1)


# ---------------------------------------------------------------------------------- over real servers


class Counting:
    """Counts the bytes that the application takes, and lets one look at its loop."""

    def __init__(self, app):
        self.app = app
        self.taken = 0
        self.running = 0
        self.loop = None

    async def __call__(self, scope, receive, send):
        async def counted():
            message = await receive()
            self.taken += len(message.get("body", b""))
            return message

        self.loop = asyncio.get_running_loop()
        self.running += scope["type"] == "http"
        try:
            await self.app(scope, counted if scope["type"] == "http" else receive, send)
        finally:
            self.running -= scope["type"] == "http"


class Address:
    host = "127.0.0.1"

    def __init__(self, port, app):
        self.port = port
        self.app = app


@contextmanager
def serving(app, implementation):
    """Serve an app in a thread by uvicorn, its lifespan included."""
    counting = Counting(app)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        config = uvicorn.Config(
            counting, http=implementation, lifespan="on", log_level="warning", access_log=False, ws="none", loop="asyncio"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Address(listener.getsockname()[1], counting)
        finally:
            server.should_exit = True
            thread.join(timeout=20)
    assert not thread.is_alive()


@pytest.fixture(params=["h11", pytest.param("httptools", marks=pytest.mark.slow)], scope="module")
def implementation(request):
    return request.param


class House:
    """An app that hands everything to another one, so that tests share a server and each has a receiver of its own."""

    def __init__(self):
        self.app = None

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
        else:
            await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def house(implementation):
    house = House()
    with serving(house, implementation) as address:
        deadline = time.monotonic() + 10
        while address.app.loop is None:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.002)
        yield house, address


@pytest.fixture
def server(receiver, house):
    house, address = house
    house.app, address.app.taken = receiver.asgi, 0

    def there(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, address.app.loop).result(10)

    there(receiver.__aenter__())
    yield address
    there(receiver.__aexit__(None, None, None))
    deadline = time.monotonic() + 10
    while address.app.running:  # a connection that was just closed is a matter of moments
        assert time.monotonic() < deadline, "a request is left over"
        time.sleep(0.002)


over_sockets = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def posted(body, *more, path="/copies", method="POST", headers=None):
    return http(method, path, body, *(f"{name}: {value}" for name, value in (headers or signed(body)).items()), *more)


def chunked(body, size, *more):
    lines = ["POST / HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", *(f"{n}: {v}" for n, v in signed(body).items())]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return "\r\n".join([*lines, *more, "", ""]).encode() + coded + b"0\r\n\r\n"


@over_sockets
async def test_over_the_wire_a_signed_post_is_answered_200_with_an_empty_body(server, sink):
    async with connected(server) as raw:
        for number, path in enumerate(["/", "/copies", "/a/b?c=d&e", "/%E4%BD%A0", "http://elsewhere/x"]):
            answer = await raw.ask(posted(content(number), path=path))
            assert (answer.status, answer.length, answer.body) == (200, 0, b"")
    assert len(sink.bodies) == 5


@over_sockets
async def test_over_the_wire_other_methods_are_answered_405(server, sink):
    async with connected(server) as raw:
        for method in ("GET", "PUT", "DELETE", "OPTIONS"):
            answer = await raw.ask(posted(content(), method=method))
            assert (answer.status, answer.headers["allow"], answer.body) == (405, "POST", TINY)
        await raw.send(posted(b"", method="HEAD"))
        answer = await raw.answer(bodiless=True)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (await raw.ask(posted(content()))).status == 200
    assert len(sink.bodies) == 1


@over_sockets
@pytest.mark.parametrize("size", [1, 10, 10_000])
async def test_over_the_wire_chunks_are_one_body(server, sink, size):
    body = content(body="长" * 300)
    async with connected(server) as raw:
        assert (await raw.ask(chunked(body, size))).status == 200
        assert (await raw.ask(posted(content()))).status == 200
    assert sink.bodies == [body, content()]


@over_sockets
async def test_over_the_wire_small_pieces_are_one_body(server, sink):
    data = posted(content())
    async with connected(server) as raw:
        raw.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), 3):
            await raw.send(data[at : at + 3])
            await asyncio.sleep(0)
        assert (await raw.answer()).status == 200
    assert sink.bodies == [content()]


@over_sockets
async def test_over_the_wire_names_come_in_any_case_and_once(server, sink):
    body = content()
    async with connected(server) as raw:
        for change in (str.lower, str.upper, str.swapcase):
            headers = {change(name): value for name, value in signed(body).items()}
            assert (await raw.ask(posted(body, headers=headers))).status == 200
        for name, value in signed(body).items():
            for again in (f"{name}: {value}", f"{name.upper()}: {value}", f"{name.lower()}: x", f"{name}:"):
                answer = await raw.ask(posted(body, again))
                assert (answer.status, answer.body) == (401, TINY)
    assert sink.bodies == [body] * 3


async def pour(raw, head, part, count):
    """Send parts until the peer will have no more; return how many bytes went, and what came back."""
    sent = 0
    try:
        await raw.send(head)
        for _ in range(count):
            async with asyncio.timeout(5):
                await raw.send(part)
            sent += len(part)
    except (ConnectionError, TimeoutError):
        pass
    return sent


@over_sockets
@pytest.mark.parametrize("length", ["honest", "chunked"])
async def test_over_the_wire_an_upload_of_50_mb_is_not_taken(server, sink, length):
    part = b"x" * 65536
    lines = ["POST / HTTP/1.1", "Host: x", *(f"{n}: {v}" for n, v in signed(b"").items())]
    lines += ["Transfer-Encoding: chunked"] if length == "chunked" else ["Content-Length: 52428800"]
    head = "\r\n".join([*lines, "", ""]).encode()
    async with connected(server) as raw:
        coded = b"%x\r\n%s\r\n" % (len(part), part) if length == "chunked" else part
        sent = await pour(raw, head, coded, 800)
        assert (await raw.answer()).status == 413
    assert sent < 20 * LIMIT  # what fits into the buffers of two sockets, and no more
    assert LIMIT < server.app.taken < 2 * LIMIT
    assert sink.bodies == []


@over_sockets
async def test_over_the_wire_a_length_that_is_too_small_cuts_the_body(server, sink):
    body = content()
    headers = [f"{name}: {value}" for name, value in signed(body).items()]
    head = "\r\n".join(["POST / HTTP/1.1", "Host: x", "Content-Length: 10", *headers, "", ""]).encode()
    async with connected(server) as raw:
        await raw.send(head + body)
        assert (await raw.answer()).status in {400, 401}  # of ten bytes, or of the rest, which is no request
    assert sink.bodies == []


@over_sockets
async def test_over_the_wire_a_length_that_is_too_large_is_answered_400_and_closed(sink, implementation):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=SOON)
    body = content()
    headers = [f"{name}: {value}" for name, value in signed(body).items()]
    lying = "\r\n".join(["POST / HTTP/1.1", "Host: x", f"Content-Length: {len(body) + 1}", *headers, "", ""]).encode() + body
    stopped = lying[:-10]
    never = lying[: -len(body)]
    with serving(receiver.asgi, implementation) as server:
        for data in (lying, stopped, never, chunked(body, 10)[:-5]):
            async with connected(server) as raw:
                answer = await raw.ask(data)
                assert (answer.status, answer.body, answer.headers["connection"]) == (400, TINY, "close")
                assert await raw.recv() == b""  # what comes late is no request
        async with connected(server) as raw:
            assert (await raw.ask(posted(body))).status == 200
    assert sink.bodies == [body]


AT_REST = 2  # tasks of a server: itself, and the lifespan


async def settled(true):
    with anyio.fail_after(10):
        while not true():
            await anyio.sleep(0.002)


@over_sockets
@pytest.mark.parametrize("rude", [False, True])
async def test_over_the_wire_clients_that_leave_half_way_leave_nothing_behind(server, sink, receiver, rude):
    async with connected(server) as raw:
        assert (await raw.ask(posted(content("first")))).status == 200
    await settled(lambda: len(asyncio.all_tasks(server.app.loop)) == AT_REST)
    data = posted(content())
    cuts = [len(data) - len(content()), len(data) - 1, len(data) - 100]
    for cut in cuts * 10:
        async with connected(server) as raw:
            if rude:
                raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await raw.send(data[:cut])
            await settled(lambda: server.app.running == 1)
    await settled(lambda: server.app.running == 0)
    await settled(lambda: len(asyncio.all_tasks(server.app.loop)) == AT_REST)
    assert receiver._intake.budget._shared.turns == {}
    assert sink.bodies == [content("first")]


@over_sockets
async def test_over_the_wire_a_connection_is_kept_and_may_be_pipelined(server, sink):
    async with connected(server) as raw:
        for number in range(50):
            assert (await raw.ask(posted(content(number)))).status == 200
        bodies = [content(f"p{number}") for number in range(50)]
        await raw.send(b"".join(posted(body) if n % 3 else chunked(body, 50) for n, body in enumerate(bodies)))
        assert [(await raw.answer()).status for _ in bodies] == [200] * 50
        forged = posted(content(), headers={"MD5": "x"})
        await raw.send(forged + posted(content("last")) + posted(content(), method="PUT") + posted(content("end")))
        assert [(await raw.answer()).status for _ in range(4)] == [401, 200, 405, 200]
    assert sink.bodies == [*(content(number) for number in range(50)), *bodies, content("last"), content("end")]


@over_sockets
async def test_over_the_wire_an_encoded_body_is_answered_415(server, sink):
    async with connected(server) as raw:
        answer = await raw.ask(posted(content(), "Content-Encoding: gzip"))
        assert (answer.status, answer.body) == (415, TINY)
        assert await raw.recv() == b""
    assert sink.bodies == []


@over_sockets
async def test_over_the_wire_many_clients_at_once_each_have_their_answer(server, sink):
    async def one(number):
        async with connected(server) as raw:
            statuses[(await raw.ask(posted(content(number)))).status] += 1
            statuses[(await raw.ask(posted(content(number), headers={"MD5": "x"}))).status] += 1

    statuses = Counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(200):
            tasks.create_task(one(number))
    assert statuses == {200: 200, 401: 200}
    assert len(set(sink.bodies)) == 200


def test_a_server_does_not_start_where_the_receiver_does_not(implementation, tmp_path, caplog):
    receiver = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))
    receiver.on(Text)(nothing)
    config = uvicorn.Config(receiver.asgi, http=implementation, lifespan="on", log_config=None, port=0, ws="none")
    server = uvicorn.Server(config)
    with caplog.at_level(logging.ERROR), pytest.raises(SystemExit):
        server.run()
    assert not server.started
    assert "fallback" in caplog.text
    gc.collect()


# ------------------------------------------------------- another server, of a few lines, on both backends


async def converse(app, stream):
    """Serve one request of a connection: what it takes to carry ASGI over a socket."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, rest = data.partition(b"\r\n\r\n")
    (method, path, _), *lines = (line.split(b" ", 2) for line in head.split(b"\r\n"))
    headers = [(line[0].rstrip(b":").lower(), line[1]) for line in lines]
    left = int(dict(headers).get(b"content-length", b"0"))
    pending = [rest]

    async def receive():
        nonlocal left
        try:
            part = pending.pop() if pending else await stream.receive(1000)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return {"type": "http.disconnect"}
        left -= len(part)
        return {"type": "http.request", "body": part, "more_body": left > 0}

    async def send(message):
        if message["type"] == "http.response.start":
            told = b"".join(b"%s: %s\r\n" % pair for pair in message["headers"])
            await stream.send(b"HTTP/1.1 %d X\r\n%s\r\n" % (message["status"], told))
        else:
            await stream.send(message["body"])

    scope = scope_of(method.decode(), path.decode())
    async with stream:
        await app(scope | {"headers": headers}, receive, send)


@asynccontextmanager
async def small_server(app):
    async def handle(stream):
        await converse(app, stream)

    async with Server.of(app) as lifespan, anyio.create_task_group() as tasks:
        assert (await lifespan.say("startup"))["type"] == "lifespan.startup.complete"
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        tasks.start_soon(listener.serve, handle)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            assert (await lifespan.say("shutdown"))["type"] == "lifespan.shutdown.complete"
            await listener.aclose()


async def status_of(port, data, *, stay=True):
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(data)
        got = b""
        while stay and b"\r\n\r\n" not in got:
            got += await stream.receive()
    return int(got.split()[1]) if got else None


async def test_another_server_on_either_backend_serves_it_as_well(sink):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=0.3)
    data = posted(content())
    with anyio.fail_after(20):
        async with small_server(receiver.asgi) as port:
            assert await status_of(port, data) == 200
            assert await status_of(port, posted(content(), headers={"MD5": "x"})) == 401
            assert await status_of(port, posted(content(), method="PUT")) == 405
            assert await status_of(port, data[:-1]) == 400
            assert await status_of(port, posted(b"x" * 2 * LIMIT)[: LIMIT + 5000]) == 413
            assert await status_of(port, data[:-1], stay=False) is None
            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(status_of, port, data)
                    tasks.start_soon(status_of, port, data[:-1])
            assert await status_of(port, data) == 200
    assert sink.bodies == [content()] * 52
    assert sink.entered == 0


# -------------------------------------------------------------------------- what time does to a signature


async def test_the_age_of_a_delivery_counts_from_the_moment_its_body_was_there(sink):
    clock = EmulatedClock()
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, clock=clock)
    async with receiver:
        stale = clock.now() - timedelta(seconds=300.001)
        assert (await call(receiver.asgi, content(), now=stale)).answer[0] == 401
        assert (await call(receiver.asgi, content(), now=clock.now() - timedelta(seconds=300))).answer[0] == 200


def test_no_port_is_left_open_by_these_tests(implementation, receiver):
    with serving(receiver.asgi, implementation) as address:
        pass
    with closing(socket.socket()) as sock:
        assert sock.connect_ex((address.host, address.port)) != 0
