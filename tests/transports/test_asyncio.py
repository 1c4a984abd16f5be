"""The transport on asyncio's own protocols: answers read by the letter, timers, and ways out."""

import asyncio
import re
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from http.client import HTTPResponse
from io import BytesIO
from itertools import pairwise

import anyio
import pytest
from hypothesis import example, given, settings, strategies as st

from helpers.exchanges import ENOUGH, PATH, became, is_left
from rbim import InvalidRequest, NotSent, Unanswered
from rbim.http import Request, Response
from rbim.testing.conformance.server import RawServer, authority, closing, head, refusing_port, reply, silent
from rbim.transports._shared import link
from rbim.transports.asyncio.answer import MAX_HEADS, RESTING, AnswerReader, KnownHeads
from rbim.transports.asyncio.h11_parser import H11Parser
from rbim.transports.asyncio.transport import AsyncioTransport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

SHORT = 0.1
WHOLE = b'{"statusCode":"000000"}'
SECRET = "0A1B2C3D4E5F"
LIMIT = 100_000
ASYNCIO = pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")
UVLOOP = pytest.param(
    ("asyncio", {"use_uvloop": True}),
    id="uvloop",
    marks=[pytest.mark.ci, pytest.mark.skipif(sys.platform == "win32", reason="uvloop does not run on Windows")],
)


@pytest.fixture(params=[ASYNCIO, UVLOOP])
def anyio_backend(request):
    return request.param


def request(origin, *, body=b"{}", repeatable=True, **changed):
    headers = {"Accept": "application/json", "Authorization": "YTE6MjAyNg=="}
    fields = {"path": PATH, "query": {"sig": SECRET}, "headers": headers} | changed
    return Request(origin=origin, body=body, repeatable=repeatable, **fields)


async def answered(transport, sent, body=WHOLE, timeout=ENOUGH):
    response = await transport.send(sent, timeout=timeout)
    assert response.body == body
    return response


def on(server):
    return [seen.connection for seen in server.requests]


# Reading answers: with llhttp, and with h11 as where httptools is not installed.


