"""Conformance: TLS and HTTP proxies. The certificates are made by ``trustme``, when the first case needs one."""

from __future__ import annotations

import atexit
import ssl
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rbim.errors import NotSent, Unanswered
from rbim.testing.conformance.case import (
    AUTHORIZATION,
    SIG,
    WHOLE,
    Cases,
    Conformance,
    answered,
    check,
    failed,
    in_time,
    is_left,
    request,
    served,
)
from rbim.testing.conformance.requests import refused
from rbim.testing.conformance.server import Peer, RawServer, Received, closing, head, refusing_port, reply, resetting, silent

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.testing.conformance.server import Script

__all__ = ["CASES", "Authority", "authority"]

CASES = Cases()

ELSEWHERE = "elsewhere.example"
AGES_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Authority:
    """A certificate authority of our own. Raises ImportError where ``trustme`` is missing."""

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
        """Return what a server of that name shows."""
        until = AGES_AGO + timedelta(days=1) if expired else None
        certificate = self._authority.issue_cert(name, not_before=AGES_AGO, not_after=until)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        return context

    def trusted_by(self, subject: Conformance) -> dict[str, Any]:
        """Return the option of a transport that trusts these servers."""
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
def _stranger() -> Authority:
    return Authority()


@cache
def _server_context() -> ssl.SSLContext:
    return authority().of_a_server()


def _greeting(context: ssl.SSLContext | None = None) -> Callable[[Peer], None]:
    """Return what shakes hands on each new connection."""
    shown = context or _server_context()
    return lambda peer: peer.start_tls(shown)


@CASES.add("TLS: a trusted certificate, one handshake for all requests", "tls")
async def _trusted(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE), greet=_greeting(), options=authority().trusted_by(subject)) as (
        server,
        transport,
    ):
        await answered(transport, request(server.url("https"), repeatable=False), times=3)
    check(server.accepted == 1, f"3 requests took {server.accepted} connections")
    check(server.requests[0].header("Host") == f"127.0.0.1:{server.port}", "the Host differs")


async def _certificate(subject: Conformance, name: str, *, expired: bool) -> None:
    greet = _greeting(authority().of_a_server(name, expired=expired))
    async with served(subject, reply(WHOLE), greet=greet, options=authority().trusted_by(subject)) as (server, transport):
        await failed(transport, request(server.url("https")), NotSent)
    check(not server.requests, "the request was sent")


CASES.add("TLS: the certificate of another host is not sent to", "tls")(partial(_certificate, name=ELSEWHERE, expired=False))
CASES.add("TLS: an expired certificate is not sent to", "tls")(partial(_certificate, name="127.0.0.1", expired=True))


@CASES.add("TLS: an unknown authority is not sent to, unless told otherwise or told nothing", "tls")
async def _unknown_authority(subject: Conformance) -> None:
    nothing: dict[str, Any] = {}
    for options in (nothing, _stranger().trusted_by(subject)):
        async with served(subject, reply(WHOLE), greet=_greeting(), options=options) as (server, transport):
            await failed(transport, request(server.url("https")), NotSent)
        check(not server.requests, "the request was sent")


@CASES.add("TLS: a server that speaks none is not sent to", "tls")
async def _plain(subject: Conformance) -> None:
    def plainly(peer: Peer) -> None:
        peer.send(reply(WHOLE))

    async with served(subject, greet=plainly, options=authority().trusted_by(subject)) as (server, transport):
        await failed(transport, request(server.url("https")), NotSent)


@CASES.add("TLS: a handshake that is reset or closed is not sent", "tls")
async def _reset(subject: Conformance) -> None:
    greetings: list[Callable[[Peer], object]] = [resetting, Peer.close]
    for greet in greetings:
        async with served(subject, greet=greet, options=authority().trusted_by(subject)) as (server, transport):
            await failed(transport, request(server.url("https")), NotSent)


@CASES.add("TLS: a handshake that takes too long is not sent, and its connection is closed", "tls")
async def _handshake(subject: Conformance) -> None:
    await in_time(subject, subject.late, scheme="https", greet=silent, options=authority().trusted_by(subject))


