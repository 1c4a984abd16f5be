"""The default transport against servers of plain sockets: what goes over the wire, connections, TLS, proxies, time-outs."""

import asyncio
import gc
import json
import random
import socket
import ssl
import threading
from contextlib import asynccontextmanager, suppress

import anyio
import httpx
import pytest
from anyio import CancelScope, create_task_group

from helpers.exchanges import BODY, ENOUGH, PATH, SHORT, became, failure, is_left, request
from rbim import AnswerTooLarge, AsyncClient, Credentials, Limits, NotSent, Outcome, Retry, Unanswered
from rbim.http import Request
from rbim.testing.conformance.server import (
    Peer,
    RawServer,
    byte_by_byte,
    chunked,
    closing,
    head,
    refusing_port,
    reply,
    resetting,
    silent,
)
from rbim.transports.httpx import HttpxTransport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")


# On the wire.


async def test_a_request_on_the_wire_is_what_was_asked_for_and_nothing_else():
    with RawServer(reply(b"{}")) as server:
        async with HttpxTransport() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
    (seen,) = server.requests
    assert seen.line == f"POST {PATH}?sig=0A1B2C HTTP/1.1"
    assert sorted((name.lower(), value) for name, value in seen.headers) == [
        ("accept", "application/json"),
        ("accept-encoding", "identity"),
        ("authorization", "YTE6MjAyNg=="),
        ("content-length", str(len(BODY))),
        ("content-type", "application/json;charset=utf-8"),
        ("host", f"127.0.0.1:{server.port}"),
    ]
    assert seen.body == BODY


async def test_quoted_paths_query_values_and_an_origins_own_path_arrive_as_written():
    with RawServer() as server:
        sent = Request(
            origin=f"{server.url()}/gate%20way", path="/a%2Fb%25/%E7%A0%94", query={"sig": "a b&c=%+/é", "n": "1"}
        )
        async with HttpxTransport() as transport:
            await transport.send(sent, timeout=ENOUGH)
    assert server.requests[0].line == "POST /gate%20way/a%2Fb%25/%E7%A0%94?sig=a%20b%26c%3D%25%2B%2F%C3%A9&n=1 HTTP/1.1"


async def test_a_large_body_arrives_whole():
    body = random.Random(1).randbytes(3_000_000)
    with RawServer() as server:
        async with HttpxTransport() as transport:
            await transport.send(request(server.url(), body=body), timeout=ENOUGH)
    assert server.requests[0].body == body


WHOLE = b'{"statusCode":"000000"}'


@pytest.mark.parametrize(
    "script",
    [
        reply(WHOLE),
        chunked(WHOLE),
        chunked(*(WHOLE[i : i + 1] for i in range(len(WHOLE)))),
        closing(head("200 OK") + WHOLE),
        closing(reply(WHOLE, "200 OK", "Connection: close")),
        closing(b"HTTP/1.0 200 OK\r\n\r\n" + WHOLE),
        byte_by_byte(reply(WHOLE)),
        byte_by_byte(chunked(WHOLE)),
        head("100 Continue") + reply(WHOLE),
        head("103 Early Hints", "Link: </x>") * 3 + reply(WHOLE),
        b"HTTP/1.1 200 OK\nContent-Length: %d\n\n" % len(WHOLE) + WHOLE,
    ],
    ids=[
        "length",
        "one chunk",
        "many chunks",
        "until close",
        "length and close",
        "HTTP/1.0",
        "byte by byte",
        "chunks byte by byte",
        "100 first",
        "103 thrice first",
        "bare line feeds",
    ],
)
async def test_every_framing_gives_the_same_body(script):
    with RawServer(script) as server:
        async with HttpxTransport() as transport:
            for _ in range(3):
                response = await transport.send(request(server.url()), timeout=ENOUGH)
                assert (response.status, response.body) == (200, WHOLE)
        assert await is_left(server)


