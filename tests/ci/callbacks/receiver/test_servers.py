"""A receiver over real HTTP, under uvicorn."""

import asyncio
import gc
import logging
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from helpers.credentials import CREDENTIALS
from helpers.rawclient import connected, http
from helpers.receiving_asgi import LIMIT, SOON, TINY, content, nothing, signed
from rbim.callbacks import Receiver, SqliteInbox, Text


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
def serving(app):
    """Serve an app in a thread by uvicorn, its lifespan included."""
    counting = Counting(app)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        config = uvicorn.Config(counting, lifespan="on", log_level="warning", access_log=False, ws="none", loop="asyncio")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Address(listener.getsockname()[1], counting)
        finally:
            server.should_exit = True
            thread.join(timeout=20)
    assert not thread.is_alive()


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
def house():
    house = House()
    with serving(house) as address:
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


def posted(body, *more, path="/copies", method="POST", headers=None):
    return http(method, path, body, *(f"{name}: {value}" for name, value in (headers or signed(body)).items()), *more)


def chunked(body, size, *more):
    lines = ["POST / HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", *(f"{n}: {v}" for n, v in signed(body).items())]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return "\r\n".join([*lines, *more, "", ""]).encode() + coded + b"0\r\n\r\n"


async def test_over_the_wire_a_signed_post_is_answered_200_with_an_empty_body(server, sink):
    async with connected(server) as raw:
        for number, path in enumerate(["/", "/copies", "/a/b?c=d&e", "/%E4%BD%A0", "http://elsewhere/x"]):
            answer = await raw.ask(posted(content(number), path=path))
            assert (answer.status, answer.length, answer.body) == (200, 0, b"")
    assert len(sink.bodies) == 5


async def test_over_the_wire_chunks_are_one_body(server, sink):
    body = content(body="长" * 300)
    async with connected(server) as raw:
        for size in (1, 10_000):
            assert (await raw.ask(chunked(body, size))).status == 200
        assert (await raw.ask(posted(content()))).status == 200
    assert sink.bodies == [body, body, content()]


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


async def test_over_the_wire_a_length_that_is_too_large_is_answered_400_and_closed(sink):
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, budget=SOON)
    body = content()
    headers = [f"{name}: {value}" for name, value in signed(body).items()]
    lying = "\r\n".join(["POST / HTTP/1.1", "Host: x", f"Content-Length: {len(body) + 1}", *headers, "", ""]).encode() + body
    stopped = lying[:-10]
    never = lying[: -len(body)]
    with serving(receiver.asgi) as server:
        for data in (lying, stopped, never, chunked(body, 10)[:-5]):
            async with connected(server) as raw:
                answer = await raw.ask(data)
                assert (answer.status, answer.body, answer.headers["connection"]) == (400, TINY, "close")
                assert await raw.recv() == b""  # what comes late is no request
        async with connected(server) as raw:
            assert (await raw.ask(posted(body))).status == 200
    assert sink.bodies == [body]


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


def test_a_server_does_not_start_where_the_receiver_does_not(tmp_path, caplog):
    receiver = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"))
    receiver.on(Text)(nothing)
    config = uvicorn.Config(receiver.asgi, lifespan="on", log_config=None, port=0, ws="none")
    server = uvicorn.Server(config)
    with caplog.at_level(logging.ERROR), pytest.raises(SystemExit):
        server.run()
    assert not server.started
    assert "fallback" in caplog.text
    gc.collect()
