"""TLS, proxies and UNIX sockets of HttpxTransport."""

import ssl
import sys
from functools import partial

import anyio
import pytest
import trustme
from anyio import create_task_group

from helpers.exchanges import ENOUGH, PATH, SHORT, became, failure, is_left, request
from rbim import InvalidRequest, NotSent, Unanswered
from rbim.testing.conformance.server import RawServer, closing, head, refusing_port, reply, resetting, silent
from rbim.transports.httpx import HttpxTransport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

# TLS.


class Authority:
    """A certificate authority of our own with certificates for 127.0.0.1, another host, and a client."""

    def __init__(self, folder):
        self.authority = trustme.CA()
        self.here = self.authority.issue_cert("127.0.0.1")
        self.elsewhere = self.authority.issue_cert("elsewhere.example")
        self.client = self.authority.issue_cert("client@example.com")
        self.bundle = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.bundle))
        self.certificate, self.key, self.both = (folder / name for name in ("client.pem", "client.key", "both.pem"))
        self.client.cert_chain_pems[0].write_to_path(str(self.certificate))
        self.client.private_key_pem.write_to_path(str(self.key))
        self.client.private_key_and_cert_chain_pem.write_to_path(str(self.both))

    def context(self, certificate=None, *, mutual=False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (certificate or self.here).configure_cert(context)
        if mutual:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def trusting(self):
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


def secure_server(context, *scripts):
    return RawServer(*scripts, greet=lambda peer: peer.start_tls(context))


async def test_certificates_are_verified_unless_told_otherwise(tls):
    with secure_server(tls.context()) as server:
        async with HttpxTransport() as transport:
            assert await failure(transport, request(server.url("https"))) is NotSent
        async with HttpxTransport(verify=False) as transport:
            assert (await transport.send(request(server.url("https")), timeout=ENOUGH)).status == 200
    assert len(server.requests) == 1


async def test_a_certificate_of_another_host_is_refused(tls):
    with secure_server(tls.context(tls.elsewhere)) as server:
        async with HttpxTransport(verify=tls.trusting()) as transport:
            assert await failure(transport, request(server.url("https"))) is NotSent
    assert server.requests == []


@pytest.mark.parametrize("how", ["a context", "a path"])
async def test_a_certificate_of_a_trusted_authority_is_accepted(how, tls):
    with secure_server(tls.context()) as server:
        async with HttpxTransport(verify=tls.trusting() if how == "a context" else str(tls.bundle)) as transport:
            for _ in range(3):
                assert (await transport.send(request(server.url("https")), timeout=ENOUGH)).body == b"{}"
        assert await is_left(server)
    assert (server.accepted, server.peers[0].handshakes) == (1, 1)


@pytest.mark.parametrize("how", ["one file", "two files"])
async def test_a_client_certificate_is_shown(how, tls):
    cert = str(tls.both) if how == "one file" else (str(tls.certificate), str(tls.key))
    shown = []

    def look(peer, _):
        shown.append(dict(peer.sock.getpeercert()["subjectAltName"]))
        peer.send(reply(b"{}"))

    with secure_server(tls.context(mutual=True), look) as server:
        async with HttpxTransport(verify=tls.trusting(), cert=cert) as transport:
            await transport.send(request(server.url("https")), timeout=ENOUGH)
    assert shown == [{"email": "client@example.com"}]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_missing_client_certificate_fails(version, tls):
    context = tls.context(mutual=True)
    context.maximum_version = version
    with secure_server(context) as server:
        async with HttpxTransport(verify=tls.trusting()) as transport:
            # with TLS 1.3 the refusal comes after the request has left
            expected = NotSent if version is ssl.TLSVersion.TLSv1_2 else Unanswered
            assert await failure(transport, request(server.url("https"))) is expected
    assert server.requests == []


async def test_a_server_without_tls_is_not_sent(tls):
    with RawServer(greet=lambda peer: peer.send(reply(b"{}"))) as server:
        async with HttpxTransport(verify=tls.trusting()) as transport:
            assert await failure(transport, request(server.url("https"))) is NotSent


async def test_tls_that_breaks_after_the_request_was_read_is_unanswered(tls):
    with secure_server(tls.context(), lambda peer, _: (peer.send_below_tls(b"junk\r\n" * 9), silent(peer))) as server:
        async with HttpxTransport(verify=tls.trusting()) as transport:
            assert await failure(transport, request(server.url("https"))) is Unanswered
        assert await is_left(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize("script", [resetting, closing(), closing(reply(b"{}" * 9)[:-1])], ids=["reset", "close", "half"])
async def test_a_tls_connection_that_ends_before_the_answer_is_unanswered(script, tls):
    with secure_server(tls.context(), script) as server:
        async with HttpxTransport(verify=tls.trusting()) as transport:
            assert await failure(transport, request(server.url("https"))) is Unanswered


@pytest.mark.parametrize(
    "options",
    [
        {"verify": "/nowhere/ca.pem"},
        {"cert": "/nowhere/client.pem"},
        {"proxy": "gopher://127.0.0.1:9"},
        {"proxy": "http://127.0.0.1:port"},
        {"proxy": "http://[::1"},
        {"proxy": "no address"},
    ],
    ids=lambda options: next(f"{name}={value}" for name, value in options.items()),
)
async def test_an_option_that_cannot_be_used_is_not_sent(options):
    async with HttpxTransport(**options) as transport:
        assert await failure(transport, request("https://127.0.0.1:9")) is NotSent


@pytest.mark.parametrize("kept", [False, True], ids=["first", "again"])
async def test_a_handshake_that_never_ends_is_not_sent_and_its_connection_is_closed(kept, tls):
    def greet(peer):
        if kept and peer.number == 0:
            peer.start_tls(tls.context())
        else:
            silent(peer)

    with RawServer(closing(reply(b"{}", "200 OK", "Connection: close")), greet=greet) as server:
        async with HttpxTransport(verify=tls.trusting()) as transport:
            if kept:
                await transport.send(request(server.url("https")), timeout=ENOUGH)
            assert await failure(transport, request(server.url("https")), SHORT) is NotSent
            assert await is_left(server)


async def test_a_handshake_that_is_cancelled_leaves_no_connection(tls):
    with RawServer(greet=silent) as server:
        async with HttpxTransport(verify=tls.trusting()) as transport:
            async with create_task_group() as tasks:
                tasks.start_soon(partial(transport.send, request(server.url("https")), timeout=ENOUGH))
                assert await became(server, lambda server: server.open)
                await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            assert await is_left(server)


# Proxies.


async def test_a_proxy_is_asked_with_the_whole_address():
    with RawServer() as proxy:
        async with HttpxTransport(proxy=proxy.url()) as transport:
            for _ in range(2):
                response = await transport.send(request("http://platform.example:8883"), timeout=ENOUGH)
                assert response.status == 200
    assert [seen.line for seen in proxy.requests] == [f"POST http://platform.example:8883{PATH}?sig=0A1B2C HTTP/1.1"] * 2
    assert proxy.requests[0].header("Host") == "platform.example:8883"
    assert proxy.accepted == 1


@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_a_proxys_user_and_password_are_sent_to_it(scheme):
    with RawServer() as proxy:
        async with HttpxTransport(proxy=f"{scheme}user:pass@127.0.0.1:{proxy.port}") as transport:
            await transport.send(request("http://platform.example"), timeout=ENOUGH)
    assert proxy.requests[0].header("Proxy-Authorization") == "Basic dXNlcjpwYXNz"  # printf %s user:pass | base64


def tunnelling(context):
    """A proxy that takes itself for what lies behind it."""

    def script(peer, received):
        if received.line.startswith("CONNECT "):
            peer.send(head("200 Connection established"))
            peer.start_tls(context)
        else:
            peer.send(reply(b"{}"))

    return script


async def test_https_goes_through_a_tunnel(tls):
    with RawServer(tunnelling(tls.context(tls.elsewhere))) as proxy:
        async with HttpxTransport(proxy=proxy.url(), verify=tls.trusting()) as transport:
            for _ in range(2):
                response = await transport.send(request("https://elsewhere.example"), timeout=ENOUGH)
                assert response.body == b"{}"
        assert await is_left(proxy)
    assert [seen.line for seen in proxy.requests] == [
        "CONNECT elsewhere.example:443 HTTP/1.1",
        *[f"POST {PATH}?sig=0A1B2C HTTP/1.1"] * 2,
    ]
    assert not proxy.requests[0].header("Authorization")


async def test_a_proxy_may_be_spoken_to_over_tls(tls):
    with secure_server(tls.context()) as proxy:
        async with HttpxTransport(proxy=proxy.url("https"), verify=tls.trusting()) as transport:
            await transport.send(request("http://platform.example"), timeout=ENOUGH)
    assert proxy.requests[0].line == f"POST http://platform.example{PATH}?sig=0A1B2C HTTP/1.1"


@pytest.mark.parametrize(
    "script",
    [
        reply(b"", "407 Who are you"),
        reply(b"", "503 No"),
        closing(),
        resetting,
        silent,
        closing(b"junk\r\n\r\n"),
        lambda peer, _: (peer.send(head("200 OK")), silent(peer)),
        closing(head("200 OK")),
    ],
    ids=["407", "503", "close", "reset", "silence", "junk", "no handshake", "close instead of a handshake"],
)
async def test_a_tunnel_that_does_not_come_about_is_not_sent(script, tls):
    with RawServer(script) as proxy:
        async with HttpxTransport(proxy=proxy.url(), verify=tls.trusting()) as transport:
            assert await failure(transport, request("https://elsewhere.example"), SHORT) is NotSent
            assert await is_left(proxy)
    assert [seen.line for seen in proxy.requests] == ["CONNECT elsewhere.example:443 HTTP/1.1"]


async def test_a_proxy_that_refuses_connections_is_not_sent():
    with refusing_port() as port:
        async with HttpxTransport(proxy=f"http://127.0.0.1:{port}") as transport:
            assert await failure(transport, request("http://platform.example")) is NotSent


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_the_environment_names_a_proxy(variable, scheme, monkeypatch):
    with RawServer() as proxy:
        monkeypatch.setenv(variable, f"{scheme}127.0.0.1:{proxy.port}")
        async with HttpxTransport() as transport:
            await transport.send(request("http://platform.example"), timeout=ENOUGH)
    assert proxy.requests[0].line.startswith("POST http://platform.example/")


async def test_a_proxy_for_another_scheme_is_not_used(monkeypatch):
    with RawServer() as server, RawServer() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url())
        async with HttpxTransport() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
    assert (len(server.requests), proxy.accepted) == (1, 0)


@pytest.mark.parametrize("bypass", ["127.0.0.1", "other.example, 127.0.0.1", "127.0.0.1:{port}", "*", None])
async def test_the_environments_proxy_can_be_passed_by(bypass, monkeypatch):
    with RawServer() as server, RawServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url())
        if bypass is not None:
            monkeypatch.setenv("NO_PROXY", bypass.format(port=server.port))
        async with HttpxTransport(trust_env=bypass is not None) as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
    assert server.requests[0].line == f"POST {PATH}?sig=0A1B2C HTTP/1.1"
    assert proxy.accepted == 0


