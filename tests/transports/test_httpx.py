"""The default transport over plain sockets: what the conformance suite does not show of it."""

import json
import ssl
import threading
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest
from anyio import create_task_group

from helpers.exchanges import BODY, ENOUGH, PATH, SHORT, became, failure, is_left, request
from rbim import AsyncClient, Credentials, Limits, NotSent, Retry, Unanswered
from rbim.testing.conformance.server import RawServer, reply
from rbim.transports.httpx import HttpxTransport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")


async def test_what_comes_behind_an_answer_is_nobodys():
    """Two answers in one piece: the second is not the answer to the next request, which goes over another connection."""
    with RawServer(reply(b"1") + reply(b"nobody's"), reply(b"2")) as server:
        async with HttpxTransport() as transport:
            bodies = [(await transport.send(request(server.url()), timeout=ENOUGH)).body for _ in range(3)]
    assert bodies == [b"1", b"2", b"2"]
    assert [seen.connection for seen in server.requests] == [0, 1, 1]


# Many at once, and cancellation.


def naming(peer, received):
    """Answer with the group's id as its name, so that an answer shows whose it is."""
    name = json.loads(received.body)["groupId"]
    peer.send(reply(json.dumps({"statusCode": "000000", "name": name}).encode()))


@asynccontextmanager
async def client_of(server, *, places, make=HttpxTransport):
    client = AsyncClient(
        base_url=server.url(),
        credentials=Credentials(app_id="a1", app_token="t1"),
        limits=Limits(concurrency=places),
        retry=Retry(attempts=1),
        transport=make(),
        timeout=30.0,
        deadline=60.0,
    )
    async with client:
        yield client


async def asks(client, number):
    name = f"g{number}"
    detail = await client.groups.detail(group_id=name)
    assert detail.name == name


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


NO_CONNECTION = (
    httpx.ConnectError("x"),
    httpx.ConnectTimeout("x"),
    httpx.PoolTimeout("x"),
    httpx.ProxyError("x"),
    httpx.UnsupportedProtocol("x"),
    httpx.LocalProtocolError("x"),
    httpx.InvalidURL("x"),
)
LOST = (
    httpx.ReadError("x"),
    httpx.ReadTimeout("x"),
    httpx.WriteError("x"),
    httpx.WriteTimeout("x"),
    httpx.CloseError("x"),
    httpx.RemoteProtocolError("x"),
    httpx.DecodingError("x"),
    ssl.SSLError("x"),
    ConnectionResetError("x"),
    ZeroDivisionError("x"),
)


async def test_what_a_carrier_raises_becomes_one_of_ours():
    for error in (*NO_CONNECTION, *LOST):

        def answer(_, error=error):
            raise error

        async with HttpxTransport(carrier=httpx.MockTransport(answer)) as transport:
            with pytest.raises(NotSent if error in NO_CONNECTION else Unanswered) as raised:
                await transport.send(request("https://platform.example"), timeout=ENOUGH)
        assert raised.value.__cause__ is error
        assert error.__traceback__ is None


async def test_a_carrier_of_ones_own_that_takes_too_long_may_have_sent():
    async def answer(_):
        await anyio.sleep_forever()

    async with HttpxTransport(carrier=httpx.MockTransport(answer)) as transport:
        assert await failure(transport, request("https://platform.example"), SHORT) is Unanswered
