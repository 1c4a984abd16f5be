"""Messages of connections that fail: host and port, the cause, the likely next step, and no secret; in all transports."""

import importlib
import math
import os
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager

import anyio
import pytest

from helpers.transports import LOOPS, TRANSPORTS, UVLOOP
from rbim import AsyncClient, NotSent, Unanswered
from rbim.emulator import Emulator
from rbim.errors import TransportError
from rbim.http import Request
from rbim.testing.conformance.case import Conformance
from rbim.testing.conformance.errors import full_port
from rbim.testing.conformance.server import RawServer, closing, refusing_port, reply, silent
from rbim.testing.conformance.tls import authority
from rbim.transports._shared.connecting import no_answer, no_connection, too_late

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

SIG, PASSWORD, TOKEN = "0A1B2C3D4E5F", "pass-of-the-proxy", "YTE6MjAyNg=="
EMULATOR = "is the emulator running? (rbim emulator)"
HTTP_ALERT = b"\x15\x03\x01\x00\x02\x02\x16"  # a TLS alert, "record overflow"

EACH = pytest.mark.parametrize(
    ("module", "anyio_backend"),
    [(module, loop) for module, (_, _, loops) in TRANSPORTS.items() for loop in loops if loop in LOOPS],
    ids=lambda each: "uvloop" if each is UVLOOP else each,
)


@pytest.fixture
def subject(module):
    name, features, _ = TRANSPORTS[module]
    return Conformance(getattr(importlib.import_module(f"rbim.transports.{module}"), name), **features)


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
LOGIN = "wants other credentials: 407): check user and password in the address of the proxy"
NO_TLS = "(the server does not speak TLS): use http:// if the port expects it"
IN_TLS = "(closed in the TLS handshake): check whether the port expects https://"
SITUATIONS = {
    "refused": (refusing_port, "http", "cannot connect to 127.0.0.1:{port} (refused): " + EMULATOR),
    "refused, https": (refusing_port, "https", "cannot connect to 127.0.0.1:{port} (refused): " + EMULATOR),
    "no TLS": (lambda: speaking(b"HTTP/1.1 400 Bad\r\n\r\n"), "https", "cannot connect to 127.0.0.1:{port} " + NO_TLS),
    "closed in TLS": (lambda: speaking(b""), "https", "cannot connect to 127.0.0.1:{port} " + IN_TLS),
    "another host": (
        lambda: certified("other.example"),
        "https",
        "cannot connect to 127.0.0.1:{port} (certificate of another host): check the host in the base URL",
    ),
    "expired": (
        lambda: certified(expired=True),
        "https",
        f"cannot connect to 127.0.0.1:{{port}} (certificate expired): {CLOCK}",
    ),
}


@EACH
@pytest.mark.parametrize("situation", SITUATIONS)
async def test_it_names_host_port_cause_and_next_step(subject, situation):
    serving, scheme, message = SITUATIONS[situation]
    options = authority().trusted_by(subject) if scheme == "https" else {}
    with serving() as port:
        expected = message.format(port=port)
        assert await failure(subject, f"{scheme}://127.0.0.1:{port}", **options) == (NotSent, expected)


@EACH
async def test_a_server_that_speaks_first_and_no_tls(subject):
    """It may have spoken before the handshake began: uvloop then sees a connection that cannot be used."""
    with speaking(reply(b"{}"), first=True) as port:
        _, message = await failure(subject, f"https://127.0.0.1:{port}", **authority().trusted_by(subject))
    assert message in {f"cannot connect to 127.0.0.1:{port} {words}" for words in (NO_TLS, IN_TLS)}


@EACH
async def test_an_unknown_authority(subject):
    with certified() as port:
        assert await failure(subject, f"https://127.0.0.1:{port}") == (
            NotSent,
            f"cannot connect to 127.0.0.1:{port} (certificate not trusted): {VERIFY}",
        )


@EACH
@pytest.mark.parametrize("name", ["name.invalid", "x" * 70 + ".invalid"])
async def test_a_name_that_does_not_resolve(subject, name):
    step = "check the host name for a typo, and this machine's DNS"
    assert await failure(subject, f"http://{name}") == (NotSent, f"cannot connect to {name}:80 (host not found): {step}")


