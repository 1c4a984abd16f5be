"""The slots of the httpx transports: what they know of their connections, and what they do without httpcore."""

import ast
import asyncio
import json
import threading
from functools import partial
from itertools import pairwise

import anyio
import pytest
from hypothesis import example, given, settings, strategies as st

from helpers.exchanges import BODY, ENOUGH, SHORT, became, failure, is_left, request
from helpers.paths import ROOT
from helpers.waiting import until
from rbim import AnswerTooLarge, NotSent, Unanswered
from rbim.testing.conformance.server import RawServer, chunked, head, refusing_port, reply, silent
from rbim.transports.httpx import HttpxTransport
from rbim.transports.httpx2 import Httpx2Transport
from rbim.transports.httpx_slots.exchange import Exchange

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


# Where a response ends.


def exchanged(data, places):
    """Return an exchange whose request left, and that then read these bytes, cut at these places."""
    exchange = Exchange()
    exchange.begin("POST")
    exchange.add(b"POST / HTTP/1.1\r\n\r\n")
    exchange.message()
    cuts = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    exchange.read_bytes += [data[start:stop] for start, stop in pairwise(cuts)]
    return exchange


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


PLACES = st.lists(st.integers(0, 300), max_size=6)


@given(responses(), PLACES, st.binary(min_size=1, max_size=30))
@example((chunked(b"1"), b"1", True), [], b"0\r\n\r\n")
@example((chunked(b"1"), b"1", True), [], chunked(b"1"))
@example((reply(b"1"), b"1", False), [], reply(b"1"))
@settings(max_examples=300, deadline=None)
def test_an_exchange_knows_whether_bytes_came_behind_the_response(response, places, behind):
    data, body, in_chunks = response
    assert exchanged(data, places).ends_with(body, chunked=in_chunks)
    assert not exchanged(data + behind, places).ends_with(body, chunked=in_chunks)


def test_lines_without_a_carriage_return_leave_it_open_where_the_response_ends():
    for data, in_chunks in [
        (b"HTTP/1.1 200 OK\nContent-Length: 1\n\n1", False),
        (head("200 OK", "Transfer-Encoding: chunked") + b"1\n1\n0\n\n", True),
        (head("200 OK", "Transfer-Encoding: chunked") + b"1\r\n1\r\n0\r\nX: y\n\n", True),
    ]:
        assert not exchanged(data, []).ends_with(b"1", chunked=in_chunks)


def test_what_came_before_the_request_left_is_a_proxys():
    exchange = Exchange()
    exchange.begin("POST")
    exchange.add(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
    assert exchange.message().startswith(b"CONNECT")
    exchange.read_bytes.append(head("200 OK"))
    assert not exchange.sent
    exchange.add(b"POST / HTTP/1.1\r\n\r\n")
    exchange.add(b"body")
    assert exchange.message() == b"POST / HTTP/1.1\r\n\r\nbody"
    assert exchange.sent
    exchange.read_bytes.append(reply(b"1"))
    assert exchange.ends_with(b"1", chunked=False)


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
async def test_a_connection_has_one_timer_for_all_its_requests(monkeypatch):
    loop = asyncio.get_running_loop()
    timers = []
    call_at = loop.call_at
    with RawServer() as server:
        async with HttpxTransport() as transport:
            for _ in range(2):
                await transport.send(request(server.url()), timeout=ENOUGH)
            monkeypatch.setattr(
                loop, "call_at", lambda *given, **context: timers.append(given) or call_at(*given, **context)
            )
            for _ in range(50):
                await transport.send(request(server.url()), timeout=ENOUGH)
            assert timers == []


@ON_ASYNCIO
async def test_idle_connections_that_the_server_closes_are_closed_at_once():
    """Nobody sends anything meanwhile: sockets must not wait half closed for the next request."""
    number = 20
    all_there = threading.Barrier(number)

    def together_and_close(peer, _):
        all_there.wait(ENOUGH)
        peer.send(reply(b"{}"))
        peer.close()

    with RawServer(*[together_and_close] * number) as server:
        async with HttpxTransport() as transport:
            async with anyio.create_task_group() as tasks:
                for _ in range(number):
                    tasks.start_soon(partial(transport.send, request(server.url()), timeout=ENOUGH))
            await until(lambda: not transport._links.open)
            assert not transport._routes[server.url()].idle


@ON_ASYNCIO
async def test_leaving_the_transport_ends_what_is_under_way():
    with RawServer(silent) as server:
        async with HttpxTransport() as transport:
            task = asyncio.create_task(failure(transport, request(server.url())))
            assert await became(server, lambda server: server.requests)
        assert await task is Unanswered
        assert await is_left(server)


# Without httpcore.


class WithoutCore(HttpxTransport):
    """HttpxTransport as it is where httpx brings no httpcore."""

    engine = "httpcore_of_another_day"


async def test_without_httpcore_each_request_has_a_connection_of_its_own():
    with RawServer(reply(b"1") + reply(b"nobody's"), reply(b"2"), chunked(b"3")) as server:
        async with WithoutCore() as transport:
            bodies = [(await transport.send(request(server.url()), timeout=ENOUGH)).body for _ in range(3)]
            assert await is_left(server)
    assert bodies == [b"1", b"2", b"3"]
    assert [seen.connection for seen in server.requests] == [0, 1, 2]
    assert [seen.body for seen in server.requests] == [BODY] * 3


async def test_without_httpcore_failures_mean_the_same_or_less():
    async with WithoutCore(answer_limit=10) as transport:
        with refusing_port() as port:
            assert await failure(transport, request(f"http://127.0.0.1:{port}")) is NotSent
        assert await failure(transport, request("ftp://127.0.0.1")) is NotSent
        with RawServer(silent) as server:
            assert await failure(transport, request(server.url()), timeout=SHORT) is Unanswered
            assert await is_left(server)
        with RawServer(reply(b"x" * 11)) as server:
            assert await failure(transport, request(server.url())) is AnswerTooLarge
            assert await is_left(server)


# Public interfaces only.


def test_no_private_attribute_of_a_library_is_read():
    folder = ROOT / "rbim" / "transports"
    files = [folder / "httpx.py", folder / "httpx2.py", *(folder / "httpx_slots").glob("*.py")]
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                assert isinstance(node.value, ast.Name), (file.name, ast.unparse(node))
                assert node.value.id == "self", (file.name, ast.unparse(node))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
                assert not json.dumps(ast.unparse(node.args[1])).strip("\"'").startswith("_"), (file.name, ast.unparse(node))
