"""TLS 1.3 records of a server, made by hand: several in one segment, a part of one, a session ticket behind a response.

Python's ``ssl`` writes one record at a time, and sends its tickets before the first response. Here ``cryptography``, which
trustme brings, encrypts the records, with the key that the handshake of ``ssl`` agreed on (RFC 8446, sections 5.2 and 7.3).
"""

from __future__ import annotations

import os
import ssl
import struct
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

    from rbim.testing.conformance.server import Peer

__all__ = ["ServerRecords"]

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
