"""Conformance cases about bytes behind a response over TLS: the connection must not be used again while any are pending.

The library may have read, or decrypted, a record while the socket has nothing more to read. A session ticket behind a
response is no reason to close the connection.
"""

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

from rbim.errors import Unanswered
from rbim.testing.conformance.case import Cases, Conformance, check, expect_response, request, served
from rbim.testing.conformance.server import PATIENCE, Peer, Received, reply
from rbim.testing.conformance.tls import authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from rbim.testing.conformance.server import Peer

__all__ = ["CASES", "ServerRecords"]

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


CASES = Cases()

TIMES = 10
MOMENT = 0.02  # seconds
WRONG = reply(b"wrong")
HALF = WRONG[: len(WRONG) // 2]


async def _exchanges(
    subject: Conformance,
    script: Callable[[Peer, Received, ServerRecords], object],
    pause: float,
    *,
    refusable: bool = False,
) -> int:
    """Send requests one after the other, and return the number of connections they used.

    With ``pause`` (seconds) the client waits for the end of the script before the next request, and then so long. If
    ``refusable``, a response may be Unanswered, because of the bytes behind it.
    """
    done = threading.Semaphore(0)

    with ServerRecords(authority().of_a_server()) as records:

        def scripted(peer: Peer, received: Received) -> None:
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or a second segment may wait for a request
            try:
                script(peer, received, records)
            finally:  # the client may have closed the connection already, because of what came first behind the response
                done.release()

        async with served(subject, scripted, greet=records.greet, options=authority().trusted_by(subject)) as (
            server,
            transport,
        ):
            for number in range(TIMES):
                body = b"%d" % number
                with suppress(Unanswered) if refusable else nullcontext():
                    await expect_response(transport, request(server.url("https"), body=body), body)
                if pause:
                    await to_thread.run_sync(partial(done.acquire, timeout=PATIENCE))
                    await anyio.sleep(pause)
    return len({each.connection for each in server.requests})


def _in_one_segment(*behind: bytes | None) -> Callable[[Peer, Received, ServerRecords], object]:
    return lambda peer, received, records: records.send(peer, reply(received.body), *behind)


def _later(pause: float, *behind: bytes | None) -> Callable[[Peer, Received, ServerRecords], object]:
    """Return a script that responds, and sends each record in a segment of its own after a pause in seconds."""

    def script(peer: Peer, received: Received, records: ServerRecords) -> None:
        records.send(peer, reply(received.body))
        for each in behind:
            if pause:
                time.sleep(pause)
            records.send(peer, each)

    return script


async def _not_used_again(
    subject: Conformance, script: Callable[[Peer, Received, ServerRecords], object], pause: float
) -> None:
    connections = await _exchanges(subject, script, pause, refusable=True)
    check(
        connections == TIMES,
        f"{TIMES} requests used {connections} connections; required: a new one for each, because something came behind "
        "each response",
    )


BEHIND: dict[str, tuple[bytes | None, ...]] = {
    "an unrequested answer": (WRONG,),
    "half an unrequested answer": (HALF,),
    "an unrequested answer in two TLS records": (HALF, WRONG[len(HALF) :]),
    "one byte": (b"x",),
    "close_notify": (None,),
}
for _name, _behind in BEHIND.items():
    CASES.add(f"discarded: {_name} over TLS, in one segment with another one", "tls")(
        partial(_not_used_again, script=_in_one_segment(*_behind), pause=0.0)
    )
    for _pause in (0.0, 0.0003, 0.01):
        CASES.add(f"discarded: {_name} over TLS, {_pause * 1000:g} ms behind another one", "tls")(
            partial(_not_used_again, script=_later(_pause, *_behind), pause=MOMENT)
        )


@CASES.add("TLS: a connection is used again after a session ticket behind a response", "tls")
async def _tickets(subject: Conformance) -> None:
    connections = await _exchanges(
        subject, lambda peer, received, records: records.send_with_ticket(peer, reply(received.body)), MOMENT
    )
    check(connections == 1, f"{TIMES} requests used {connections} connections; required: 1, because no data was pending")