@EACH
async def test_no_connection_in_time(subject):
    with full_port() as port:
        told = await failure(subject, f"http://127.0.0.1:{port}", timeout=0.1)
    assert told == (NotSent, f"cannot connect to 127.0.0.1:{port} (no connection within 0.1 s): {EMULATOR}")


@EACH
async def test_a_handshake_that_takes_too_long(subject):
    options = authority().trusted_by(subject)
    with port_of(RawServer(greet=silent)) as port:
        kind, message = await failure(subject, f"https://127.0.0.1:{port}", timeout=0.1, **options)
    assert kind is NotSent
    assert f"127.0.0.1:{port} (no connection within 0.1 s)" in message


@EACH
@pytest.mark.parametrize("greet", [b"", HTTP_ALERT], ids=["closes", "alert"])
async def test_http_to_a_port_that_expects_tls(subject, greet):
    """The request has left, unencrypted, so the outcome is unknown."""
    with speaking(greet) as port:
        kind, message = await failure(subject, f"http://127.0.0.1:{port}")
    assert kind is Unanswered
    assert message.startswith(f"no valid response from 127.0.0.1:{port} (")
    assert message.endswith("): if the port expects TLS, use https:// in the base URL")


@EACH
@pytest.mark.parametrize("origin", ["http://platform.example:8883", "https://platform.example"])
async def test_a_proxy_that_refuses_is_named_without_its_user(subject, origin):
    with refusing_port() as port:
        assert await failure(subject, origin, proxy=f"http://user:{PASSWORD}@127.0.0.1:{port}") == (
            NotSent,
            f"cannot connect to the proxy 127.0.0.1:{port} (refused): {PROXY}",
        )


@EACH
async def test_a_proxy_that_does_not_resolve(subject):
    kind, message = await failure(subject, "http://platform.example", proxy=f"http://user:{PASSWORD}@name.invalid:3128")
    assert kind is NotSent
    assert message.startswith("cannot connect to the proxy name.invalid:3128 (host not found): check the proxy")


@EACH
async def test_a_proxy_of_the_environment_is_named_too(subject, monkeypatch):
    with refusing_port() as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:{PASSWORD}@127.0.0.1:{port}")
        _, message = await failure(subject, "http://platform.example")
    assert message.startswith(f"cannot connect to the proxy 127.0.0.1:{port} (refused)")


@EACH
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            reply(b"", "407 Who are you"),
            "wants other credentials: 407): check user and password in the address of the proxy",
        ),
        (closing(), ""),
    ],
    ids=["407", "closed"],
)
async def test_a_proxy_that_opens_no_tunnel(subject, script, words):
    with RawServer(script) as proxy:
        address = f"http://user:{PASSWORD}@127.0.0.1:{proxy.port}"
        options = authority().trusted_by(subject)
        kind, message = await failure(subject, "https://platform.example", proxy=address, **options)
    assert kind is NotSent
    assert message.startswith(f"cannot connect to platform.example:443 through the proxy 127.0.0.1:{proxy.port} (")
    assert words in message


@EACH
async def test_a_unix_socket_that_does_not_exist(subject, tmp_path):
    if not subject.unix:
        pytest.skip("the transport has no UNIX sockets")
    path = str(tmp_path / "none")
    _, message = await failure(subject, "http://127.0.0.1:8883", uds=path)
    assert message == f"cannot connect to the UNIX socket {path} (no such socket): {EMULATOR}"


@pytest.mark.parametrize("transport", [name for name in TRANSPORTS if name != "auto"])
def test_the_command_line_shows_it(transport, tmp_path):
    environment = {"RBIM_APP_ID": "a", "RBIM_APP_TOKEN": PASSWORD, "RBIM_TRANSPORT": transport, "PATH": os.environ["PATH"]}
    with refusing_port() as port:
        command = [sys.executable, "-c", "from rbim.cli import main; main()", "groups", "detail", "--group-id", "g1"]
        command += ["--base-url", f"http://127.0.0.1:{port}"]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode != 0
    assert f"cannot connect to 127.0.0.1:{port} (refused): {EMULATOR}" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


# The same messages, from errors that are hard to cause.

