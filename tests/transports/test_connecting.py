"""Messages of connections that fail: host and port, the cause, the likely next step, and no secret; in all transports."""

import math
import socket
import ssl
from contextlib import contextmanager

import pytest

from helpers.tables import each_row
from helpers.transports import each_transport, subject_of
from rbim import NotSent, Unanswered
from rbim.emulator import Emulator
from rbim.errors import TransportError
from rbim.http import Request
from rbim.testing.conformance.server import RawServer, authority, refusing_port, reply
from rbim.transports._shared.connecting import no_connection, too_late

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

SIG, PASSWORD, TOKEN = "0A1B2C3D4E5F", "pass-of-the-proxy", "YTE6MjAyNg=="
EMULATOR = "is the emulator running? (rbim emulator)"
HTTP_ALERT = b"\x15\x03\x01\x00\x02\x02\x16"  # a TLS alert, "record overflow"
EACH = each_transport()


@pytest.fixture
def subject(name):
    return subject_of(name)


def request(origin):
    headers = {"Authorization": TOKEN}
    return Request(origin=origin, path="/x", query={"sig": SIG}, headers=headers, body=b"{}")


async def failure(subject, origin, timeout=5.0, **options):
    """Return the class and the message of the error."""
    async with subject.make(**options) as transport:
        with pytest.raises(TransportError) as raised:
            await transport.send(request(origin), timeout=timeout)
    error = raised.value
    text = f"{error!r}{error}{error.__cause__!r}".lower()
    assert not any(secret.lower() in text for secret in (SIG, PASSWORD, TOKEN, "/x?"))
    return type(error), str(error)


@contextmanager
def port_of(server):
    with server:
        yield server.port


def speaking(data, *, first=False):
    """A server that reads what comes first, unless it speaks ``first``, sends these bytes, and ends."""

    def greet(peer):
        if not first:
            peer.sock.recv(65536)
        peer.send(data)
        peer.sock.shutdown(socket.SHUT_WR)
        peer.wait_closed()

    return port_of(RawServer(greet=greet))


def certified(name="127.0.0.1", *, expired=False):
    context = authority().of_a_server(name, expired=expired)
    return port_of(RawServer(reply(b"{}"), greet=lambda peer: peer.start_tls(context)))


CLOCK = "check this machine's clock; if it is right, the server needs a new certificate"
VERIFY = "if its authority is your own, give its certificates (the option verify)"
PROXY = "check the proxy (the option proxy, or HTTPS_PROXY and the like)"
NO_TLS = "(the server does not speak TLS): use http:// if the port expects it"
IN_TLS = "(closed in the TLS handshake): check whether the port expects https://"
NAME = "check the host name for a typo, and this machine's DNS"
SITUATIONS = {  # the server, the scheme, what the message says behind host and port
    "refused": (refusing_port, "http", f"(refused): {EMULATOR}"),
    "refused, https": (refusing_port, "https", f"(refused): {EMULATOR}"),
    "no TLS": (lambda: speaking(b"HTTP/1.1 400 Bad\r\n\r\n"), "https", NO_TLS),
    "closed in TLS": (lambda: speaking(b""), "https", IN_TLS),
    "another host": (
        lambda: certified("other.example"),
        "https",
        "(certificate of another host): check the host in the base URL",
    ),
    "expired": (lambda: certified(expired=True), "https", f"(certificate expired): {CLOCK}"),
    "unknown authority": (certified, "https", f"(certificate not trusted): {VERIFY}"),
}


@EACH
async def test_it_names_host_port_cause_and_next_step(subject):
    wrong = {}
    for situation, (serving, scheme, message) in SITUATIONS.items():
        trusts = scheme == "https" and situation != "unknown authority"
        with serving() as port:
            options = authority().trusted() if trusts else {}
            got = await failure(subject, f"{scheme}://127.0.0.1:{port}", **options)
            if got != (NotSent, f"cannot connect to 127.0.0.1:{port} {message}"):
                wrong[situation] = got
    for host in ("name.invalid", "x" * 70 + ".invalid"):
        got = await failure(subject, f"http://{host}")
        if got != (NotSent, f"cannot connect to {host}:80 (host not found): {NAME}"):
            wrong[host] = got
    assert wrong == {}


@each_row("code", [66, 67, 68])
def test_a_certificate_that_is_too_weak_is_not_one_of_an_unknown_authority(code):
    error = ssl.SSLCertVerificationError("certificate verify failed: EE certificate key too weak")
    error.verify_code = code
    message = "cannot connect to a.example:443 (the server's certificate is too weak): the server needs a new one"
    assert no_connection(request("https://a.example"), error).startswith(message)


