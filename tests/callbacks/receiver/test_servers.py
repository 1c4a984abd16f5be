"""A receiver over real HTTP: under uvicorn, and under a server of a few lines on either backend."""

import asyncio
import gc
import logging
import socket
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager, closing, contextmanager

import anyio
import pytest
import uvicorn

from helpers.credentials import CREDENTIALS
from helpers.rawclient import connected, http
from helpers.receiving_asgi import LIMIT, SOON, TINY, Server, content, nothing, scope_of, signed
from rbim.callbacks import Receiver, SqliteInbox, Text

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


AT_REST = 3  # tasks of a server: itself, the lifespan, and the receiver's


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
    assert receiver._intake._deadlines.scopes == {}
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


def test_no_port_is_left_open_by_these_tests(implementation, receiver):
    with serving(receiver.asgi, implementation) as address:
        pass
    with closing(socket.socket()) as sock:
        assert sock.connect_ex((address.host, address.port)) != 0
