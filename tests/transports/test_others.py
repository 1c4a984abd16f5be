"""What is special to each transport besides the default one: its library's habits, its options, what it does not do."""

import asyncio
import builtins
import functools
import importlib
import json
import logging
import random
import ssl
import sys
import threading
import time
import traceback
import warnings

import aiohttp
import anyio
import httpx2
import pytest
import trustme
from anyio import create_task_group, to_thread

from helpers.exchanges import BODY, ENOUGH, PATH, SHORT, is_left
from rbim import AsyncClient, Credentials, Limits, NotSent, Retry, TransportError, Unanswered
from rbim.http import Request
from rbim.testing.conformance.server import RawServer, closing, head, refusing_port, reply, silent
from rbim.transports._shared import network as surroundings
from rbim.transports._shared.redaction import strip_frames
from rbim.transports.aiohttp.transport import AiohttpTransport
from rbim.transports.httpx2 import Httpx2Transport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

SIG = "0A1B2C3D4E5F"
AUTHORIZATION = "YTE6MjAyNg=="
HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json;charset=utf-8",
    "Authorization": AUTHORIZATION,
}

EACH = pytest.mark.parametrize("make", [AiohttpTransport, Httpx2Transport])


def request(origin, **differently):
    told = {"body": BODY, "repeatable": True, "headers": HEADERS, "query": {"sig": SIG}} | differently
    return Request(origin=origin, path=PATH, **told)


async def failure(transport, sent, timeout=ENOUGH):
    with pytest.raises(TransportError) as raised:
        await transport.send(sent, timeout=timeout)
    told = told_by(raised.value)
    assert SIG.lower() not in told
    assert AUTHORIZATION.lower() not in told
    return type(raised.value)


def told_by(error):
    """Return, in lower case, all that is known of an error and of what led to it, with the locals of every frame."""
    told, waiting = [], [error]
    while waiting:
        each = waiting.pop()
        frames = traceback.TracebackException(type(each), each, each.__traceback__, capture_locals=True)
        told += [repr(each), repr(vars(each)), *frames.format(chain=False)]
        waiting += [linked for linked in (each.__cause__, each.__context__) if linked is not None]
    return "".join(told).lower()


@pytest.fixture
def anyio_backend():
    """Most of these transports run on asyncio only."""
    return "asyncio"


# On the wire.


@EACH
async def test_the_library_adds_nothing_to_a_request(make):
    with RawServer() as server:
        async with make() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
    (seen,) = server.requests
    assert seen.line == f"POST {PATH}?sig={SIG} HTTP/1.1"
    told = [*HEADERS.items(), ("Content-Length", str(len(BODY))), ("Host", f"127.0.0.1:{server.port}")]
    assert sorted((name.lower(), value) for name, value in seen.headers) == sorted((n.lower(), v) for n, v in told)
    assert seen.body == BODY


@EACH
@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
async def test_a_request_without_headers_and_body_gets_no_type_and_no_encodings(make, method):
    with RawServer() as server:
        async with make() as transport:
            await transport.send(request(server.url(), method=method, headers={}, body=b""), timeout=ENOUGH)
    (seen,) = server.requests
    assert seen.line.startswith(f"{method} /")
    assert not seen.header("Content-Type") + seen.header("Accept-Encoding") + seen.header("Cookie")
    assert seen.header("Content-Length") in ({"0"} if method != "GET" else {"0", ""})


async def test_aiohttp_does_not_choose_between_two_who_send():
    with RawServer() as server:
        async with AiohttpTransport() as transport:
            assert await failure(transport, request(server.url().replace("//", "//user:pass@"))) is NotSent
    assert not server.requests


@EACH
async def test_a_large_body_arrives_whole_and_without_a_warning(make):
    body = random.Random(1).randbytes(3_000_000)
    with warnings.catch_warnings(), RawServer() as server:
        warnings.simplefilter("error")
        async with make() as transport:
            await transport.send(request(server.url(), body=body), timeout=ENOUGH)
    assert server.requests[0].body == body


@EACH
async def test_cookies_redirects_and_compression_are_left_alone(make):
    """The redirect would lead to a port that refuses, and the compressed body is none."""
    with refusing_port() as port:
        location = f"Location: http://127.0.0.1:{port}/"
        answer = reply(
            b"no gzip", "302 Found", location, "Set-Cookie: a=b", "Set-Cookie: bad name", "Content-Encoding: gzip"
        )
        with RawServer(answer) as server:
            async with make() as transport:
                for _ in range(2):
                    response = await transport.send(request(server.url()), timeout=ENOUGH)
    assert (response.status, response.body) == (302, b"no gzip")
    assert response.headers["set-cookie"] == "a=b, bad name"
    assert [seen.header("Cookie") for seen in server.requests] == ["", ""]


