"""Conformance cases about TLS and HTTP proxies. ``trustme`` makes the certificates when a case first needs one."""

from __future__ import annotations

import atexit
import ssl
import time
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rbim.errors import NotSent, Unanswered
from rbim.testing.conformance.case import (
    AUTHORIZATION,
    LENIENCY,
    REQUEST_TIMEOUT,
    SIG,
    WHOLE,
    Cases,
    Conformance,
    all_closed,
    check,
    expect_error,
    expect_response,
    expect_timeout,
    request,
    served,
)
from rbim.testing.conformance.requests import expect_refusal
from rbim.testing.conformance.server import (
    Peer,
    RawServer,
    Received,
    closing,
    head,
    refusing_port,
    reply,
    resetting,
    silent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.testing.conformance.server import Script

__all__ = ["CASES", "Authority", "authority"]

CASES = Cases()

ELSEWHERE = "elsewhere.example"
AGES_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Authority:
    """A certificate authority for tests. Raises ImportError if ``trustme`` is not installed."""

    def __init__(self) -> None:
        try:
            import trustme
        except ImportError as error:
            raise ImportError(
                "the TLS cases of the conformance suite need trustme: python -m pip install trustme"
            ) from error
        self._authority: Any = trustme.CA()
        self._folder: TemporaryDirectory[str] | None = None

    def of_a_server(self, name: str = "127.0.0.1", *, expired: bool = False) -> ssl.SSLContext:
        """Return the TLS context of a server with this name."""
        until = AGES_AGO + timedelta(days=1) if expired else None
        certificate = self._authority.issue_cert(name, not_before=AGES_AGO, not_after=until)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        return context

    def trusted_by(self, subject: Conformance) -> dict[str, Any]:
        """Return the transport option that makes it trust this authority."""
        if subject.bundle:
            if self._folder is None:
                self._folder = TemporaryDirectory()
                atexit.register(self._folder.cleanup)
            path = Path(self._folder.name) / "ca.pem"
            self._authority.cert_pem.write_to_path(str(path))
            return {"verify": str(path)}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._authority.configure_trust(context)
        return {"verify": context}


@cache
def authority() -> Authority:
    """Return the authority that all cases share."""
    return Authority()


@cache
def _other_authority() -> Authority:
    return Authority()


@cache
def _server_context() -> ssl.SSLContext:
    return authority().of_a_server()


def _greeting(context: ssl.SSLContext | None = None) -> Callable[[Peer], None]:
    """Return a ``greet`` function that does a TLS handshake on each new connection."""
    chosen = context or _server_context()
    return lambda peer: peer.start_tls(chosen)


@CASES.add("TLS: a trusted certificate, one handshake for all requests", "tls")
async def _trusted(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE), greet=_greeting(), options=authority().trusted_by(subject)) as (
        server,
        transport,
    ):
        await expect_response(transport, request(server.url("https"), repeatable=False), times=3)
    check(server.accepted == 1, f"3 requests used {server.accepted} connections; required: 1")
    host = server.requests[0].header("Host")
    check(host == f"127.0.0.1:{server.port}", f"got Host {host!r}; required: '127.0.0.1:{server.port}'")


async def _certificate(subject: Conformance, name: str, *, expired: bool) -> None:
    greet = _greeting(authority().of_a_server(name, expired=expired))
    async with served(subject, reply(WHOLE), greet=greet, options=authority().trusted_by(subject)) as (server, transport):
        await expect_error(transport, request(server.url("https")), NotSent)
    check(not server.requests, "the request was sent to an unverified server; required: NotSent")


CASES.add("TLS: the certificate of another host is not sent to", "tls")(partial(_certificate, name=ELSEWHERE, expired=False))
CASES.add("TLS: an expired certificate is not sent to", "tls")(partial(_certificate, name="127.0.0.1", expired=True))


@CASES.add("TLS: an unknown authority is not sent to, unless told otherwise or told nothing", "tls")
async def _unknown_authority(subject: Conformance) -> None:
    nothing: dict[str, Any] = {}
    for options in (nothing, _other_authority().trusted_by(subject)):
        async with served(subject, reply(WHOLE), greet=_greeting(), options=options) as (server, transport):
            await expect_error(transport, request(server.url("https")), NotSent)
        check(not server.requests, "the request was sent to an unverified server; required: NotSent")


