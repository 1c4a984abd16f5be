"""Options of transports: certificates, proxies, UNIX sockets; what goes over the wire, and what is left alone."""

import ssl
import sys

import pytest
import trustme

from helpers.exchanges import ENOUGH, PATH, failure, is_left, request
from rbim import InvalidRequest, NotSent, Unanswered
from rbim.testing.conformance.server import RawServer, refusing_port, reply
from rbim.transports.aiohttp import AiohttpTransport
from rbim.transports.asyncio.transport import AsyncioTransport
from rbim.transports.auto import AutoTransport
from rbim.transports.httpx import HttpxTransport
from rbim.transports.httpx2 import Httpx2Transport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")
EACH = pytest.mark.parametrize("make", [HttpxTransport, Httpx2Transport, AiohttpTransport, AsyncioTransport])


@pytest.fixture
def anyio_backend():
    """Some transports run on asyncio only."""
    return "asyncio"


# On the wire.


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


NOWHERE = [
    "http://name.invalid",
    "ftp://x",
    "x:1",
    "",
    "nothing",
    "http://",
    "http://[::1",
    "http://x:port",
    "http://x:99999",
    "http://x y",
    "http://研 x",
]


@EACH
async def test_an_origin_that_is_none_is_not_sent(make):
    async with make() as transport:
        for origin in NOWHERE:
            assert await failure(transport, request(origin)) is NotSent, origin


# TLS.


class Authority:
    """A certificate authority of our own with certificates for 127.0.0.1 and a client."""

    def __init__(self, folder):
        self.authority = trustme.CA()
        self.here = self.authority.issue_cert("127.0.0.1")
        client = self.authority.issue_cert("client@example.com")
        self.bundle = folder / "ca.pem"
        self.bundle.write_bytes(trustme.CA().cert_pem.bytes() + self.authority.cert_pem.bytes())
        self.certificate, self.key, self.both = (folder / name for name in ("client.pem", "client.key", "both.pem"))
        client.cert_chain_pems[0].write_to_path(str(self.certificate))
        client.private_key_pem.write_to_path(str(self.key))
        client.private_key_and_cert_chain_pem.write_to_path(str(self.both))

    def context(self, *, mutual=False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.here.configure_cert(context)
        if mutual:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def trusting(self):
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    def server(self, *scripts, mutual=False, version=None):
        context = self.context(mutual=mutual)
        context.maximum_version = version or context.maximum_version
        return RawServer(*scripts, greet=lambda peer: peer.start_tls(context))


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@EACH
async def test_certificates_are_verified_unless_told_otherwise(make, tls):
    with tls.server() as server:
        async with make() as transport:
            assert await failure(transport, request(server.url("https"))) is NotSent
        for verify in (False, str(tls.bundle), tls.trusting()):
            async with make(verify=verify) as transport:
                assert (await transport.send(request(server.url("https")), timeout=ENOUGH)).status == 200
        assert await is_left(server)
    assert len(server.requests) == 3


@EACH
async def test_a_client_certificate_is_shown(make, tls):
    shown = []

    def look(peer, _):
        shown.append(dict(peer.sock.getpeercert()["subjectAltName"]))
        peer.send(reply(b"{}"))

    for cert in (str(tls.both), (str(tls.certificate), str(tls.key))):
        with tls.server(look, mutual=True) as server:
            async with make(verify=str(tls.bundle), cert=cert) as transport:
                await transport.send(request(server.url("https")), timeout=ENOUGH)
    assert shown == [{"email": "client@example.com"}] * 2


@EACH
async def test_a_missing_client_certificate_fails(make, tls):
    """With TLS 1.3 the refusal comes after the request has left."""
    for version, expected in ((ssl.TLSVersion.TLSv1_2, NotSent), (ssl.TLSVersion.TLSv1_3, Unanswered)):
        with tls.server(mutual=True, version=version) as server:
            async with make(verify=tls.trusting()) as transport:
                assert await failure(transport, request(server.url("https"))) is expected
        assert server.requests == []


UNUSABLE = [
    {"verify": "/nowhere/ca.pem"},
    {"cert": "/nowhere/client.pem"},
]


@EACH
async def test_an_option_that_cannot_be_used_is_not_sent(make):
    for options in UNUSABLE:
        async with make(**options) as transport:
            assert await failure(transport, request("https://127.0.0.1:9")) is NotSent, options


# Proxies.


def the_environment(monkeypatch, **values):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        for variable in (name, name.lower()):
            monkeypatch.delenv(variable, raising=False)
            if name in values:
                monkeypatch.setenv(variable, values[name])


@EACH
async def test_the_environments_proxy_can_be_passed_by(make, monkeypatch):
    with RawServer() as server, RawServer() as theirs, RawServer() as mine:
        passes = [{"NO_PROXY": each} for each in ("127.0.0.1", "other.example, 127.0.0.1", f"127.0.0.1:{server.port}", "*")]
        for values in passes:
            the_environment(monkeypatch, HTTP_PROXY=theirs.url(), **values)
            async with make() as transport:
                await transport.send(request(server.url()), timeout=ENOUGH)
        the_environment(monkeypatch, HTTPS_PROXY=theirs.url())  # it is for another scheme
        async with make() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
        the_environment(monkeypatch, HTTP_PROXY=theirs.url())
        async with make(trust_env=False) as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
        the_environment(monkeypatch, HTTP_PROXY=theirs.url(), NO_PROXY="*")
        async with make(proxy=mine.url()) as transport:  # one's own goes before
            await transport.send(request("http://platform.example"), timeout=ENOUGH)
    assert (len(server.requests), len(mine.requests), theirs.accepted) == (len(passes) + 2, 1, 0)


@pytest.mark.parametrize("make", [HttpxTransport, Httpx2Transport])
async def test_a_proxy_may_be_spoken_to_over_tls(make, tls):
    with tls.server() as proxy:
        async with make(proxy=proxy.url("https"), verify=tls.trusting()) as transport:
            await transport.send(request("http://platform.example"), timeout=ENOUGH)
    assert proxy.requests[0].line == f"POST http://platform.example{PATH}?sig=0A1B2C HTTP/1.1"


# UNIX sockets.

ON_UNIX = pytest.mark.parametrize("make", [HttpxTransport, Httpx2Transport, AsyncioTransport])
needs_unix_sockets = pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no UNIX sockets there")


@pytest.mark.parametrize("make", [AutoTransport, HttpxTransport, Httpx2Transport, AsyncioTransport])
def test_a_proxy_and_a_unix_socket_together_are_refused(make):
    with pytest.raises(InvalidRequest, match="proxy") as raised:
        make(proxy="http://x:1", uds="/x")
    assert raised.value.field == "proxy"


@ON_UNIX
@needs_unix_sockets
async def test_every_origin_is_behind_a_unix_socket_and_no_proxy_of_the_environment_before_it(make, monkeypatch, tmp_path):
    the_environment(monkeypatch, HTTP_PROXY="http://127.0.0.1:9")
    with RawServer(path=str(tmp_path / "s")) as server:
        async with make(uds=str(tmp_path / "s")) as transport:
            for origin in ("http://one.example", "http://two.example:8883"):
                assert (await transport.send(request(origin), timeout=ENOUGH)).body == b"{}"
    assert [seen.header("Host") for seen in server.requests] == ["one.example", "two.example:8883"]