# What fails.


@EACH
async def test_what_cannot_be_reached_is_not_sent_and_its_error_shows_nothing(make):
    with refusing_port() as port:
        async with make() as transport:
            for origin in (
                f"http://127.0.0.1:{port}",
                "http://name.invalid",
                "http://[::1",
                "gopher://127.0.0.1",
                "nothing",
            ):
                assert await failure(transport, request(origin)) is NotSent


async def test_a_scope_that_cancels_a_request_with_aiohttp_knows_itself():
    with RawServer(silent) as server:
        async with AiohttpTransport() as transport:
            with anyio.move_on_after(SHORT) as scope:
                await transport.send(request(server.url()), timeout=1.0)
            assert scope.cancelled_caught
            task = asyncio.create_task(transport.send(request(server.url()), timeout=1.0))
            await asyncio.sleep(0.02)
            task.cancel("for this reason")
            with pytest.raises(asyncio.CancelledError, match="for this reason"):
                await task


async def test_aiohttp_closes_the_connection_of_a_cancelled_request_even_while_it_is_being_sent():
    with RawServer(lambda peer, _: time.sleep(0.1) or peer.wait_closed(), head_only=True) as server:
        async with AiohttpTransport() as transport:
            with anyio.move_on_after(0.05):
                await transport.send(request(server.url(), body=b" " * 16_000_000), timeout=ENOUGH)
            assert await is_left(server)


@EACH
async def test_the_library_logs_no_secret(make, caplog):
    caplog.set_level(logging.DEBUG)
    location = f"Location: http://127.0.0.1:9{PATH}?sig={SIG}"
    with RawServer(reply(b"{}", "302 Found", location, f"Set-Cookie: {SIG} x={AUTHORIZATION}"), closing()) as server:
        async with make() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
            await failure(transport, request(server.url()))
    assert SIG not in caplog.text
    assert AUTHORIZATION not in caplog.text


# Connections.


@pytest.mark.parametrize("make", [AiohttpTransport, Httpx2Transport])
@pytest.mark.parametrize(("repeatable", "connections"), [(True, [0, 0, 0]), (False, [0, 1, 2])])
async def test_a_connection_idle_for_long_serves_only_what_may_be_repeated(make, repeatable, connections):
    with RawServer() as server:
        async with make(keepalive_expiry=0.0) as transport:
            for _ in range(3):
                await transport.send(request(server.url(), repeatable=repeatable), timeout=ENOUGH)
    assert [seen.connection for seen in server.requests] == connections


async def test_with_aiohttp_a_connection_closed_while_the_loop_was_held_up_is_noticed():
    with RawServer(closing(reply(b"{}")), reply(b"{}")) as server:
        async with AiohttpTransport() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
            assert server.wait_until(lambda server: not server.open)  # holds the loop up
            await transport.send(request(server.url(), repeatable=False), timeout=ENOUGH)
    assert [seen.connection for seen in server.requests] == [0, 1]


async def test_with_aiohttp_a_broken_connection_does_not_end_a_body_that_the_connection_ends():
    def breaking(peer, _):
        peer.send(head("200 OK") + b"half")
        time.sleep(0.02)
        peer.reset()

    with RawServer(breaking) as server:
        async with AiohttpTransport() as transport:
            assert await failure(transport, request(server.url())) is Unanswered


@EACH
@pytest.mark.parametrize("places", [50])
async def test_many_at_once_get_each_its_own_answer_over_as_many_connections(make, places):
    def naming(peer, received):
        name = json.loads(received.body)["groupId"]
        peer.send(reply(json.dumps({"statusCode": "000000", "name": name}).encode()))

    async def asks(client, number):
        assert (await client.groups.detail(group_id=f"g{number}")).name == f"g{number}"

    with RawServer(naming) as server:
        client = AsyncClient(
            base_url=server.url(),
            credentials=Credentials(app_id="a1", app_token="t1"),
            limits=Limits(concurrency=places),
            retry=Retry(attempts=1),
            transport=make(),
        )
        async with client, create_task_group() as tasks:
            for number in range(300):
                tasks.start_soon(asks, client, number)
        assert await is_left(server)
    assert len(server.requests) == 300
    assert server.accepted <= places