async def test_an_answer_has_its_status_and_headers_whatever_they_are():
    answer = reply(b"<p>", "302 Found", "Location: http://127.0.0.1:9/", "X-Two: a", "x-two: b", "Content-Encoding: gzip")
    with RawServer(answer) as server:
        async with HttpxTransport() as transport:
            response = await transport.send(request(server.url()), timeout=ENOUGH)
    assert (response.status, response.body) == (302, b"<p>")
    assert response.headers == {
        "content-length": "3",
        "location": "http://127.0.0.1:9/",
        "x-two": "a, b",
        "content-encoding": "gzip",
    }
    assert len(server.requests) == 1


async def test_an_answer_that_comes_before_the_whole_request_is_taken():
    def early(peer: Peer, received):
        peer.send(reply(b"too large", "413 No", "Connection: close"))
        peer.read_body(received.head)
        peer.close()

    with RawServer(early, head_only=True) as server:
        async with HttpxTransport() as transport:
            response = await transport.send(request(server.url(), body=b" " * 3_000_000), timeout=ENOUGH)
    assert (response.status, response.body) == (413, b"too large")


# Connections.


async def test_a_connection_is_kept_and_used_again():
    with RawServer() as server:
        async with HttpxTransport() as transport:
            for _ in range(5):
                await transport.send(request(server.url(), repeatable=False), timeout=ENOUGH)
        assert await is_left(server)
    assert [seen.connection for seen in server.requests] == [0] * 5


async def test_a_connection_that_the_server_closes_is_not_used_again():
    with RawServer(closing(reply(b"{}", "200 OK", "Connection: close"))) as server:
        async with HttpxTransport() as transport:
            for _ in range(3):
                await transport.send(request(server.url()), timeout=ENOUGH)
    assert [seen.connection for seen in server.requests] == [0, 1, 2]


async def test_what_comes_behind_an_answer_is_nobodys():
    """Two answers in one piece: the second is not the answer to the next request, which goes over another connection."""
    with RawServer(reply(b"1") + reply(b"nobody's"), reply(b"2")) as server:
        async with HttpxTransport() as transport:
            bodies = [(await transport.send(request(server.url()), timeout=ENOUGH)).body for _ in range(3)]
    assert bodies == [b"1", b"2", b"2"]
    assert [seen.connection for seen in server.requests] == [0, 1, 1]


async def test_a_kept_connection_that_the_server_has_closed_meanwhile_is_noticed():
    with RawServer(closing(reply(b"{}"))) as server:
        async with HttpxTransport() as transport:
            for _ in range(3):
                response = await transport.send(request(server.url(), repeatable=False), timeout=ENOUGH)
                assert response.status == 200
                assert await is_left(server)
    assert [seen.connection for seen in server.requests] == [0, 1, 2]


@pytest.mark.parametrize(("repeatable", "connections"), [(True, [0, 0, 0]), (False, [0, 1, 2])])
async def test_a_connection_idle_for_long_serves_only_what_may_be_repeated(repeatable, connections):
    with RawServer() as server:
        async with HttpxTransport(keepalive_expiry=0.0) as transport:
            for _ in range(3):
                await transport.send(request(server.url(), repeatable=repeatable), timeout=ENOUGH)
    assert [seen.connection for seen in server.requests] == connections


async def test_connections_idle_for_too_long_do_not_pile_up():
    with RawServer() as server:
        async with HttpxTransport(keepalive_expiry=0.0) as transport:
            for _ in range(5):
                await transport.send(request(server.url(), repeatable=False), timeout=ENOUGH)
                assert await became(server, lambda server: len(server.open) == 1)


async def test_each_origin_has_connections_of_its_own():
    with RawServer(reply(b"1")) as one, RawServer(reply(b"2")) as two:
        async with HttpxTransport() as transport:
            for server, body in [(one, b"1"), (two, b"2")] * 3:
                response = await transport.send(request(server.url()), timeout=ENOUGH)
                assert response.body == body
    assert (one.accepted, two.accepted) == (1, 1)