@CASES.add("TLS: a server that speaks none is not sent to", "tls")
async def _plain(subject: Conformance) -> None:
    def plainly(peer: Peer) -> None:
        peer.send(reply(WHOLE))

    async with served(subject, greet=plainly, options=authority().trusted_by(subject)) as (server, transport):
        await expect_error(transport, request(server.url("https")), NotSent)


@CASES.add("TLS: a handshake that is reset or closed is not sent", "tls")
async def _reset(subject: Conformance) -> None:
    greetings: list[Callable[[Peer], object]] = [resetting, Peer.close]
    for greet in greetings:
        async with served(subject, greet=greet, options=authority().trusted_by(subject)) as (server, transport):
            await expect_error(transport, request(server.url("https")), NotSent)


@CASES.add("TLS: a handshake that takes too long is not sent, and its connection is closed", "tls")
async def _handshake(subject: Conformance) -> None:
    await expect_timeout(subject, (NotSent,), scheme="https", greet=silent, options=authority().trusted_by(subject))


@CASES.add("TLS: no answer in time is unanswered, and the connection is closed", "tls")
async def _no_answer(subject: Conformance) -> None:
    await expect_timeout(
        subject,
        (Unanswered,),
        reply(WHOLE),
        silent,
        scheme="https",
        first=1,
        greet=_greeting(),
        options=authority().trusted_by(subject),
    )


def _broken(peer: Peer, _: Received) -> None:
    peer.send_below_tls(b"junk\r\n" * 9)
    silent(peer)


@CASES.add("TLS: a connection that breaks after the request was read is unanswered", "tls")
async def _breaks(subject: Conformance) -> None:
    scripts: list[Script] = [_broken, resetting, closing(), closing(reply(WHOLE)[:-1])]
    for script in scripts:
        async with served(subject, script, reply(WHOLE), greet=_greeting(), options=authority().trusted_by(subject)) as (
            server,
            transport,
        ):
            await expect_error(transport, request(server.url("https")), Unanswered)
            await expect_response(transport, request(server.url("https")))
        check(server.accepted == 2, "the connection was used again after it broke; required: a new one")  # noqa: PLR2004  # one each


@CASES.add("TLS: a kept connection that the server closes while idle is not used again", "tls")
async def _stale(subject: Conformance) -> None:
    script = closing(reply(WHOLE))
    async with served(subject, script, greet=_greeting(), options=authority().trusted_by(subject)) as (server, transport):
        for _ in range(3):
            await expect_response(transport, request(server.url("https"), repeatable=False))
            check(await all_closed(server), "a connection that the server has closed stays open; required: closed")


# Proxies.

ORIGIN = "http://platform.example:8883"


@CASES.add("proxy: asked with the whole address, or the option is refused")
async def _proxied(subject: Conformance) -> None:
    if not subject.proxy:
        with RawServer(reply(WHOLE)) as proxy:
            await expect_refusal(subject, proxy=proxy.url())
            check(not proxy.requests, "a request reached the proxy although proxies are not supported; required: none")
        return
    with RawServer(reply(WHOLE)) as proxy:
        async with subject.make(proxy=proxy.url()) as transport:
            sent = request(ORIGIN)
            await expect_response(transport, sent, times=2)
    for seen in proxy.requests:
        line, host = f"POST {ORIGIN}{sent.target} HTTP/1.1", seen.header("Host")
        check(seen.line == line, f"the proxy got the request line {seen.line!r}; required: {line!r}")
        check(host == "platform.example:8883", f"the proxy got Host {host!r}; required: 'platform.example:8883'")
    check(proxy.accepted == 1, "the connection to the proxy was not kept; required: 1 connection for 2 requests")


def _tunnelling(context: ssl.SSLContext) -> Script:
    """Return the script of a proxy that also plays the server behind it."""

    def script(peer: Peer, received: Received) -> None:
        if received.line.startswith("CONNECT "):
            peer.send(head("200 Connection established"))
            peer.start_tls(context)
        else:
            peer.send(reply(WHOLE))

    return script


