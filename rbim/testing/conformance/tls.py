"""Conformance cases about TLS and HTTP proxies."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from rbim.errors import NotSent, Unanswered
from rbim.testing.conformance.case import (
    AUTHORIZATION,
    MOMENT,
    REQUEST_TIMEOUT,
    SIG,
    WHOLE,
    Cases,
    Conformance,
    check,
    check_closed,
    check_used,
    expect_error,
    expect_response,
    expect_timeout,
    request,
    served,
)
from rbim.testing.conformance.requests import expect_refusal
from rbim.testing.conformance.server import (
    WAIT_TIMEOUT,
    Authority,
    Peer,
    RawServer,
    Received,
    authority,
    closing,
    dripping,
    halting,
    handshaking,
    head,
    refusing_port,
    reply,
    resetting,
    silent,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from rbim.http import Transport
    from rbim.testing.conformance.server import Script

__all__ = ["CASES", "ServerRecords"]

CASES = Cases()

ELSEWHERE = "elsewhere.example"


@CASES.add("TLS: a trusted certificate, one handshake for all requests", "tls")
async def _trusted(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE), secure=True) as (server, transport):
        await expect_response(transport, request(server.url(), repeatable=False), times=3)
    check_used(server, [0, 0, 0])
    host = server.requests[0].header("Host")
    check(host == f"127.0.0.1:{server.port}", f"got Host {host!r}; required: '127.0.0.1:{server.port}'")


async def _certificate(subject: Conformance, name: str, *, expired: bool) -> None:
    greet = handshaking(authority().of_a_server(name, expired=expired))
    async with served(subject, reply(WHOLE), secure=True, greet=greet) as (server, transport):
        await expect_error(transport, request(server.url()), NotSent)
    check(not server.requests, "the request was sent to an unverified server; required: NotSent")


CASES.add("TLS: the certificate of another host is not sent to", "tls")(partial(_certificate, name=ELSEWHERE, expired=False))
CASES.add("TLS: an expired certificate is not sent to", "tls")(partial(_certificate, name="127.0.0.1", expired=True))


@CASES.add("TLS: an unknown authority is not sent to, unless told otherwise or told nothing", "tls")
async def _unknown_authority(subject: Conformance) -> None:
    nothing: dict[str, Any] = {}
    for options in (nothing, Authority().trusted(bundle=subject.bundle)):
        async with served(subject, reply(WHOLE), scheme="https", greet=handshaking(), options=options) as (
            server,
            transport,
        ):
            await expect_error(transport, request(server.url()), NotSent)
        check(not server.requests, "the request was sent to an unverified server; required: NotSent")


@CASES.add("TLS: a server that speaks none is not sent to", "tls")
async def _plain(subject: Conformance) -> None:
    async with served(subject, secure=True, greet=partial(Peer.send, data=reply(WHOLE))) as (server, transport):
        await expect_error(transport, request(server.url()), NotSent)


@CASES.add("TLS: a handshake that is reset or closed is not sent", "tls")
async def _reset(subject: Conformance) -> None:
    for greet in (resetting, Peer.close):
        async with served(subject, secure=True, greet=greet) as (server, transport):
            await expect_error(transport, request(server.url()), NotSent)


@CASES.add("TLS: a handshake that takes too long is not sent, and its connection is closed", "tls")
async def _handshake(subject: Conformance) -> None:
    await expect_timeout(subject, (NotSent,), secure=True, greet=silent)


@CASES.add("TLS: no answer in time is unanswered, and the connection is closed", "tls")
async def _no_answer(subject: Conformance) -> None:
    await expect_timeout(subject, (Unanswered,), reply(WHOLE), silent, first=1, secure=True)


def _broken(peer: Peer, _: Received) -> None:
    peer.send_below_tls(b"junk\r\n" * 9)
    silent(peer)


@CASES.add("TLS: a connection that breaks after the request was read is unanswered", "tls")
async def _breaks(subject: Conformance) -> None:
    for script in (_broken, resetting, closing(), closing(reply(WHOLE)[:-1])):
        async with served(subject, script, reply(WHOLE), secure=True) as (server, transport):
            await expect_error(transport, request(server.url()), Unanswered)
            await expect_response(transport, request(server.url()))
        check_used(server, [0, 1])


@CASES.add("TLS: a kept connection that the server closes while idle is not used again", "tls")
async def _stale(subject: Conformance) -> None:
    async with served(subject, closing(reply(WHOLE)), secure=True) as (server, transport):
        for _ in range(3):
            await expect_response(transport, request(server.url(), repeatable=False))
            await check_closed(server)


# Bytes behind a response over TLS: the connection must not be used again while any are pending.
#
# The library may have read, or decrypted, a record while the socket has nothing more to read. A session ticket behind a
# response is no reason to close the connection.
#
# TLS 1.3 records of a server, made by hand: several in one segment, a part of one, a session ticket behind a response.
#
# Python's ``ssl`` writes one record at a time, and sends its tickets before the first response. Here ``cryptography``, which
# trustme brings, encrypts the records with the key that the handshake of ``ssl`` agreed on (RFC 8446, sections 5.2, 7.3).

ALERT, HANDSHAKE, DATA = 21, 22, 23
CLOSE_NOTIFY = b"\x01\x00"
LABEL = "SERVER_TRAFFIC_SECRET_0"
NONCE_LENGTH = 12


class ServerRecords:
    """The records of a server, on each of its connections; a ``with`` block that changes the server's TLS context.

    The server must send everything after the handshake through :meth:`send`.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # they would count as records
        self.context = context
        self._handshakes = threading.Lock()  # the last secret in the file is then that of the last handshake
        self._ciphers: dict[int, tuple[Any, bytes]] = {}
        self._sent: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory()
        self._secrets = Path(self._folder.name) / "secrets"
        self.context.keylog_filename = str(self._secrets)
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def greet(self, peer: Peer) -> None:
        """Do the TLS handshake of a new connection."""
        with self._handshakes:
            peer.start_tls(self.context)
            lines = self._secrets.read_text("ascii").splitlines()
        secret = next(line.split()[2] for line in reversed(lines) if line.startswith(LABEL))
        self._ciphers[peer.number] = _cipher(peer, bytes.fromhex(secret))
        self._sent[peer.number] = 0

    def send(self, peer: Peer, *records: bytes | None) -> None:
        """Send the bytes of records in one segment; each of ``records`` is data, or None for a close_notify."""
        sealed = [self._sealed(peer, CLOSE_NOTIFY, ALERT) if each is None else self._sealed(peer, each) for each in records]
        peer.send_below_tls(b"".join(sealed))

    def send_with_ticket(self, peer: Peer, data: bytes) -> None:
        """Send a record with this data, and a session ticket behind it, in two segments."""
        peer.send_below_tls(self._sealed(peer, data))
        ticket = os.urandom(32)
        body = struct.pack("!IIB8sH32sH", 7200, 0, 8, os.urandom(8), len(ticket), ticket, 0)
        peer.send_below_tls(self._sealed(peer, b"\x04" + len(body).to_bytes(3, "big") + body, HANDSHAKE))

    def _sealed(self, peer: Peer, data: bytes, kind: int = DATA) -> bytes:
        cipher, start = self._ciphers[peer.number]
        number = self._sent[peer.number]
        self._sent[peer.number] += 1
        nonce = (int.from_bytes(start, "big") ^ number).to_bytes(NONCE_LENGTH, "big")
        head = struct.pack("!BHH", DATA, 0x0303, len(data) + 17)
        encrypted: bytes = cipher.encrypt(nonce, data + bytes([kind]), head)
        return head + encrypted