@EACH
async def test_http_to_a_port_that_expects_tls(subject):
    """The request has left, unencrypted, so the outcome is unknown."""
    for greet in (b"", HTTP_ALERT):
        with speaking(greet) as port:
            kind, message = await failure(subject, f"http://127.0.0.1:{port}")
        assert kind is Unanswered
        assert message.startswith(f"no valid response from 127.0.0.1:{port} (")
        assert message.endswith("): if the port expects TLS, use https:// in the base URL")
    with speaking(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n") as port:
        kind, message = await failure(subject, f"http://127.0.0.1:{port}")
    assert kind is Unanswered
    assert "https" not in message


@EACH
async def test_a_proxy_that_refuses_is_named_without_its_user(subject, monkeypatch):
    with refusing_port() as port:
        proxy = f"http://user:{PASSWORD}@127.0.0.1:{port}"
        for origin in ("http://platform.example:8883", "https://platform.example"):
            assert await failure(subject, origin, proxy=proxy) == (
                NotSent,
                f"cannot connect to the proxy 127.0.0.1:{port} (refused): {PROXY}",
            )
        kind, message = await failure(subject, origin, proxy=f"http://user:{PASSWORD}@name.invalid:3128")
        assert kind is NotSent
        assert message.startswith("cannot connect to the proxy name.invalid:3128 (host not found): check the proxy")
        monkeypatch.setenv("HTTP_PROXY", proxy)
        _, message = await failure(subject, "http://platform.example")
    assert message.startswith(f"cannot connect to the proxy 127.0.0.1:{port} (refused)")


# The same messages, from errors that are hard to cause.

FAR = request("https://im.example.cn")
CHECK = "check this machine's network connection and the address"
ERRORS = [
    (OSError(101, "Network is unreachable"), f"(network unreachable): {CHECK}"),
    (OSError(113, "No route to host"), f"(network unreachable): {CHECK}"),
    (ConnectionRefusedError(111, "failed"), "(refused): check the port, and whether the service is running"),
    (socket.gaierror(-3, "Temporary failure in name resolution"), f"(host not found): {NAME}"),
    (ssl.SSLEOFError(8, "EOF occurred"), IN_TLS),
    (ConnectionResetError(104, "reset"), IN_TLS),
    (RuntimeError(f"odd {SIG.lower()}"), "(RuntimeError: odd ***)"),
]


def test_the_next_step_for_another_machine():
    told = {repr(error): no_connection(FAR, error) for error, _ in ERRORS}
    assert told == {repr(error): f"cannot connect to im.example.cn:443 {words}" for error, words in ERRORS}
    assert too_late(FAR, 2.5) == (
        "cannot connect to im.example.cn:443 (no connection within 2.5 s): check host and port, and whether a firewall "
        "drops the connection"
    )


def test_several_addresses_that_all_refuse():
    error = OSError("All connection attempts failed")
    refusals = [ConnectionRefusedError(111, "refused"), ConnectionRefusedError(111, "refused")]
    error.__cause__ = ExceptionGroup("several", refusals)
    assert "(refused)" in no_connection(FAR, error)


def test_this_machine_has_many_names():
    for host in ("localhost", "emulator.localhost", "127.9.9.9", "[::1]"):
        assert no_connection(request(f"http://{host}:1"), ConnectionRefusedError(111, "")).endswith(EMULATOR), host
        assert too_late(request(f"http://{host}:1"), 2.0).endswith(EMULATOR), host


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_time_left_is_not_sent_to_the_emulator():
    emulator = Emulator()
    for timeout in (0, -1.5):
        with pytest.raises(NotSent, match="no time is left"):
            await emulator.send(request("http://emulator"), timeout=timeout)
    assert not list(emulator.requests)


# Time-outs.


@EACH
async def test_time_outs_without_end(subject):
    context = authority().of_a_server()
    for scheme, timeout in [(scheme, timeout) for scheme in ("http", "https") for timeout in (math.inf, 1e12, 1e300)]:
        secure = scheme == "https"
        server = RawServer(reply(b"{}"), greet=(lambda peer: peer.start_tls(context)) if secure else None)
        options = {"keepalive_expiry": timeout} | (authority().trusted() if secure else {})
        with server:
            async with subject.make(**options) as transport:
                for _ in range(3):
                    response = await transport.send(request(server.url(scheme)), timeout=timeout)
                    assert response.body == b"{}"
        assert server.accepted == 1