async def test_with_aiohttp_a_connection_that_comes_after_the_time_is_given_to_nobody(monkeypatch):
    connect = aiohttp.TCPConnector._create_connection

    async def slowly(*told):
        await asyncio.sleep(0.1)
        return await connect(*told)

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", slowly)
    monkeypatch.setattr(surroundings, "STEPS_PER_SECOND", 0.2)  # aiohttp's own timer comes 5 s later
    with RawServer() as server:
        async with AiohttpTransport() as transport:
            with pytest.raises(NotSent, match="no connection within"):
                await transport.send(request(server.url()), timeout=0.05)
            assert await is_left(server)
        assert not server.requests


async def test_aiohttp_that_is_left_ends_what_is_being_sent():
    over = threading.Event()
    with RawServer(lambda *_: over.wait(ENOUGH), head_only=True, receive_buffer=65536) as server:
        async with AiohttpTransport() as transport:
            sending = asyncio.create_task(transport.send(request(server.url(), body=b" " * 16_000_000), timeout=0.5))
            assert await to_thread.run_sync(server.wait_until, lambda server: server.requests)
        try:
            await asyncio.wait([sending], timeout=3.0)
            assert isinstance(sending.exception(), Unanswered)
        finally:
            over.set()
            sending.cancel()


async def test_aiohttp_gets_no_new_limit_where_time_outs_differ_by_microseconds(monkeypatch):
    made, original = [], aiohttp.ClientTimeout
    monkeypatch.setattr(aiohttp, "ClientTimeout", lambda **told: made.append(told) or original(**told))
    with RawServer() as server:
        async with AiohttpTransport() as transport:
            for number in range(50):
                await transport.send(request(server.url()), timeout=5.0 - number * 1e-5)
            await transport.send(request(server.url()), timeout=float("inf"))
    assert [round(each["connect"], 9) for each in made if "connect" in each] == [5.0, float("inf")]


# TLS and proxies.


class Authority:
    """A certificate authority of our own with certificates for 127.0.0.1 and a client."""

    def __init__(self, folder):
        self.authority = trustme.CA()
        self.here = self.authority.issue_cert("127.0.0.1")
        self.client = self.authority.issue_cert("client@example.com")
        self.bundle = folder / "ca.pem"
        self.bundle.write_bytes(trustme.CA().cert_pem.bytes() + self.authority.cert_pem.bytes())
        self.certificate, self.key, self.both = (folder / name for name in ("client.pem", "client.key", "both.pem"))
        self.client.cert_chain_pems[0].write_to_path(str(self.certificate))
        self.client.private_key_pem.write_to_path(str(self.key))
        self.client.private_key_and_cert_chain_pem.write_to_path(str(self.both))

    def server(self, *scripts, mutual=False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.here.configure_cert(context)
        if mutual:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return RawServer(*scripts, greet=lambda peer: peer.start_tls(context))


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@EACH
async def test_certificates_are_verified_unless_told_otherwise(make, tls):
    with tls.server() as server:
        async with make() as transport:
            assert await failure(transport, request(server.url("https"))) is NotSent
        for verify in (False, str(tls.bundle)):
            async with make(verify=verify) as transport:
                assert (await transport.send(request(server.url("https")), timeout=ENOUGH)).status == 200
        assert await is_left(server)
    assert len(server.requests) == 2


@EACH
@pytest.mark.parametrize("how", ["one file", "two files"])
async def test_a_client_certificate_is_shown(make, how, tls):
    cert = str(tls.both) if how == "one file" else (str(tls.certificate), str(tls.key))
    shown = []

    def look(peer, _):
        shown.append(dict(peer.sock.getpeercert()["subjectAltName"]))
        peer.send(reply(b"{}"))

    with tls.server(look, mutual=True) as server:
        async with make(verify=str(tls.bundle), cert=cert) as transport:
            await transport.send(request(server.url("https")), timeout=ENOUGH)
    assert shown == [{"email": "client@example.com"}]


@EACH
@pytest.mark.parametrize("how", ["told", "environment"])
async def test_a_proxy_is_asked_with_the_whole_address_and_its_password(make, how, monkeypatch):
    with RawServer() as proxy:
        address = f"http://user:pass@127.0.0.1:{proxy.port}"
        if how == "environment":
            monkeypatch.setenv("HTTP_PROXY", address)
            monkeypatch.setenv("http_proxy", address)
        async with make(**({"proxy": address} if how == "told" else {})) as transport:
            await transport.send(request("http://platform.example:8883"), timeout=ENOUGH)
    (seen,) = proxy.requests
    assert seen.line == f"POST http://platform.example:8883{PATH}?sig={SIG} HTTP/1.1"
    assert seen.header("Proxy-Authorization") == "Basic dXNlcjpwYXNz"  # printf %s user:pass | base64


@EACH
async def test_the_environment_is_read_only_where_it_is_trusted(make, monkeypatch):
    with RawServer() as server, RawServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url())
        monkeypatch.setenv("http_proxy", proxy.url())
        async with make(trust_env=False) as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
    assert (len(server.requests), proxy.accepted) == (1, 0)