FAR = request("https://im.example.cn")
CHECK = "check this machine's network connection and the address"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(101, "Network is unreachable"), f"im.example.cn:443 (network unreachable): {CHECK}"),
        (OSError(113, "No route to host"), f"im.example.cn:443 (network unreachable): {CHECK}"),
        (
            ConnectionRefusedError(111, "Connect call failed"),
            "im.example.cn:443 (refused): check the port, and whether the service is running",
        ),
        (
            socket.gaierror(-3, "Temporary failure in name resolution"),
            "im.example.cn:443 (host not found): check the host name for a typo, and this machine's DNS",
        ),
        (ssl.SSLEOFError(8, "EOF occurred"), f"im.example.cn:443 {IN_TLS}"),
        (ConnectionResetError(104, "reset"), f"im.example.cn:443 {IN_TLS}"),
        (RuntimeError(f"odd {SIG.lower()}"), "im.example.cn:443 (RuntimeError: odd ***)"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_next_step_for_another_machine(error, message):
    assert no_connection(FAR, error) == f"cannot connect to {message}"


def test_several_addresses_that_all_refuse():
    error = OSError("All connection attempts failed")
    refusals = [ConnectionRefusedError(111, "refused"), ConnectionRefusedError(111, "refused")]
    error.__cause__ = ExceptionGroup("several", refusals)
    assert "(refused)" in no_connection(FAR, error)


@pytest.mark.parametrize("host", ["localhost", "emulator.localhost", "127.9.9.9", "[::1]"])
def test_this_machine_has_many_names(host):
    assert no_connection(request(f"http://{host}:1"), ConnectionRefusedError(111, "")).endswith(EMULATOR)
    assert too_late(request(f"http://{host}:1"), 2.0).endswith(EMULATOR)


def test_a_time_out_elsewhere_names_the_firewall():
    assert too_late(FAR, 2.5) == (
        "cannot connect to im.example.cn:443 (no connection within 2.5 s): check host and port, and whether a firewall "
        "drops the connection"
    )


def test_a_kept_connection_that_ends_is_no_sign_of_tls():
    reason = "the connection was closed before the response"
    assert no_answer(request("http://h.example"), reason, new=False) == f"no valid response from h.example:80 ({reason})"


# Time-outs.


@EACH
@pytest.mark.parametrize("timeout", [0, -1, -math.inf, 0.0])
async def test_no_time_left_is_not_sent(subject, timeout):
    with RawServer() as server:
        kind, message = await failure(subject, server.url(), timeout=timeout)
        assert not server.accepted
    assert kind is NotSent
    assert message.startswith(f"cannot connect to 127.0.0.1:{server.port}: no time is left")


@pytest.mark.parametrize("timeout", [0, -1.5])
async def test_no_time_left_is_not_sent_to_the_emulator(timeout):
    emulator = Emulator()
    with pytest.raises(NotSent, match="no time is left"):
        await emulator.send(request("http://emulator"), timeout=timeout)
    assert not list(emulator.requests)


@EACH
@pytest.mark.parametrize("timeout", [math.inf, 1e12, 1e300])
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_time_outs_without_end(subject, timeout, secure):
    context = authority().of_a_server()
    server = RawServer(reply(b"{}"), greet=(lambda peer: peer.start_tls(context)) if secure else None)
    options = {"keepalive_expiry": timeout} | (authority().trusted_by(subject) if secure else {})
    with server:
        async with subject.make(**options) as transport:
            for _ in range(3):
                response = await transport.send(request(server.url("https" if secure else "http")), timeout=timeout)
                assert response.body == b"{}"
    assert server.accepted == 1


@EACH
async def test_a_request_that_must_not_be_repeated_has_a_new_connection_if_none_may_be_idle(subject):
    with RawServer(reply(b"{}")) as server:
        async with subject.make(keepalive_expiry=0) as transport:
            for _ in range(3):
                await transport.send(request(server.url()), timeout=5.0)
    assert server.accepted == 3


@EACH
@pytest.mark.parametrize("seconds", [math.inf, 1e12])
async def test_a_client_without_time_limits(subject, seconds):
    emulator = Emulator()
    body = b'{"statusCode":"000000","groupId":"g1"}'
    with RawServer(reply(body, "200 OK", "Content-Type: application/json")) as server:
        client = AsyncClient(
            base_url=server.url(),
            credentials=emulator.credentials,
            transport=subject.make(),
            timeout=seconds,
            deadline=seconds,
        )
        async with client:
            with anyio.fail_after(20):
                assert (await client.groups.detail(group_id="g1")) is not None