@CASES.add("TLS: no answer in time is unanswered, and the connection is closed", "tls")
async def _no_answer(subject: Conformance) -> None:
    await in_time(
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
            await failed(transport, request(server.url("https")), Unanswered)
            await answered(transport, request(server.url("https")))
        check(server.accepted == 2, "the connection was used again")  # noqa: PLR2004  # one each


@CASES.add("TLS: a kept connection that the server closes while idle is not used again", "tls")
async def _stale(subject: Conformance) -> None:
    script = closing(reply(WHOLE))
    async with served(subject, script, greet=_greeting(), options=authority().trusted_by(subject)) as (server, transport):
        for _ in range(3):
            await answered(transport, request(server.url("https"), repeatable=False))
            check(await is_left(server), "the server's end is open")


# Proxies.

ORIGIN = "http://platform.example:8883"


@CASES.add("proxy: asked with the whole address, or the option is refused")
async def _proxied(subject: Conformance) -> None:
    if not subject.proxy:
        with RawServer(reply(WHOLE)) as proxy:
            await refused(subject, proxy=proxy.url())
            check(not proxy.requests, "the proxy was asked, although this is not supported")
        return
    with RawServer(reply(WHOLE)) as proxy:
        async with subject.make(proxy=proxy.url()) as transport:
            sent = request(ORIGIN)
            await answered(transport, sent, times=2)
    for seen in proxy.requests:
        check(seen.line == f"POST {ORIGIN}{sent.target} HTTP/1.1", f"the proxy was asked for {seen.line!r}")
        check(seen.header("Host") == "platform.example:8883", f"Host is {seen.header('Host')!r}")
    check(proxy.accepted == 1, "the connection to the proxy was not kept")


def _tunnelling(context: ssl.SSLContext) -> Script:
    """Be a proxy that takes itself for what lies behind it."""

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
            await answered(transport, sent, times=2)
        check(await is_left(proxy), "connections are left open")
    lines = [seen.line for seen in proxy.requests]
    wanted = [f"CONNECT {ELSEWHERE}:443 HTTP/1.1", *[f"POST {sent.target} HTTP/1.1"] * 2]
    check(lines == wanted, f"the proxy was asked for {lines} in place of {wanted}")
    said = proxy.requests[0].raw.decode("latin-1")
    check(SIG not in said and AUTHORIZATION not in said, "the proxy was told what signs requests")


@CASES.add("proxy: a certificate behind it is verified, too", "tls", "proxy")
async def _tunnel_to_another(subject: Conformance) -> None:
    with RawServer(_tunnelling(_server_context())) as proxy:
        async with subject.make(proxy=proxy.url(), **authority().trusted_by(subject)) as transport:
            await failed(transport, request(f"https://{ELSEWHERE}"), NotSent)
    check(len(proxy.requests) == 1, "the request was sent")


NO_TUNNELS: dict[str, Script] = {
    "407": reply(b"", "407 Who are you"),
    "503": reply(b"", "503 No"),
    "a closed connection": closing(),
    "a reset": resetting,
    "junk": closing(b"junk\r\n\r\n"),
    "200 and a closed connection": closing(head("200 OK")),
}


async def _no_tunnel(subject: Conformance, script: Script) -> None:
    with RawServer(script) as proxy:
        async with subject.make(proxy=proxy.url(), **authority().trusted_by(subject)) as transport:
            await failed(transport, request(f"https://{ELSEWHERE}"), NotSent)
            check(await is_left(proxy), "the connection of a tunnel that did not come about is not closed")


for _name, _script in NO_TUNNELS.items():
    CASES.add(f"proxy: {_name} in place of a tunnel is not sent", "tls", "proxy")(partial(_no_tunnel, script=_script))


@CASES.add("proxy: a tunnel that takes too long is not sent, and its connection is closed", "tls", "proxy")
async def _slow_tunnel(subject: Conformance) -> None:
    with RawServer(silent) as proxy:
        async with subject.make(proxy=proxy.url(), **authority().trusted_by(subject)) as transport:
            await failed(transport, request(f"https://{ELSEWHERE}"), *subject.late, timeout=0.1)
            check(await is_left(proxy), "the connection of a tunnel that took too long is not closed")


@CASES.add("proxy: one that refuses connections is not sent to", "proxy")
async def _no_proxy(subject: Conformance) -> None:
    with refusing_port() as port:
        async with subject.make(proxy=f"http://127.0.0.1:{port}") as transport:
            await failed(transport, request(ORIGIN), NotSent)