def _cipher(peer: Peer, secret: bytes) -> tuple[Any, bytes]:
    """Return the cipher of a connection and the start of its nonces."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    kinds: dict[str, tuple[Any, Any, int]] = {
        "TLS_AES_256_GCM_SHA384": (AESGCM, hashes.SHA384, 32),
        "TLS_AES_128_GCM_SHA256": (AESGCM, hashes.SHA256, 16),
        "TLS_CHACHA20_POLY1305_SHA256": (ChaCha20Poly1305, hashes.SHA256, 32),
    }
    assert isinstance(peer.sock, ssl.SSLSocket)  # noqa: S101  # its handshake is done
    make, digest, length = kinds[(peer.sock.cipher() or ("",))[0]]

    def derived(label: bytes, size: int) -> bytes:
        text = b"tls13 " + label
        info = struct.pack("!HB", size, len(text)) + text + b"\0"
        value: bytes = HKDFExpand(algorithm=digest(), length=size, info=info).derive(secret)
        return value

    return make(derived(b"key", length)), derived(b"iv", NONCE_LENGTH)


TIMES = 10
WRONG = reply(b"wrong")
HALF = WRONG[: len(WRONG) // 2]


async def _exchanges(
    subject: Conformance, script: Callable[[Peer, Received, ServerRecords], object], *, together: bool, kept: bool
) -> None:
    """Send requests one after the other, and check whether their connection is kept.

    Unless all comes ``together``, the client waits for the end of the script, and a moment, before the next request. If the
    connection is not ``kept``, a response may be Unanswered, because of the bytes behind it.
    """
    done = threading.Semaphore(0)

    with ServerRecords(authority().of_a_server()) as records:

        def scripted(peer: Peer, received: Received) -> None:
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or a second segment may wait for a request
            try:
                script(peer, received, records)
            finally:  # the client may have closed the connection already, because of what came first behind the response
                done.release()

        async with served(subject, scripted, secure=True, greet=records.greet) as (server, transport):
            for number in range(TIMES):
                body = b"%d" % number
                with nullcontext() if kept else suppress(Unanswered):
                    await expect_response(transport, request(server.url(), body=body), body)
                if not together:
                    await to_thread.run_sync(partial(done.acquire, timeout=WAIT_TIMEOUT))
                    await anyio.sleep(MOMENT)
    check_used(server, [0] * TIMES if kept else [*range(TIMES)])


async def _not_used_again(subject: Conformance, behind: tuple[bytes | None, ...], pause: float | None) -> None:
    """Send records behind each response: in one segment with it, or each in its own after a pause in seconds."""

    def script(peer: Peer, received: Received, records: ServerRecords) -> None:
        if pause is None:
            records.send(peer, reply(received.body), *behind)
            return
        records.send(peer, reply(received.body))
        for each in behind:
            time.sleep(pause)
            records.send(peer, each)

    await _exchanges(subject, script, together=pause is None, kept=False)


BEHIND: dict[str, tuple[bytes | None, ...]] = {
    "an unrequested answer": (WRONG,),
    "half an unrequested answer": (HALF,),
    "an unrequested answer in two TLS records": (HALF, WRONG[len(HALF) :]),
    "one byte": (b"x",),
    "close_notify": (None,),
}
for _name, _behind in BEHIND.items():
    for _pause in (None, 0.0, 0.0003, 0.01):
        _when = "in one segment with another one" if _pause is None else f"{_pause * 1000:g} ms behind another one"
        CASES.add(f"discarded: {_name} over TLS, {_when}", "tls")(partial(_not_used_again, behind=_behind, pause=_pause))


@CASES.add("TLS: a connection is used again after a session ticket behind a response", "tls")
async def _tickets(subject: Conformance) -> None:
    def script(peer: Peer, received: Received, records: ServerRecords) -> None:
        records.send_with_ticket(peer, reply(received.body))

    await _exchanges(subject, script, together=False, kept=True)


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
    check_used(proxy, [0, 0])


def _through(proxy: RawServer, subject: Conformance) -> Transport:
    return subject.make(proxy=proxy.url(), **authority().trusted(bundle=subject.bundle))


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
        async with _through(proxy, subject) as transport:
            sent = request(f"https://{ELSEWHERE}")
            await expect_response(transport, sent, times=2)
        await check_closed(proxy)
    lines = [seen.line for seen in proxy.requests]
    wanted = [f"CONNECT {ELSEWHERE}:443 HTTP/1.1", *[f"POST {sent.target} HTTP/1.1"] * 2]
    check(lines == wanted, f"the proxy got the request lines {lines}; required: {wanted}")
    connect = proxy.requests[0].head.decode("latin-1")
    hidden = SIG not in connect and AUTHORIZATION not in connect
    check(hidden, "the proxy got secrets of the request in CONNECT; required: only the host")


@CASES.add("proxy: a certificate behind it is verified, too", "tls", "proxy")
async def _tunnel_to_another(subject: Conformance) -> None:
    with RawServer(_tunnelling(authority().of_a_server())) as proxy:
        async with _through(proxy, subject) as transport:
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
        async with _through(proxy, subject) as transport:
            await expect_error(transport, request(f"https://{ELSEWHERE}"), NotSent, timeout=seconds)
            await check_closed(proxy)


for _name, _script in NO_TUNNELS.items():
    CASES.add(f"proxy: {_name} in place of a tunnel is not sent", "tls", "proxy")(partial(_no_tunnel, script=_script))


HANGING: dict[str, Script] = {
    "with nothing": silent,
    "in the middle of a head": halting(b"HTTP/1.1 200 OK\r\nX"),
    "after an interim answer": halting(head("100 Continue")),
    "with interim answers without end": dripping(b"", head("100 Continue")),
    "in the middle of a refusal": halting(head("407 Who are you", "Content-Length: 100")),
    "after its answer": halting(head("200 OK")),
    "after an answer with a length": halting(head("200 OK", "Content-Length: 5")),
    "after an answer with a body": halting(reply(b"hello")),
    "after an answer with chunks": halting(head("200 OK", "Transfer-Encoding: chunked")),
    "after its answer and junk": halting(head("200 OK") + b"junk" * 10),
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