async def test_a_proxy_of_ones_own_goes_before_the_environments(monkeypatch):
    with RawServer() as mine, RawServer() as theirs:
        monkeypatch.setenv("HTTP_PROXY", theirs.url())
        monkeypatch.setenv("NO_PROXY", "*")
        async with HttpxTransport(proxy=mine.url()) as transport:
            await transport.send(request("http://platform.example"), timeout=ENOUGH)
    assert (mine.accepted, theirs.accepted) == (1, 0)


# UNIX sockets.

needs_unix_sockets = pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no UNIX sockets there")


def test_a_proxy_and_a_unix_socket_together_are_refused():
    with pytest.raises(InvalidRequest, match="proxy") as raised:
        HttpxTransport(proxy="http://x:1", uds="/x")
    assert raised.value.field == "proxy"


@needs_unix_sockets
async def test_every_origin_is_behind_a_unix_socket_and_no_proxy_of_the_environment_before_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with RawServer(path=str(tmp_path / "s")) as server:
        async with HttpxTransport(uds=str(tmp_path / "s")) as transport:
            for origin in ("http://one.example", "http://two.example:8883"):
                assert (await transport.send(request(origin), timeout=ENOUGH)).body == b"{}"
    assert [seen.header("Host") for seen in server.requests] == ["one.example", "two.example:8883"]


@needs_unix_sockets
async def test_tls_behind_a_unix_socket_is_verified_and_a_handshake_that_is_given_up_is_closed(tls, tmp_path):
    def greet(peer):
        if peer.number < 2:
            peer.start_tls(tls.context())
        else:
            silent(peer)

    with RawServer(path=str(tmp_path / "s"), greet=greet) as server:
        async with HttpxTransport(verify=str(tls.bundle), uds=str(tmp_path / "s")) as transport:
            assert (await transport.send(request("https://127.0.0.1"), timeout=ENOUGH)).status == 200
            assert await failure(transport, request("https://elsewhere.example")) is NotSent
            assert await failure(transport, request("https://third.example"), 0.1) is NotSent
            assert await became(server, lambda server: 2 not in server.open)