@pytest.mark.parametrize("entered", [False, True], ids=["before it is entered", "after it is left"])
async def test_a_transport_that_is_not_open_sends_nothing(entered):
    transport = HttpxTransport()
    with RawServer() as server:
        if entered:
            async with transport:
                await transport.send(request(server.url()), timeout=ENOUGH)
        assert await failure(transport, request(server.url())) is NotSent
        assert len(server.requests) == entered


# Many at once, and cancellation.


def naming(peer, received):
    """Answer with the group's id as its name, so that an answer shows whose it is."""
    name = json.loads(received.body)["groupId"]
    peer.send(reply(json.dumps({"statusCode": "000000", "name": name}).encode()))


@asynccontextmanager
async def client_of(server, *, places):
    client = AsyncClient(
        base_url=server.url(),
        credentials=Credentials(app_id="a1", app_token="t1"),
        limits=Limits(concurrency=places),
        retry=Retry(attempts=1),
        timeout=30.0,
        deadline=60.0,
    )
    async with client:
        yield client


async def asks(client, number):
    name = f"g{number}"
    detail = await client.groups.detail(group_id=name)
    assert detail.name == name


async def test_a_thousand_calls_at_once_open_a_connection_for_each_place_and_no_more():
    places = 100
    all_there = threading.Barrier(places)
    seen: set[int] = set()

    def together_first(peer, received):
        if peer.number not in seen:
            seen.add(peer.number)
            all_there.wait(timeout=ENOUGH)
        naming(peer, received)

    with RawServer(together_first) as server:
        async with client_of(server, places=places) as client, create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(asks, client, number)
        assert await is_left(server)
    assert (server.accepted, len(server.requests)) == (places, 1000)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_cancelling_half_of_two_thousand_calls_leaks_nothing(seed):
    places = 40
    chance = random.Random(seed)
    scopes: dict[int, CancelScope] = {}
    answered: set[int] = set()

    async def cancellable(client, number):
        with scopes[number]:
            await asks(client, number)
            answered.add(number)

    with RawServer(naming) as server:
        async with client_of(server, places=places) as client:
            async with create_task_group() as tasks:
                for number in range(2000):
                    scopes[number] = CancelScope()
                    tasks.start_soon(cancellable, client, number)
                for number in chance.sample(range(2000), 1000):
                    scopes[number].cancel()
                    if chance.random() < 0.3:
                        await anyio.sleep(chance.random() * 0.003)
            gate = client._shared.admission
            cancelled = {number for number, scope in scopes.items() if scope.cancelled_caught}
            assert answered | cancelled == set(range(2000))
            assert not answered & cancelled
            assert len(cancelled) > 100
            assert (gate.free, gate.waiting) == (places, 0)
            for number in range(100):
                await asks(client, number)
        assert await is_left(server)
    assert server.accepted <= places + len(cancelled)
    gc.collect()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancelling_tasks_of_asyncio_leaks_nothing():
    places = 10
    chance = random.Random(3)
    with RawServer(naming) as server:
        async with client_of(server, places=places) as client:
            tasks = [asyncio.create_task(asks(client, number)) for number in range(300)]
            for task in chance.sample(tasks, 150):
                await asyncio.sleep(chance.random() * 0.001)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {type(None), asyncio.CancelledError}
            assert (client._shared.admission.free, client._shared.admission.waiting) == (places, 0)
            await asks(client, 300)
        assert await is_left(server)
    gc.collect()


async def test_a_cancelled_requests_connection_is_closed_and_its_late_answer_is_nobodys():
    may_answer = threading.Event()

    def late(peer, received):
        assert may_answer.wait(ENOUGH)
        naming(peer, received)

    with RawServer(late, naming) as server:
        async with client_of(server, places=1) as client:
            async with create_task_group() as tasks:
                tasks.start_soon(asks, client, 0)
                assert await became(server, lambda server: server.requests)
                tasks.cancel_scope.cancel()
            may_answer.set()
            for number in range(1, 4):
                await asks(client, number)
            assert await became(server, lambda server: 0 not in server.open)
    assert [seen.connection for seen in server.requests] == [0, 1, 1, 1]