@pytest.fixture(params=["llhttp", "h11"], scope="module")
def parser(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "h11":
            patch.setattr("rbim.transports.asyncio.answer._new_parser", H11Parser)
        yield request.param


def read(data, places=(), *, limit=LIMIT, ended=False):
    """Give a reader the bytes, cut at these places, until it needs no more; ``ended`` says what comes then."""
    reader = AnswerReader(KnownHeads(limit))
    cuts = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    for start, stop in pairwise(cuts):
        if reader.feed(data[start:stop]):
            assert stop == len(data) or reader.fault
            return reader
    if ended:
        reader.end()
    return reader


class Wire:
    """What http.client takes for a socket."""

    def __init__(self, data):
        self._data = data

    def makefile(self, _):
        return BytesIO(self._data)


def as_the_standard_library_reads(data):
    """Return status, headers, body, and whether the connection is kept, as http.client has them."""
    response = HTTPResponse(Wire(data), method="POST")
    response.begin()
    headers = {}
    for name, value in response.headers.items():
        headers.setdefault(name.lower(), []).append(value.strip(" \t"))
    status, kept = response.status, not response.will_close
    return status, {name: ", ".join(values) for name, values in headers.items()}, response.read(), kept


TOKENS = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_!#$%&'*+.^`|~", min_size=1, max_size=12)
VALUES = st.text("abc XYZ09,;:=\"'()<>@/[]?{}\t\xa1\xe9\xff", max_size=30)
FRAMING = {"content-length", "transfer-encoding", "connection", "upgrade", "proxy-connection", "keep-alive"}
HEADERS = st.lists(st.tuples(TOKENS.filter(lambda name: name.lower() not in FRAMING), VALUES), max_size=6)
CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
KEEPING = st.sampled_from([[], [("Connection", "close")], [("connection", "Keep-Alive")]])


@st.composite
def answers(draw):
    """The bytes of a valid answer, perhaps after interim ones, and whether its body ends with the connection."""
    interim = b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * draw(st.integers(0, 2))
    version = draw(st.sampled_from(["1.1", "1.1", "1.0"]))
    status = draw(st.sampled_from([200, 201, 204, 302, 304, 404, 418, 503, 599, 999]))
    headers = draw(HEADERS) + draw(KEEPING)
    framing = draw(st.sampled_from(["length", "end"] + ["chunks"] * (version == "1.1")))
    parts = draw(CHUNKS)
    body = b"".join(parts)
    if status in {204, 304}:
        framing, body = "none", b""
    elif framing == "length":
        headers.insert(draw(st.integers(0, len(headers))), ("Content-Length", str(len(body))))
    elif framing == "chunks":
        headers.insert(
            draw(st.integers(0, len(headers))), ("Transfer-Encoding", draw(st.sampled_from(["chunked", "Chunked"])))
        )
        extension = draw(st.sampled_from([b"", b";a", b';a="b"']))
        body = b"".join(b"%X%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        body += b"0\r\n" + draw(st.sampled_from([b"", b"X-Sum: 1\r\n", b"Connection: close\r\nx: y\r\n"])) + b"\r\n"
    lines = "".join(f"{name}:{draw(st.sampled_from(['', ' ', '  ']))}{value}\r\n" for name, value in headers)
    reason = draw(st.sampled_from(["", " ", " OK", " not as it should be"]))
    return interim + f"HTTP/{version} {status}{reason}\r\n{lines}\r\n".encode("latin-1") + body, framing == "end"


@given(answers(), st.lists(st.integers(0, 400), max_size=8))
@settings(max_examples=200, deadline=None)
def test_an_answer_however_split_is_what_the_standard_library_reads(parser, answer, places):
    data, until_the_end = answer
    reader = read(data, places, ended=until_the_end)
    assert (reader.whole, reader.fault) == (True, "")
    response = reader.response()
    status, headers, body, kept = as_the_standard_library_reads(data)
    if parser == "h11" and "transfer-encoding" in headers:
        headers["transfer-encoding"] = headers["transfer-encoding"].lower()
    assert (response.status, response.headers, response.body) == (status, headers, body)
    if b"X-Sum" not in data and b"\r\nConnection: close\r\nx: y" not in data:  # http.client takes no part in trailers
        old = re.match(rb"(HTTP/1.1 100 Continue\r\nX: y\r\n\r\n)*HTTP/1.0 ", data)
        assert reader.reusable == (kept and not (parser == "h11" and old))


def seen(reader):
    return reader.whole, reader.fault, reader.reusable, reader.whole and reader.response()


@pytest.mark.usefixtures("parser")
@given(answers(), answers(), st.binary(max_size=20), st.integers(0, 200))
@example((reply(WHOLE), False), (reply(WHOLE[:-1]), False), b"", 0)
@example((reply(WHOLE), False), (reply(WHOLE + b"x"), False), b"\r\n", 0)
@example((head("100 Continue") + reply(WHOLE), False), (head("100 Continue"), False), b"", 0)
@example((head("200 OK", "Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\n\r\n", False), (reply(WHOLE), False), b"", 0)
@example((reply(WHOLE, "200 OK", "Connection: close"), False), (reply(WHOLE), False), b"", 0)
@example((reply(b""), False), (head("204 No Content"), False), b"", 0)
def test_answers_that_came_before_change_nothing_of_how_one_is_read(first, second, junk, cut):
    known = KnownHeads(LIMIT)
    for data in (first[0], first[0] + junk, second[0], first[0][: -cut or None], second[0] + junk, first[0]):
        one, other = AnswerReader(KnownHeads(LIMIT)), AnswerReader(known)
        assert one.feed(data) == other.feed(memoryview(data))
        assert seen(one) == seen(other)


@pytest.mark.usefixtures("parser")
def test_heads_that_never_come_again_are_not_kept_for_a_while():
    known = KnownHeads(LIMIT)
    reader = AnswerReader(known)

    def kept(number):
        reader.begin()
        assert reader.feed(reply(WHOLE, "200 OK", f"Date: {number}"))
        assert reader.response() == Response(200, {"date": str(number), "content-length": str(len(WHOLE))}, WHOLE)
        return [*known._heads]

    unused = [kept(number) for number in range(MAX_HEADS + 1)][-1]
    assert [kept(number) for number in range(1000, 1000 + RESTING)] == [unused] * RESTING
    for _ in range(2):
        assert len(kept(1)) in {2, 3}
    for number in range(2000, 2050 + MAX_HEADS):  # it was of use, so it starts anew without a rest
        assert kept(number)[-1].endswith(b"Date: %d" % number)


REFUSED = {
    "a folded header": head("200 OK", "X: a", " b", "Content-Length: 0"),
    "a folded header with a tab": head("200 OK", "X: a", "\tContent-Length: 1", "Content-Length: 0"),
    "a length and chunks": head("200 OK", "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "chunks and a length": head("200 OK", "Transfer-Encoding: chunked", "Content-Length: 5") + b"0\r\n\r\n",
    "the same length twice": head("200 OK", "Content-Length: 2", "Content-Length: 2") + b"{}",
    "a list of lengths": head("200 OK", "Content-Length: 2, 2") + b"{}",
    "a length with a sign": head("200 OK", "Content-Length: +2") + b"{}",
    "no length although there is the header": head("200 OK", "Content-Length:") + b"{}",
    "gzip": head("200 OK", "Transfer-Encoding: gzip") + b"0\r\n\r\n",
    "gzip in chunks": head("200 OK", "Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
    "chunks twice": head("200 OK", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "chunks with HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "junk after a chunk": head("200 OK", "Transfer-Encoding: chunked") + b"2\r\n{}xx0\r\n\r\n",
    "bare line feeds": b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    "bare carriage returns": b"HTTP/1.1 200 OK\rContent-Length: 2\r\r{}",
    "a space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
    "101": head("101 Switching Protocols"),
    "a status below 100": head("099 OK", "Content-Length: 0"),
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 2\r\n\r\n{}",
}


H11_TAKES = {  # None: it waits for more
    "a folded header": b"",
    "a folded header with a tab": b"",
    "the same length twice": b"{}",
    "a list of lengths": b"{}",
    "bare line feeds": b"{}",
    "bare carriage returns": None,
}


def test_what_is_not_http_by_the_letter_is_refused(parser):
    taken = {}
    for name, data in REFUSED.items():
        for places in ([], range(len(data))):
            reader = read(data, places)
            if not (reader.fault and (reader.whole, reader.reusable, reader.too_large) == (False, False, False)):
                taken[name] = reader.response().body if reader.whole else None
    assert taken == (H11_TAKES if parser == "h11" else {})


# Connections and their timers.


@pytest.mark.parametrize("anyio_backend", [ASYNCIO])  # uvloop's methods cannot be watched
async def test_a_connection_has_one_timer_for_all_its_requests(monkeypatch):
    loop = asyncio.get_running_loop()
    timers = []
    call_later = loop.call_later
    with RawServer(reply(WHOLE)) as server:
        async with AsyncioTransport() as transport:
            await answered(transport, request(server.url()))
            monkeypatch.setattr(loop, "call_later", lambda *given: timers.append(given) or call_later(*given))
            for _ in range(50):
                await answered(transport, request(server.url()))
            assert timers == []
            await answered(transport, request(server.url()), timeout=ENOUGH / 2)
            assert len(timers) == 1


async def test_a_timer_that_goes_off_before_the_deadline_of_the_day_ends_nothing():
    may_answer = threading.Event()

    def late(peer, _):
        assert may_answer.wait(ENOUGH)
        peer.send(reply(b"late"))

    with RawServer(reply(WHOLE), late) as server:
        async with AsyncioTransport() as transport:
            with suppress(Unanswered):  # where the machine is busier than this test wants
                await answered(transport, request(server.url()), timeout=SHORT)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answered, transport, request(server.url()), b"late")
                await anyio.sleep(2 * SHORT)
                may_answer.set()


async def test_an_answer_before_the_request_was_written_ends_the_connection():
    over = threading.Event()

    def early(peer, _):
        peer.send(reply(b"enough"))
        over.wait(ENOUGH)  # reads no more: the rest of the request stays unwritten

    with RawServer(early, reply(WHOLE), head_only=True, receive_buffer=65536) as server:
        async with AsyncioTransport() as transport:
            try:
                await answered(transport, request(server.url(), body=b" " * 20_000_000), b"enough")
                await answered(transport, request(server.url(), body=b""))
            finally:
                over.set()
    assert on(server) == [0, 1]


@pytest.mark.parametrize("polling", ["poll", "select"])
async def test_what_has_reached_the_machine_is_noticed_although_the_loop_had_no_turn(polling, monkeypatch):
    if polling == "select":
        monkeypatch.delattr("select.poll", raising=False)
    for extra in (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong", None):
        go, done = threading.Event(), threading.Event()

        def more(peer, _, extra=extra, go=go, done=done):
            peer.send(reply(WHOLE))
            assert go.wait(ENOUGH)
            peer.close() if extra is None else peer.send(extra)
            done.set()

        with RawServer(more, reply(b"2")) as server:
            async with AsyncioTransport() as transport:
                await answered(transport, request(server.url()))
                go.set()
                assert done.wait(ENOUGH)  # the loop stands still
                await answered(transport, request(server.url(), repeatable=False), b"2")
        assert on(server) == [0, 1]


async def test_leaving_ends_what_is_under_way():
    with RawServer(silent) as server:
        transport = await AsyncioTransport().__aenter__()
        waiting = asyncio.create_task(transport.send(request(server.url()), timeout=ENOUGH))
        assert await became(server, lambda server: server.requests)
        await transport.__aexit__(None, None, None)
        with pytest.raises(Unanswered, match="the transport was closed"):
            await waiting
        assert await is_left(server)


async def test_leaving_ends_what_is_being_connected():
    with RawServer(silent) as server:
        transport = await AsyncioTransport(verify=False).__aenter__()
        secure = server.url().replace("http:", "https:")
        waiting = asyncio.create_task(transport.send(request(secure), timeout=ENOUGH))
        assert await became(server, lambda server: server.accepted)
        await transport.__aexit__(None, None, None)
        with pytest.raises(NotSent, match="the transport was closed"):
            await waiting
        assert await is_left(server)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_it_says_what_to_use_there():
    with pytest.raises(RuntimeError, match="HttpxTransport"):
        async with AsyncioTransport():
            pass


# Ways out.


def tls(name="127.0.0.1"):
    """Return the context of a server that takes an end of TCP that is no end of TLS for an error."""
    context = authority().of_a_server(name)
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    return context


def trusting():
    return authority().trusted()["verify"]


def leaving(peer, _):
    """End the body as TLS wants it: with a word of leave."""
    peer.send(head("200 OK") + WHOLE)
    with suppress(OSError):
        peer.sock.unwrap()
    peer.close()


async def test_a_body_that_ends_with_the_connection_is_whole_only_if_tls_says_so():
    context = tls()
    with RawServer(leaving, closing(head("200 OK") + WHOLE), greet=lambda peer: peer.start_tls(context)) as server:
        async with AsyncioTransport(verify=trusting()) as transport:
            await answered(transport, request(server.url("https")))
            with pytest.raises(Unanswered, match="lost within the response"):
                await transport.send(request(server.url("https")), timeout=ENOUGH)


@pytest.mark.parametrize("anyio_backend", [ASYNCIO])  # uvloop resolves names by itself, and tries one after the other
async def test_a_name_of_several_addresses_is_reached_by_the_one_that_answers(monkeypatch):
    """The first refuses, or says nothing at all."""
    with RawServer(reply(WHOLE)) as server, refusing_port() as refusing:
        addresses = [("127.0.0.1", refusing), ("127.0.0.1", server.port)]
        infos = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)
        async with AsyncioTransport() as transport:
            await answered(transport, request("http://platform.example"))
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.settimeout(0)
                filler.connect_ex(deaf.getsockname())
            infos[0] = (*infos[0][:-1], deaf.getsockname())
            async with AsyncioTransport() as transport:
                await answered(transport, request("http://platform.example"), timeout=5.0)
            for filler in fillers:
                filler.close()


# What a request may be.


NO_REQUESTS = [
    {"headers": {"Authorization": f"{SECRET}\r\nX: y"}},
    {"headers": {"Authorization": f"{SECRET}\x00"}},
    {"headers": {"Authorization": f"{SECRET}é"}},
    {"headers": {f"X {SECRET}": "y"}},
    {"headers": {"": SECRET}},
    {"path": f"/{SECRET} HTTP/1.1\r\nX: y"},
    {"path": f"/{SECRET} x"},
    {"path": f"/研{SECRET}"},
    {"path": SECRET},
    {"method": f"POST /{SECRET}"},
    {"method": ""},
]


async def test_a_request_that_cannot_be_one_is_not_sent():
    with RawServer() as server:
        async with AsyncioTransport() as transport:
            for changed in NO_REQUESTS:
                with pytest.raises(NotSent) as raised:
                    await transport.send(request(server.url(), **changed), timeout=ENOUGH)
                assert SECRET not in repr(raised.value)
    assert server.accepted == 0


def test_a_proxy_that_cannot_be_used_is_refused_at_once():
    for proxy in ("https://127.0.0.1:1", "socks5://x:1"):
        with pytest.raises(InvalidRequest, match=r"proxy.*HttpxTransport") as raised:
            AsyncioTransport(proxy=proxy)
        assert raised.value.field == "proxy"


async def test_a_tunnel_is_one_whatever_its_answer_says_of_bodies():
    context = tls("platform.example")
    for established in (b"HTTP/1.0 200 OK\r\n\r\n", head("100 Continue") + head("200 OK", "Content-Length: 5")):

        def script(peer, received, established=established):
            peer.send(established if received.line.startswith("CONNECT") else reply(WHOLE))
            if received.line.startswith("CONNECT"):
                peer.start_tls(context)

        with RawServer(script) as proxy:
            async with AsyncioTransport(proxy=proxy.url(), verify=trusting()) as transport:
                for _ in range(2):
                    await answered(transport, request("https://platform.example"))
        assert proxy.accepted == 1


CALL_WITHOUT = """
import sys
for name in {missing}:
    sys.modules[name] = None
import asyncio
from rbim import Request
from rbim.transports.asyncio import AsyncioTransport

async def main():
    async with AsyncioTransport() as transport:
        request = Request(origin={origin!r}, path="/x", body=b"1")
        print([(await transport.send(request, timeout=10)).body for _ in range(3)])

asyncio.run(main())
"""


@pytest.mark.ci
def test_without_httptools_it_uses_h11_and_without_both_it_says_what_to_install():
    def run(*missing):
        program = CALL_WITHOUT.format(missing=missing, origin=server.url())
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    with RawServer(reply(WHOLE, "200 OK", "Server: x")) as server:
        assert run("httptools").stdout.strip() == str([WHOLE] * 3)
        assert on(server) == [0, 0, 0]
        told = run("httptools", "h11").stderr
    assert 'ImportError: AsyncioTransport needs httptools or h11: python -m pip install "rbim[fast]"' in told


async def test_it_serves_no_other_event_loop_than_the_one_it_was_entered_in():
    with RawServer(reply(WHOLE)) as server:
        async with AsyncioTransport() as transport:
            await answered(transport, request(server.url()))
            with pytest.raises(NotSent, match="another event loop"):
                await asyncio.to_thread(asyncio.run, answered(transport, request(server.url())))
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, transport.__aenter__())
            await answered(transport, request(server.url()))
    assert len(server.requests) == 2


async def test_a_read_that_fills_the_buffer_may_hold_back_more_and_ends_the_connection(monkeypatch):
    whole = reply(WHOLE)
    monkeypatch.setattr(link, "READ_SIZE", len(whole))
    with RawServer(whole) as server:
        async with AsyncioTransport() as transport:
            await answered(transport, request(server.url()))
            await answered(transport, request(server.url()))
    assert on(server) == [0, 1]
