"""The slots of the httpx transports: what they know of their connections, and what they do without httpcore."""

import asyncio
import sys

import pytest
from attrs import evolve
from hypothesis import example, given, settings, strategies as st

from helpers.exchanges import BODY, ENOUGH, became, failure, is_left, request
from rbim import NotSent, Unanswered
from rbim.testing.conformance.server import RawServer, chunked, head, reply, silent
from rbim.transports.httpx import HttpxTransport
from rbim.transports.httpx2 import Httpx2Transport
from rbim.transports.httpx_slots.slot import AsyncioSlot, end_of_response

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


# Where a response ends.


def ends_with(data, body, *, chunked):
    return end_of_response(data, len(body), chunked=chunked) == len(data)


@st.composite
def responses(draw):
    """The bytes of a response, perhaps behind interim ones; its body; whether it comes in chunks."""
    interim = head("103 Early Hints", "Link: </x>") * draw(st.integers(0, 2))
    parts = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
    body = b"".join(parts)
    match draw(st.sampled_from(["length", "chunks", "none"])):
        case "length":
            return interim + reply(body), body, False
        case "none":
            return interim + head("204 No Content"), b"", False
    extension, trailers = draw(st.sampled_from([b"", b";a=b"])), draw(st.sampled_from([b"", b"X-Sum: 1\r\n"]))
    lines = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return interim + head("200 OK", "Transfer-Encoding: chunked") + lines + b"0\r\n%b\r\n" % trailers, body, True


@given(responses(), st.binary(min_size=1, max_size=30))
@example((chunked(b"1"), b"1", True), b"0\r\n\r\n")
@example((chunked(b"1"), b"1", True), chunked(b"1"))
@example((reply(b"1"), b"1", False), reply(b"1"))
@settings(max_examples=300, deadline=None)
def test_a_slot_knows_whether_bytes_came_behind_the_response(response, behind):
    data, body, in_chunks = response
    assert ends_with(data, body, chunked=in_chunks)
    assert not ends_with(data + behind, body, chunked=in_chunks)


def test_lines_without_a_carriage_return_leave_it_open_where_the_response_ends():
    for data, in_chunks in [
        (b"HTTP/1.1 200 OK\nContent-Length: 1\n\n1", False),
        (head("200 OK", "Transfer-Encoding: chunked") + b"1\n1\n0\n\n", True),
        (head("200 OK", "Transfer-Encoding: chunked") + b"1\r\n1\r\n0\r\nX: y\n\n", True),
    ]:
        assert not ends_with(data, b"1", chunked=in_chunks)


# Connections on asyncio.


class Recording:
    """A transport of asyncio that records what is written."""

    def __init__(self, transport):
        self._transport = transport
        self.written = []

    def write(self, data):
        self.written.append(bytes(data))
        self._transport.write(data)

    def __getattr__(self, name):
        return getattr(self._transport, name)


@ON_ASYNCIO
@pytest.mark.parametrize("make", [HttpxTransport, Httpx2Transport])
async def test_head_and_body_leave_together(make):
    with RawServer() as server:
        async with make() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
            (slot,) = transport._routes[server.url()].idle
            slot.transport = recording = Recording(slot.transport)
            await transport.send(request(server.url()), timeout=ENOUGH)
            await transport.send(request(server.url(), body=b""), timeout=ENOUGH)
    assert [message.partition(b"\r\n\r\n")[2] for message in recording.written] == [BODY, b""]


@ON_ASYNCIO
async def test_a_get_without_a_body_has_no_length():
    with RawServer() as server:
        async with HttpxTransport() as transport:
            for method, body in [("GET", b""), ("GET", b"{}"), ("POST", b"")]:
                await transport.send(evolve(request(server.url(), body=body), method=method), timeout=ENOUGH)
    assert [each.header("Content-Length") for each in server.requests] == ["", "2", "0"]


@ON_ASYNCIO
async def test_bytes_that_came_before_the_request_left_are_no_response():
    with RawServer() as server:
        async with HttpxTransport() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
            (slot,) = transport._routes[server.url()].idle
            sending = asyncio.create_task(transport.send(request(server.url()), timeout=ENOUGH))
            await asyncio.sleep(0)  # it has the slot, and has written nothing
            stray = reply(b"stray")
            slot.get_buffer(-1)[: len(stray)] = stray
            slot.buffer_updated(len(stray))
            assert (await sending).body != b"stray"
    assert [each.body for each in server.requests] == [BODY, BODY]


@ON_ASYNCIO
async def test_a_server_that_has_spoken_before_the_handshake_does_not_speak_tls(monkeypatch):
    connect = AsyncioSlot.connect_tcp

    async def connected(slot, *args):
        await connect(slot, *args)
        slot.get_buffer(-1)[:1] = b"x"  # as on uvloop, where TLS begins to read later
        slot.buffer_updated(1)

    monkeypatch.setattr(AsyncioSlot, "connect_tcp", connected)
    with RawServer(greet=silent, scheme="https") as server:
        async with HttpxTransport(verify=False) as transport:
            with pytest.raises(NotSent, match="does not speak TLS"):
                await transport.send(request(server.url()), timeout=ENOUGH)


@ON_ASYNCIO
async def test_leaving_the_transport_ends_what_is_under_way():
    with RawServer(silent) as server:
        async with HttpxTransport() as transport:
            task = asyncio.create_task(failure(transport, request(server.url())))
            assert await became(server, lambda server: server.requests)
        assert await task is Unanswered
        assert await is_left(server)


async def test_without_httpcore_the_transport_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpcore", None)
    with pytest.raises(ImportError, match="httpcore"):
        async with HttpxTransport():
            pass