BAD = [
    {"verify": "/nowhere/ca.pem"},
    {"cert": "/nowhere/client.pem"},
    {"proxy": "gopher://127.0.0.1:9"},
    {"proxy": "http://127.0.0.1:port"},
    {"proxy": "http://[::1"},
]


@pytest.mark.parametrize("options", BAD, ids=str)
async def test_an_option_that_aiohttp_cannot_use_is_not_sent(options):
    async with AiohttpTransport(**options) as transport:
        assert await failure(transport, request("https://127.0.0.1:9")) is NotSent


# What a cancellation looks like from outside.


async def while_handling(error, send):
    try:
        raise error
    except type(error):
        return await send()


@EACH
async def test_what_the_caller_is_about_to_handle_is_left_alone(make):
    """Its traceback and its words; and a cancellation is the very one that was asked for."""
    mine = KeyError(SIG)
    with RawServer(silent) as server, refusing_port() as port:
        async with make() as transport:
            unreachable = functools.partial(transport.send, request(f"http://127.0.0.1:{port}"), timeout=ENOUGH)
            with pytest.raises(NotSent):
                await while_handling(mine, unreachable)
            assert (mine.args, len(traceback.extract_tb(mine.__traceback__))) == ((SIG,), 1)
            task = asyncio.current_task()
            asyncio.get_running_loop().call_later(0.05, task.cancel, "for this reason")
            waiting = functools.partial(transport.send, request(server.url()), timeout=1.0)
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await while_handling(mine, waiting)
            assert (task.uncancel(), cancelled.value.args) == (0, ("for this reason",))
            assert cancelled.value.__context__ in {None, mine}
            assert mine.args == (SIG,)
            assert mine.__traceback__ is not None


class Interruption(BaseException):
    """What a scope cancels by."""


def interrupted(*words):
    raise Interruption(*words)


def library(secret):
    try:
        int(secret)
    except ValueError:
        try:
            interrupted("first")
        except Interruption:
            interrupted("second")


async def transported():
    try:
        library(SIG)
    except BaseException as interruption:
        strip_frames(interruption)
        raise


async def test_frames_go_from_a_cancellation_and_what_led_to_it_but_not_from_what_is_about_to_be_handled():
    mine = KeyError()
    with pytest.raises(Interruption) as raised:
        await while_handling(mine, transported)
    second, first = raised.value, raised.value.__context__
    assert (second.args, first.args, first.__traceback__) == (("second",), ("first",), None)
    assert first.__context__ in {None, mine}
    assert mine.__traceback__ is not None
    assert not {"library", "interrupted"} & {frame.name for frame in traceback.extract_tb(second.__traceback__)}


# Event loops and packages.


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_another_transport_is_named():
    with pytest.raises(RuntimeError, match="asyncio only: on trio, use HttpxTransport"):
        async with AiohttpTransport():
            pass


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_httpx2_runs_on_trio():
    with RawServer() as server:
        async with Httpx2Transport() as transport:
            for _ in range(2):
                assert (await transport.send(request(server.url()), timeout=ENOUGH)).body == b"{}"
    assert server.accepted == 1


async def test_httpx2_takes_a_carrier_of_ones_own():
    async with Httpx2Transport(carrier=httpx2.MockTransport(lambda _: httpx2.Response(201, content=b"{}"))) as transport:
        assert (await transport.send(request("http://platform.example"), timeout=ENOUGH)).status == 201


@pytest.mark.parametrize("extra", ["aiohttp", "httpx2"])
def test_a_missing_package_is_an_error_that_names_the_pip_command(extra, monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == extra:
            reason = f"No module named {extra!r}"
            raise ModuleNotFoundError(reason, name=extra)
        return original(name, *rest)

    for module in [name for name in sys.modules if f"{name}.".startswith(f"rbim.transports.{extra}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "rbim\[{extra}\]"'):
        getattr(importlib.import_module(f"rbim.transports.{extra}"), f"{extra.capitalize()}Transport")