async def test_an_answer_cut_short_by_cancellation_is_nobodys():
    answer = reply(b'{"statusCode":"000000","name":"g0"}')
    rest_may_come = threading.Event()

    def halting(peer, _):
        peer.send(answer[:-5])
        assert rest_may_come.wait(ENOUGH)
        peer.send(answer[-5:])

    with RawServer(halting, naming) as server:
        async with client_of(server, places=1) as client:
            async with create_task_group() as tasks:
                tasks.start_soon(asks, client, 0)
                assert await became(server, lambda server: server.requests)
                await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            rest_may_come.set()
            await asks(client, 1)
        assert await is_left(server)
    assert [seen.connection for seen in server.requests] == [0, 1]


async def test_calls_that_share_few_places_get_each_its_own_answer():
    with RawServer(naming) as server:
        async with client_of(server, places=7) as client, create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(asks, client, number)
    assert server.accepted <= 7


# What fails.


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_refused_connection_is_not_sent(repeatable):
    with refusing_port() as port:
        async with HttpxTransport() as transport:
            assert await failure(transport, request(f"http://127.0.0.1:{port}", repeatable=repeatable)) is NotSent


async def test_a_name_that_does_not_resolve_is_not_sent(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    async with HttpxTransport() as transport:
        assert await failure(transport, request("http://name.invalid")) is NotSent


async def test_an_error_of_several_addresses_holds_no_frame_of_the_http_library():
    with refusing_port() as port:
        async with HttpxTransport() as transport:
            with pytest.raises(NotSent) as raised:
                await transport.send(request(f"http://localhost:{port}"), timeout=ENOUGH)
    causes = [raised.value.__cause__]
    for cause in causes:
        assert cause.__traceback__ is None
        causes += [each for each in (cause.__cause__, cause.__context__, *getattr(cause, "exceptions", ())) if each]
        assert len(causes) < 50


async def test_a_kept_connection_whose_server_is_gone_is_not_sent():
    async with HttpxTransport() as transport:
        with RawServer() as server:
            await transport.send(request(server.url()), timeout=ENOUGH)
        assert await failure(transport, request(server.url())) is NotSent


async def test_a_reset_before_reading_says_not_sent_only_where_nothing_was():
    with RawServer(greet=resetting) as server:
        async with HttpxTransport() as transport:
            assert await failure(transport, request(server.url())) in {NotSent, Unanswered}
    assert server.requests == []


@pytest.mark.parametrize(
    "script", [resetting, closing(), lambda peer, _: peer.interrupt()], ids=["reset", "close", "shutdown"]
)
async def test_a_connection_that_ends_while_the_request_is_being_sent_is_unanswered(script):
    with RawServer(script, head_only=True) as server:
        async with HttpxTransport() as transport:
            assert await failure(transport, request(server.url(), body=b" " * 8_000_000), timeout=2) is Unanswered
    assert len(server.requests) == 1


JUNK = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a request": b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a bare body": b'{"statusCode":"000000"}\r\n\r\n',
    "TLS": bytes.fromhex("150301000202280d0a0d0a"),
    "HTTP/2": bytes.fromhex("000012040000000000000300000064") + b"\r\n\r\n",
    "nul bytes": bytes(1000),
    "status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "status of letters": b"HTTP/1.1 abc OK\r\n\r\n",
    "an unknown version": b"HTTP/x.y 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "101 that nobody asked for": head("101 Switching Protocols", "Upgrade: x", "Connection: upgrade") + b"junk",
    "a header without colon": b"HTTP/1.1 200 OK\r\nContent-Length 2\r\n\r\n{}",
    "a header with a space": b"HTTP/1.1 200 OK\r\nContent Length: 2\r\n\r\n{}",
    "a header with a control character": b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
    "a length of letters": b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "a length of 5,000 digits": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n{}",
    "an unknown transfer encoding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    "a chunk size of letters": head("200 OK", "Transfer-Encoding: chunked") + b"zz\r\n{}\r\n0\r\n\r\n",
    "a negative chunk size": head("200 OK", "Transfer-Encoding: chunked") + b"-2\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than its size": head("200 OK", "Transfer-Encoding: chunked") + b"1\r\n{}\r\n0\r\n\r\n",
    "a chunk without end": head("200 OK", "Transfer-Encoding: chunked") + b"5\r\n{}",
    "no last chunk": head("200 OK", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n",
    "half a status line": b"HTTP/1.1 20",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": head("200 OK", "Content-Length: 9") + b"{}",
    "only an interim answer": head("100 Continue"),
    "nothing": b"",
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
async def test_junk_is_unanswered_and_its_connection_is_not_used_again(junk):
    with RawServer(closing(junk), reply(b"{}")) as server:
        async with HttpxTransport() as transport:
            assert await failure(transport, request(server.url())) is Unanswered
            assert (await transport.send(request(server.url()), timeout=ENOUGH)).status == 200
    assert [seen.connection for seen in server.requests] == [0, 1]


def resetting_after(data):
    return lambda peer, _: (peer.send(data), peer.reset())


@pytest.mark.parametrize("ending", [closing, resetting_after])
async def test_a_mutilated_answer_is_an_answer_or_unanswered(ending):
    chance = random.Random(7)
    good = chunked(b"x" * 20, b"y" * 20)
    answered = 0
    for _ in range(100):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(bad))
            bad[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        with RawServer(ending(bytes(bad))) as server:
            async with HttpxTransport() as transport:
                with suppress(Unanswered):
                    await transport.send(request(server.url()), timeout=ENOUGH)
                    answered += 1
    assert answered < 100


@pytest.mark.parametrize("extra", [0, 1], ids=["at the limit", "past the limit"])
@pytest.mark.parametrize("framing", [reply, chunked, lambda body: closing(head("200 OK") + body)])
async def test_an_answer_may_be_as_long_as_the_limit(framing, extra):
    limit = 100_000
    with RawServer(framing(b"x" * (limit + extra)), reply(b"{}")) as server:
        async with HttpxTransport(answer_limit=limit) as transport:
            if extra:
                with pytest.raises(AnswerTooLarge) as raised:
                    await transport.send(request(server.url()), timeout=ENOUGH)
                assert (raised.value.limit, raised.value.outcome) == (limit, Outcome.UNKNOWN)
            else:
                response = await transport.send(request(server.url()), timeout=ENOUGH)
                assert response.body == b"x" * limit
            assert (await transport.send(request(server.url()), timeout=ENOUGH)).body == b"{}"
        assert await is_left(server)
    gc.collect()


async def test_an_answer_without_end_is_too_large_and_its_connection_is_closed():
    def endless(peer, _):
        peer.send(head("200 OK"))
        while True:
            peer.send(b"x" * 65536)

    with RawServer(endless) as server:
        async with HttpxTransport(answer_limit=1_000_000) as transport:
            assert await failure(transport, request(server.url())) is AnswerTooLarge
            assert await is_left(server)


# Time-outs.


def silent_halfway(peer, _):
    peer.send(b"HTTP/1.1 200 OK\r\n")
    peer.wait_closed()


def never_done_with_interim(peer, _):
    while True:
        peer.send(head("100 Continue"))


@pytest.mark.parametrize("script", [silent, silent_halfway, never_done_with_interim])
async def test_no_answer_in_time_is_unanswered_and_the_connection_is_closed(script):
    with RawServer(script) as server:
        async with HttpxTransport() as transport:
            assert await failure(transport, request(server.url()), SHORT) is Unanswered
            assert await is_left(server)


async def test_no_answer_in_time_on_a_kept_connection_is_unanswered():
    with RawServer(reply(b"{}"), silent) as server:
        async with HttpxTransport() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
            assert await failure(transport, request(server.url()), SHORT) is Unanswered
            assert await is_left(server)


async def test_a_request_that_cannot_be_written_in_time_is_unanswered():
    stop = threading.Event()

    def deaf(_peer, _received):
        assert stop.wait(ENOUGH)

    with RawServer(deaf, head_only=True, receive_buffer=65536) as server:
        async with HttpxTransport() as transport:
            assert await failure(transport, request(server.url(), body=b" " * 20_000_000), SHORT) is Unanswered
        stop.set()


@pytest.mark.parametrize("timeout", [0.0, -1.0])
async def test_no_time_at_all_is_not_sent(timeout):
    with RawServer() as server:
        async with HttpxTransport() as transport:
            assert await failure(transport, request(server.url()), timeout) is NotSent
    assert server.requests == []


# A carrier of one's own.


async def test_a_carrier_of_ones_own_gets_the_requests():
    seen = []

    def answer(received: httpx.Request) -> httpx.Response:
        seen.append((received.method, str(received.url), received.headers["authorization"], received.content))
        return httpx.Response(201, headers={"X": "y"}, content=b"{}")

    async with HttpxTransport(carrier=httpx.MockTransport(answer)) as transport:
        response = await transport.send(request("https://platform.example"), timeout=ENOUGH)
    assert (response.status, response.headers["x"], response.body) == (201, "y", b"{}")
    assert seen == [("POST", f"https://platform.example{PATH}?sig=0A1B2C", "YTE6MjAyNg==", BODY)]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (httpx.ConnectError("x"), NotSent),
        (httpx.ConnectTimeout("x"), NotSent),
        (httpx.PoolTimeout("x"), NotSent),
        (httpx.ProxyError("x"), NotSent),
        (httpx.UnsupportedProtocol("x"), NotSent),
        (httpx.LocalProtocolError("x"), NotSent),
        (httpx.InvalidURL("x"), NotSent),
        (httpx.ReadError("x"), Unanswered),
        (httpx.ReadTimeout("x"), Unanswered),
        (httpx.WriteError("x"), Unanswered),
        (httpx.WriteTimeout("x"), Unanswered),
        (httpx.CloseError("x"), Unanswered),
        (httpx.RemoteProtocolError("x"), Unanswered),
        (httpx.DecodingError("x"), Unanswered),
        (ssl.SSLError("x"), Unanswered),
        (ConnectionResetError("x"), Unanswered),
        (ZeroDivisionError("x"), Unanswered),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_what_a_carrier_raises_becomes_one_of_ours(error, meaning):
    def answer(_):
        raise error

    async with HttpxTransport(carrier=httpx.MockTransport(answer)) as transport:
        with pytest.raises(meaning) as raised:
            await transport.send(request("https://platform.example"), timeout=ENOUGH)
    assert raised.value.__cause__ is error
    assert error.__traceback__ is None


async def test_a_carrier_of_ones_own_that_takes_too_long_may_have_sent():
    async def answer(_):
        await anyio.sleep_forever()

    async with HttpxTransport(carrier=httpx.MockTransport(answer)) as transport:
        assert await failure(transport, request("https://platform.example"), SHORT) is Unanswered


async def test_an_answer_without_end_of_a_carrier_of_ones_own_is_too_large():
    class Endless(httpx.AsyncByteStream):
        def __aiter__(self):
            return self

        async def __anext__(self):
            return b"x" * 65536

    async with HttpxTransport(carrier=httpx.MockTransport(lambda _: httpx.Response(200, stream=Endless()))) as transport:
        assert await failure(transport, request("https://platform.example")) is AnswerTooLarge


async def test_a_carrier_of_ones_own_is_entered_and_left_with_the_transport():
    class Carrier(httpx.MockTransport):
        steps = ()

        async def __aenter__(self):
            self.steps += ("entered",)
            return self

        async def __aexit__(self, *_):
            self.steps += ("left",)

    carrier = Carrier(lambda _: httpx.Response(200))
    async with HttpxTransport(carrier=carrier) as transport:
        await transport.send(request("https://platform.example"), timeout=ENOUGH)
        assert carrier.steps == ("entered",)
    assert carrier.steps == ("entered", "left")
