"""A receiver over real HTTP, under uvicorn."""

import asyncio
import gc
import logging
import socket
import threading
from contextlib import contextmanager

import pytest
import uvicorn

from helpers.credentials import CREDENTIALS
from helpers.rawclient import connected, http
from helpers.receiving_asgi import LIMIT, SOON, TINY, content, nothing, signed
from rbim.callbacks import Receiver, SqliteInbox, Text


class Counting:
    """Counts the bytes that the application takes."""

    def __init__(self, app):
        self.app = app
        self.taken = 0

    async def __call__(self, scope, receive, send):
        async def counted():
            message = await receive()
            self.taken += len(message.get("body", b""))
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


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


def chunked(body, size):
    lines = ["POST / HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", *(f"{n}: {v}" for n, v in signed(body).items())]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return "\r\n".join([*lines, "", ""]).encode() + coded + b"0\r\n\r\n"


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
async def test_over_the_wire_an_upload_of_50_mb_is_not_taken(receiver, sink, length):
    part = b"x" * 65536
    lines = ["POST / HTTP/1.1", "Host: x", *(f"{n}: {v}" for n, v in signed(b"").items())]
    lines += ["Transfer-Encoding: chunked"] if length == "chunked" else ["Content-Length: 52428800"]
    head = "\r\n".join([*lines, "", ""]).encode()
    with serving(receiver.asgi) as server:
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
            lines = [f"{name}: {value}" for name, value in signed(body).items()]
            assert (await raw.ask(http("POST", "/copies", body, *lines))).status == 200
    assert sink.bodies == [body]


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