@CASES.add("proxy: https goes through a tunnel, and the proxy learns nothing but the host", "tls", "proxy")
async def _tunnel(subject: Conformance) -> None:
    with RawServer(_tunnelling(authority().of_a_server(ELSEWHERE))) as proxy:
        async with subject.make(proxy=proxy.url(), **authority().trusted_by(subject)) as transport:
            sent = request(f"https://{ELSEWHERE}")
            await expect_response(transport, sent, times=2)
        check(await all_closed(proxy), "connections to the proxy stay open after the transport was closed; required: none")
    lines = [seen.line for seen in proxy.requests]
    wanted = [f"CONNECT {ELSEWHERE}:443 HTTP/1.1", *[f"POST {sent.target} HTTP/1.1"] * 2]
    check(lines == wanted, f"the proxy got the request lines {lines}; required: {wanted}")
    connect = proxy.requests[0].raw.decode("latin-1")
    hidden = SIG not in connect and AUTHORIZATION not in connect
    check(hidden, "the proxy got secrets of the request in CONNECT; required: only the host")


@CASES.add("proxy: a certificate behind it is verified, too", "tls", "proxy")
async def _tunnel_to_another(subject: Conformance) -> None:
    with RawServer(_tunnelling(_server_context())) as proxy:
        async with subject.make(proxy=proxy.url(), **authority().trusted_by(subject)) as transport:
            await expect_error(transport, request(f"https://{ELSEWHERE}"), NotSent)
    check(len(proxy.requests) == 1, "the request was sent to an unverified server; required: NotSent")


NO_TUNNELS: dict[str, Script] = {
    "407": reply(b"", "407 Who are you"),
    "503": reply(b"", "503 No"),
    "a redirect": reply(b"", "302 Found", "Location: http://127.0.0.1:9/"),
    "101": head("101 Switching Protocols"),
    "a closed connection": closing(),
    "a reset": resetting,
    "junk": closing(b"junk\r\n\r\n"),
    "200 and a closed connection": closing(head("200 OK")),
}


async def _no_tunnel(subject: Conformance, script: Script, seconds: float = REQUEST_TIMEOUT) -> None:
    with RawServer(script) as proxy:
        async with subject.make(proxy=proxy.url(), **authority().trusted_by(subject)) as transport:
            began = time.monotonic()
            await expect_error(transport, request(f"https://{ELSEWHERE}"), NotSent, timeout=seconds)
            took = time.monotonic() - began
            check(took < seconds + LENIENCY, f"ended after {took:.2f} s; required: within {LENIENCY:g} s of {seconds:g} s")
            check(await all_closed(proxy), "the connection stays open although there is no tunnel; required: closed")


for _name, _script in NO_TUNNELS.items():
    CASES.add(f"proxy: {_name} in place of a tunnel is not sent", "tls", "proxy")(partial(_no_tunnel, script=_script))


def _hanging(*data: bytes) -> Script:
    """Return the script of a proxy that sends these bytes, and then nothing."""

    def script(peer: Peer, _: Received) -> None:
        peer.send(b"".join(data))
        peer.wait_closed()

    return script


def _endless(peer: Peer, _: Received) -> None:
    while True:
        peer.send(head("100 Continue"))
        time.sleep(0.005)


HANGING: dict[str, Script] = {
    "with nothing": silent,
    "in the middle of a head": _hanging(b"HTTP/1.1 200 OK\r\nX"),
    "after an interim answer": _hanging(head("100 Continue")),
    "with interim answers without end": _endless,
    "in the middle of a refusal": _hanging(head("407 Who are you", "Content-Length: 100")),
    "after its answer": _hanging(head("200 OK")),
    "after an answer with a length": _hanging(head("200 OK", "Content-Length: 5")),
    "after an answer with a body": _hanging(reply(b"hello")),
    "after an answer with chunks": _hanging(head("200 OK", "Transfer-Encoding: chunked")),
    "after its answer and junk": _hanging(head("200 OK"), b"junk" * 10),
}
for _name, _script in HANGING.items():
    CASES.add(f"proxy: a tunnel that hangs {_name} is not sent", "tls", "proxy")(
        partial(_no_tunnel, script=_script, seconds=0.2)
    )


@CASES.add("proxy: one that refuses connections is not sent to", "proxy")
async def _no_proxy(subject: Conformance) -> None:
    with refusing_port() as port:
        async with subject.make(proxy=f"http://127.0.0.1:{port}") as transport:
            await expect_error(transport, request(ORIGIN), NotSent)
