"""The server of a command's page: how it ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from rbim.cli.page.server import LocalPageServer

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_it_ends_while_a_stream_is_read_and_others_are_silent():
    begun = asyncio.Event()

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.set()
        await asyncio.Event().wait()

    async with LocalPageServer(app) as server:
        silent, streaming = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        streaming[1].write(REQUEST)
        assert (await streaming[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await begun.wait()
    for reader, writer in (silent, streaming):
        with suppress(ConnectionError):
            assert b"200" not in await reader.read()
        writer.close()
