"""The transport on asyncio's own protocols: answers read by the letter, timers, ways out, cancellation anywhere."""

import asyncio
import gc
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.client import HTTPResponse
from io import BytesIO
from itertools import pairwise

import anyio
import pytest
import trustme
from hypothesis import example, given, settings, strategies as st

from helpers.exchanges import ENOUGH, PATH, became, is_left
from helpers.waiting import until
from rbim import (
    AnswerTooLarge,
    AsyncClient,
    ClientClosed,
    Credentials,
    InvalidRequest,
    NotSent,
    Outcome,
    QueryGroupDetail,
    Unanswered,
)
from rbim.http import Request, Response
from rbim.testing.conformance.server import RawServer, chunked, closing, head, refusing_port, reply, silent
from rbim.transports._shared import link
from rbim.transports.asyncio.answer import HEAD_LIMIT, MAX_HEADS, RESTING, AnswerReader, KnownHeads
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
    marks=pytest.mark.skipif(sys.platform == "win32", reason="uvloop does not run on Windows"),
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
@settings(max_examples=300, deadline=None)
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
        assert reader.reusable == (kept and not (parser == "h11" and b"HTTP/1.0 " in data))


@pytest.mark.usefixtures("parser")
@given(answers().filter(lambda answer: not answer[1]), st.binary(min_size=1, max_size=50))
@example((reply(WHOLE), False), b"H")
@example((reply(WHOLE), False), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
@example((reply(WHOLE, "200 OK", "Connection: close"), False), b"junk")
@example((head("204 No Content"), False), b"wrong")
def test_what_follows_in_the_same_read_changes_no_answer_and_ends_the_connection(answer, junk):
    data, _ = answer
    alone, reader = read(data), read(data + junk)
    assert reader.whole
    assert reader.response() == alone.response()
    assert not reader.reusable or not junk.strip(b"\r\n")


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
def test_a_head_that_came_before_is_not_parsed_again_and_its_headers_are_the_answers_own():
    known, data = KnownHeads(LIMIT), reply(WHOLE)
    reader = AnswerReader(known)
    assert reader.feed(data)
    reader.response().headers["mine"] = "x"
    again = AnswerReader(known)
    again._parser = None
    assert again.feed(data)
    assert again.response() == Response(200, {"content-length": str(len(WHOLE))}, WHOLE)
    again.response().headers["mine"] = "x"
    again.begin()
    assert again.feed(data)
    assert "mine" not in again.response().headers


@pytest.mark.usefixtures("parser")
def test_only_so_many_heads_are_kept():
    known = KnownHeads(LIMIT)
    for number in range(1000):
        assert AnswerReader(known).feed(reply(WHOLE, "200 OK", f"Date: {number}"))
    assert len(known._heads) < 100


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


@pytest.mark.usefixtures("parser")
def test_only_so_many_and_so_long_names_are_kept():
    known = KnownHeads(LIMIT)
    for number in range(500):
        for name in (f"X-{number}", f"X-{number}-{'x' * 100}"):
            assert read(reply(WHOLE, "200 OK", f"{name}: 1")).response().headers[name.lower()] == "1"
            AnswerReader(known).feed(reply(WHOLE, "200 OK", f"{name}: 1"))
    assert 100 < len(known.names) < 500
    assert max(map(len, known.names)) < 100


SPLIT = {
    "a length": reply(WHOLE, "200 OK", "X-Two: a", "x-two: b"),
    "interim answers": head("100 Continue") + head("103 Early Hints", "Link: </x>") + reply(WHOLE),
    "chunks": head("200 OK", "Transfer-Encoding: chunked")
    + b"A;x=y\r\n%b\r\n0d\r\n%b\r\n0\r\nT: u\r\n\r\n" % (WHOLE[:10], WHOLE[10:]),
}


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("data", SPLIT.values(), ids=SPLIT)
def test_an_answer_may_be_split_anywhere(data):
    wanted = read(data).response()
    assert wanted.body == WHOLE
    assert not {"t", "link"} & set(wanted.headers)
    for first in range(1, len(data)):
        reader = AnswerReader(KnownHeads(LIMIT))
        assert not reader.feed(data[:first])
        assert reader.feed(data[first:])
        assert (reader.response(), reader.reusable) == (wanted, True)
    reader = AnswerReader(KnownHeads(LIMIT))
    assert [reader.feed(bytes([byte])) for byte in data] == [False] * (len(data) - 1) + [True]
    assert (reader.response(), reader.reusable) == (wanted, True)


@pytest.mark.usefixtures("parser")
def test_one_reader_reads_one_answer_after_the_other():
    reader = AnswerReader(KnownHeads(LIMIT))
    for data, body in [
        (reply(b"1"), b"1"),
        (chunked(b"2", b"3"), b"23"),
        (head("204 No"), b""),
        (reply(b"", "200 OK"), b""),
    ] * 3:
        reader.begin()
        assert reader.feed(data)
        assert (reader.response().body, reader.reusable) == (body, True)


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


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_http_by_the_letter_is_refused(parser, name):
    data = REFUSED[name]
    if parser == "h11" and name in H11_TAKES:
        reader = read(data)
        assert (reader.response().body if reader.whole else None) == H11_TAKES[name]
        assert not reader.fault
        return
    for places in ([], range(len(data))):
        reader = read(data, places)
        assert reader.fault
        assert (reader.whole, reader.reusable, reader.too_large) == (False, False, False)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("piece", [1, 1000, HEAD_LIMIT - 1, HEAD_LIMIT, 3 * HEAD_LIMIT])
def test_a_head_may_have_64_kib_however_it_comes(piece):
    def with_a_head_of(length):
        empty = len(head("200 OK", "Content-Length: 200000", "X: "))
        return head("200 OK", "Content-Length: 200000", "X: " + "x" * (length - empty)) + b"y" * 200_000

    for length, fits in [(HEAD_LIMIT, True), (HEAD_LIMIT + 1, False), (2 * HEAD_LIMIT, False), (4 * HEAD_LIMIT, False)]:
        data = with_a_head_of(length)
        reader = AnswerReader(KnownHeads(10 * LIMIT))
        assert any(reader.feed(data[place : place + piece]) for place in range(0, len(data), piece))
        assert (reader.whole, bool(reader.fault)) == (fits, not fits)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("piece", [7, 5000])
def test_trailers_and_interim_answers_without_end_are_refused(piece):
    for beginning, more in [(chunked(b"{}")[:-2], b"X: y\r\n"), (b"", head("103 Early Hints", "X: y"))]:
        data = beginning + more * (HEAD_LIMIT // len(more) + 2000)
        reader = AnswerReader(KnownHeads(LIMIT))
        assert any(reader.feed(data[place : place + piece]) for place in range(0, len(data), piece))
        assert "longer than" in reader.fault


@pytest.mark.usefixtures("parser")
def test_a_body_of_many_small_chunks_is_no_head():
    body = bytes(range(256)) * 300
    assert read(chunked(*(body[i : i + 1] for i in range(len(body)))), range(0, 10**6, 999)).response().body == body


@pytest.mark.usefixtures("parser")
def test_a_length_past_the_limit_is_refused_before_the_body_is_read():
    reader = read(head("200 OK", f"Content-Length: {LIMIT + 1}"))
    assert (reader.too_large, reader.whole) == (True, False)
    assert read(head("304 Not Modified", f"Content-Length: {LIMIT + 1}")).whole  # it has none


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


async def test_an_earlier_deadline_than_the_timers_is_kept():
    with RawServer(reply(WHOLE), silent) as server:
        async with AsyncioTransport() as transport:
            await answered(transport, request(server.url()))
            began = anyio.current_time()
            with pytest.raises(Unanswered, match=r"within 0\.1 s"):
                await transport.send(request(server.url()), timeout=SHORT)
            assert SHORT * 0.9 <= anyio.current_time() - began < SHORT + 3
            assert await is_left(server)


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


async def test_a_connection_that_nobody_needs_is_closed_without_being_asked():
    with RawServer(reply(WHOLE)) as server:
        async with AsyncioTransport(max_idle=0.05) as transport:
            with suppress(Unanswered):
                await answered(transport, request(server.url()), timeout=SHORT)
            assert await is_left(server)
            assert not transport._routes[server.url()].idle
            await answered(transport, request(server.url()))
    assert on(server) == [0, 1]


@pytest.mark.parametrize("timeout", [float("inf"), 1e9])
async def test_a_time_out_may_be_endless(timeout):
    with RawServer(reply(WHOLE)) as server:
        async with AsyncioTransport() as transport:
            await answered(transport, request(server.url()), timeout=timeout)


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
@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong", None], ids=["an answer", "the end"])
async def test_what_has_reached_the_machine_is_noticed_although_the_loop_had_no_turn(polling, extra, monkeypatch):
    if polling == "select":
        monkeypatch.delattr("select.poll", raising=False)
    go, done = threading.Event(), threading.Event()

    def more(peer, _):
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


@pytest.mark.parametrize(("repeatable", "connections"), [(True, [0, 0, 0]), (False, [0, 1, 2])])
async def test_a_connection_idle_for_long_serves_only_what_may_be_repeated(repeatable, connections):
    with RawServer(reply(WHOLE)) as server:
        async with AsyncioTransport(keepalive_expiry=0.0) as transport:
            for _ in range(3):
                await asyncio.sleep(0.001)
                await answered(transport, request(server.url(), repeatable=repeatable))
    assert on(server) == connections


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


async def test_a_client_that_is_left_ends_its_calls_over_it():
    group = QueryGroupDetail(group_id="g1")
    with RawServer(silent) as server:
        credentials = Credentials(app_id="a", app_token="t")
        async with AsyncClient(base_url=server.url(), credentials=credentials, transport=AsyncioTransport()) as client:
            sent = asyncio.create_task(client.send(group))
            assert await became(server, lambda server: server.requests)
            assert not client._shared.scopes
        with pytest.raises(ClientClosed) as caught:
            await sent
        assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_transport_can_be_entered_again():
    transport = AsyncioTransport()
    with RawServer(reply(WHOLE)) as server:
        for _ in range(2):
            async with transport:
                await answered(transport, request(server.url()))
            assert await is_left(server)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_it_says_what_to_use_there():
    with pytest.raises(RuntimeError, match="HttpxTransport"):
        async with AsyncioTransport():
            pass


# Cancellation.


# the server's: Python leaves it open where it is made of a connection that was reset; the client's own are of other types
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.parametrize("way", ["http", "https", "tunnel"])
async def test_cancelled_at_any_await_it_leaves_no_connection_and_no_answer(way, tls):
    """Cancelled after one turn of the loop, after two, after three; and at moments spread over the time that it takes."""

    def numbered(peer, received):
        if received.line.startswith("CONNECT"):
            peer.send(head("200 Connection established"))
            peer.start_tls(tls.context())
        else:
            peer.send(reply(received.body))

    greet = (lambda peer: peer.start_tls(tls.context())) if way == "https" else None
    with RawServer(numbered, greet=greet) as server:
        options = {"proxy": server.url()} if way == "tunnel" else {}
        origin = server.url("http" if way == "http" else "https")
        async with AsyncioTransport(verify=tls.trusting(), **options) as transport:

            async def cancelled(name, wait):
                task = asyncio.create_task(transport.send(request(origin, body=name), timeout=ENOUGH))
                await wait
                task.cancel()
                with suppress(asyncio.CancelledError):
                    assert (await task).body == name

            async def turns(number):
                for _ in range(number):
                    await asyncio.sleep(0)

            for number in range(30):
                await cancelled(b"%d turns" % number, turns(number))
            began = time.monotonic()
            await answered(transport, request(origin, body=b"whole"), b"whole")
            took = min(time.monotonic() - began, 0.02)
            for number in range(50):
                await cancelled(b"%d parts" % number, asyncio.sleep(took * number / 40))
            await answered(transport, request(origin, body=b"last"), b"last")
            assert len(transport._routes[origin].idle) == 1
            await until(lambda: len(transport._links.open) == 1)  # what was aborted goes with the next turns of the loop
            assert await became(server, lambda server: len(server.open) == 1)
        assert await is_left(server)
    gc.collect()


async def test_an_answer_that_comes_with_the_cancellation_is_nobodys():
    with RawServer(silent, reply(WHOLE)) as server:
        async with AsyncioTransport() as transport:
            task = asyncio.create_task(transport.send(request(server.url()), timeout=ENOUGH))
            assert await became(server, lambda server: server.requests)
            (connection,) = transport._links.open
            task.cancel()
            late = reply(b"late")
            connection.get_buffer(-1)[: len(late)] = late
            connection.buffer_updated(len(late))
            with pytest.raises(asyncio.CancelledError):
                await task
            await answered(transport, request(server.url()))
    assert on(server) == [0, 1]


# Ways out.


class Authority:
    """A certificate authority, and a server's certificate for this machine."""

    def __init__(self):
        self._authority = trustme.CA()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
        self._authority.issue_cert("127.0.0.1", "::1", "platform.example").configure_cert(self._context)

    def context(self):
        return self._context

    def trusting(self):
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        return context


@pytest.fixture(scope="module")
def tls():
    return Authority()


def leaving(peer, _):
    """End the body as TLS wants it: with a word of leave."""
    peer.send(head("200 OK") + WHOLE)
    with suppress(OSError):
        peer.sock.unwrap()
    peer.close()


async def test_a_body_that_ends_with_the_connection_is_whole_only_if_tls_says_so(tls):
    with RawServer(leaving, closing(head("200 OK") + WHOLE), greet=lambda peer: peer.start_tls(tls.context())) as server:
        async with AsyncioTransport(verify=tls.trusting()) as transport:
            await answered(transport, request(server.url("https")))
            with pytest.raises(Unanswered, match="lost within the response"):
                await transport.send(request(server.url("https")), timeout=ENOUGH)


async def test_closing_a_secure_connection_says_so_and_waits_for_nobody(tls):
    ends = []

    def listening(peer, _):
        peer.send(reply(WHOLE))
        peer.sock.suppress_ragged_eofs = False
        ends.append(peer.sock.recv(1))  # an end that is no end of TLS raises

    with RawServer(listening, greet=lambda peer: peer.start_tls(tls.context())) as server:
        async with AsyncioTransport(verify=tls.trusting()) as transport:
            await answered(transport, request(server.url("https")))
        assert await is_left(server)
    assert ends == [b""]


async def test_https_over_a_unix_socket_and_ipv6(tls, tmp_path):
    def greet(peer):
        peer.start_tls(tls.context())

    places = [{"path": str(tmp_path / "socket")}]
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        places.append({"host": "::1"})
    for place in places:
        with RawServer(reply(WHOLE), greet=greet, **place) as server:
            origin = "https://platform.example:8883" if "path" in place else server.url("https")
            async with AsyncioTransport(verify=tls.trusting(), uds=place.get("path")) as transport:
                for _ in range(2):
                    await answered(transport, request(origin))
            assert (server.accepted, server.requests[0].header("Host")) == (1, origin.removeprefix("https://"))


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


async def test_headers_are_prepared_for_each_set_of_them():
    with RawServer(reply(WHOLE)) as server:
        async with AsyncioTransport() as transport:
            for number in (1, 1, 2, 1):
                told = {
                    "X-Number": str(number),
                    "host": "other.example",
                    "Content-Length": "999",
                    "Transfer-Encoding": "chunked",
                }
                sent = request(server.url(), headers=told, query={"n": str(number)}, path=f"/{number}", body=b"x" * number)
                await answered(transport, sent)
            given = {"X-Number": "3"}
            await answered(transport, request(server.url(), headers=given))
            given["X-Number"] = "4"  # the caller's own, changed meanwhile
            await answered(transport, request(server.url(), headers=given))
            await answered(transport, request(server.url(), headers=given, query={}))
    assert [seen.line for seen in server.requests[:4]] == [f"POST /{n}?n={n} HTTP/1.1" for n in (1, 1, 2, 1)]
    for seen, number in zip(server.requests, (1, 1, 2, 1), strict=False):
        assert sorted(seen.headers) == [
            ("Content-Length", str(number)),
            ("X-Number", str(number)),
            ("host", "other.example"),
        ]
    assert [seen.header("X-Number") for seen in server.requests[4:]] == ["3", "4", "4"]
    assert server.requests[6].line == f"POST {PATH} HTTP/1.1"


@pytest.mark.parametrize(
    "changed",
    [
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
    ],
    ids=str,
)
async def test_a_request_that_cannot_be_one_is_not_sent(changed):
    with RawServer() as server:
        async with AsyncioTransport() as transport:
            with pytest.raises(NotSent) as raised:
                await transport.send(request(server.url(), **changed), timeout=ENOUGH)
    assert SECRET not in repr(raised.value)
    assert server.accepted == 0


ORIGINS = [
    "ftp://x",
    "x:1",
    "",
    "http://",
    "http://[::1",
    "http://x:port",
    "http://x:99999",
    "http://x?y",
    "http://u:p@x",
    "http://x y",
]


@pytest.mark.parametrize("origin", [*ORIGINS, "http://x/a b", "http://x\r\ny", "http://研 x", f"http://{'x' * 70}.example"])
async def test_an_origin_that_is_none_is_not_sent(origin):
    async with AsyncioTransport() as transport:
        with pytest.raises(NotSent):
            await transport.send(request(origin), timeout=ENOUGH)


@pytest.mark.parametrize(
    "proxy", ["https://127.0.0.1:1", "socks5://x:1", "gopher://x", "http://x:port", "http://[::1", "no address", ""]
)
def test_a_proxy_that_cannot_be_used_is_refused_at_once(proxy):
    with pytest.raises(InvalidRequest, match=r"proxy.*HttpxTransport") as raised:
        AsyncioTransport(proxy=proxy)
    assert raised.value.field == "proxy"


def test_a_proxy_and_a_unix_socket_together_are_refused():
    with pytest.raises(InvalidRequest, match="proxy"):
        AsyncioTransport(proxy="http://x:1", uds="/x")


async def test_the_environment_names_a_proxy_unless_it_is_not_asked(monkeypatch):
    with RawServer(reply(WHOLE)) as server, RawServer(reply(b"proxy")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:pa%3Ass@127.0.0.1:{proxy.port}")
        async with AsyncioTransport() as transport:
            await answered(transport, request("http://platform.example/x"), b"proxy")
        async with AsyncioTransport(trust_env=False) as transport:
            await answered(transport, request(server.url()))
        monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:9")
        async with AsyncioTransport() as transport:
            with pytest.raises(NotSent, match="http:// proxies only"):
                await transport.send(request(server.url()), timeout=ENOUGH)
    assert proxy.requests[0].line == f"POST http://platform.example/x{PATH}?sig={SECRET} HTTP/1.1"
    assert proxy.requests[0].header("Proxy-Authorization") == "Basic dXNlcjpwYTpzcw=="  # printf %s user:pa:ss | base64
    assert not server.requests[0].header("Proxy-Authorization")


@pytest.mark.parametrize(
    "script",
    [
        reply(b"", "407 Who are you"),
        head("200 OK") + b"junk",
        head("200 OK", "Content-Length: 0") + b"junk",
        closing(head("200 OK", "Connection: close")),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * HEAD_LIMIT,
        silent,
    ],
    ids=["407", "junk behind", "junk behind a length", "close", "a head without end", "silence"],
)
async def test_a_tunnel_that_is_none_is_not_sent(script, tls):
    with RawServer(script) as proxy:
        async with AsyncioTransport(proxy=proxy.url(), verify=tls.trusting()) as transport:
            timeout = 0.3 if script is silent else ENOUGH
            with pytest.raises(NotSent):
                await transport.send(request("https://platform.example"), timeout=timeout)
            assert await is_left(proxy)
    assert [seen.line for seen in proxy.requests] == ["CONNECT platform.example:443 HTTP/1.1"]


@pytest.mark.parametrize(
    "established", [b"HTTP/1.0 200 OK\r\n\r\n", head("100 Continue") + head("200 OK", "Content-Length: 5")]
)
async def test_a_tunnel_is_one_whatever_its_answer_says_of_bodies(established, tls):
    def script(peer, received):
        peer.send(established if received.line.startswith("CONNECT") else reply(WHOLE))
        if received.line.startswith("CONNECT"):
            peer.start_tls(tls.context())

    with RawServer(script) as proxy:
        async with AsyncioTransport(proxy=proxy.url(), verify=tls.trusting()) as transport:
            for _ in range(2):
                await answered(transport, request("https://platform.example"))
    assert proxy.accepted == 1


async def test_a_tunnel_is_nobody_elses_before_its_handshake(tls):
    def script(peer, _):
        peer.send(head("200 OK"))
        silent(peer)

    with RawServer(script) as proxy:
        async with AsyncioTransport(proxy=proxy.url(), verify=tls.trusting()) as transport:
            for number in (1, 2):
                task = asyncio.create_task(transport.send(request("https://platform.example"), timeout=ENOUGH))
                assert await became(proxy, lambda proxy, number=number: len(proxy.requests) == number)
                await asyncio.sleep(0.03)
                assert not transport._routes["https://platform.example"].idle
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    assert on(proxy) == [0, 1]


async def test_an_answer_that_is_too_large_says_the_limit():
    with RawServer(reply(b"x" * 11), reply(b"x" * 10)) as server:
        async with AsyncioTransport(answer_limit=10) as transport:
            with pytest.raises(AnswerTooLarge, match="longer than 10 bytes") as raised:
                await transport.send(request(server.url()), timeout=ENOUGH)
            assert raised.value.limit == 10
            await answered(transport, request(server.url()), b"x" * 10)


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
