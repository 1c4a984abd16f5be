"""The server of a command's page: which connection is closed when there are too many."""

from __future__ import annotations

import asyncio

import pytest

from rbim.cli.page.server import MAX_CONNECTIONS, LocalPageServer

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def is_closed(reader):
    try:
        async with asyncio.timeout(20):
            return await reader.read() == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def test_the_newest_connection_is_closed_where_all_are_busy():
    busy, ends = [], asyncio.Event()

    async def app(_scope, _receive, send):
        busy.append(1)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await ends.wait()
        await send({"type": "http.response.body", "body": b"done"})

    opened = []
    async with LocalPageServer(app) as server:

        async def connect():
            opened.append(await asyncio.open_connection("127.0.0.1", server.port))
            opened[-1][1].write(REQUEST)
            return opened[-1][0]

        try:
            busy_ones = [await connect() for _ in range(MAX_CONNECTIONS)]
            while len(busy) < MAX_CONNECTIONS:
                await asyncio.sleep(0)
            assert await is_closed(await connect())
            ends.set()
            for each in busy_ones:
                assert (await each.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
            assert (await (await connect()).readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
            assert await is_closed(busy_ones[0])  # the one that has been idle for longest
        finally:
            for _, writer in opened:
                writer.close()
    assert len(busy) == MAX_CONNECTIONS + 1


async def test_a_stream_of_a_page_has_no_end_of_its_own(monkeypatch):
    monkeypatch.setattr("rbim.cli.connection.HEAD_TIMEOUT", 0.05)
    monkeypatch.setattr("rbim.cli.connection.RESPONSE_TIMEOUT", 0.01)
    ends = asyncio.Event()

    async def app(_scope, _receive, send):
        await ends.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    async with LocalPageServer(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST)
        silent, other = await asyncio.open_connection("127.0.0.1", server.port)
        assert await is_closed(silent)  # more time has passed than an answer of a receiver has
        ends.set()
        assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
        for each in (writer, other):
            each.close()
