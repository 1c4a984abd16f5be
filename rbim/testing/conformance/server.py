"""A scripted HTTP server on plain sockets and threads, and the certificates for it.

It shares no code with the rest of rbim or with any HTTP library.

``RawServer(*scripts)`` responds to its n-th request with the n-th script, and to all later requests with the last one. A
script is the bytes of a response, or a function of the :class:`Peer` and the :class:`Received` request. ``greet`` runs on
each new connection before its first request is read: for example a TLS handshake, a reset, or silence.
"""

from __future__ import annotations

import atexit
import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self, TypeAlias

    Script: TypeAlias = "bytes | Callable[[Peer, Received], object]"

__all__ = [
    "CHUNKS",
    "WAIT_TIMEOUT",
    "Authority",
    "Peer",
    "RawServer",
    "Received",
    "authority",
    "byte_by_byte",
    "chunked",
    "closing",
    "dripping",
    "ending",
    "full_port",
    "halting",
    "handshaking",
    "head",
    "refusing_port",
    "reply",
    "resetting",
    "silent",
]

WAIT_TIMEOUT = 10.0
"""Seconds after which all waits of the server end."""

LINGER_ZERO = struct.pack("ii", 1, 0)
AGES_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Received:
    """One request as it arrived: its number, the number of its connection, its head and body."""

    number: int
    connection: int
    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        """The request line."""
        return self.head.decode("latin-1").split("\r\n")[0]

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header names as sent, with their values, in order."""
        lines = self.head.decode("latin-1").rstrip("\r\n").split("\r\n")[1:]
        return [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]

    def header(self, wanted: str) -> str:
        """Return the first value of a header (the case of its name is ignored), or an empty text."""
        return next((value for name, value in self.headers if name.lower() == wanted.lower()), "")

    @property
    def sig(self) -> str:
        """The value of ``sig`` in the request line."""
        return self.line.partition("sig=")[2].partition(" ")[0].partition("&")[0]


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        self.sock = sock
        self._buffer = b""
        sock.settimeout(WAIT_TIMEOUT)

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self.sock.fileno() == -1

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the server's side of a TLS handshake."""
        self.sock.getpeername()  # raises if the connection was reset: wrap_socket would then leave a socket open
        self.sock = context.wrap_socket(self.sock, server_side=True, do_handshake_on_connect=False)
        self.sock.do_handshake()

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        self.sock.sendall(data)

    def send_below_tls(self, data: bytes) -> None:
        """Send without encryption on a TLS connection."""
        with socket.socket(fileno=socket.dup(self.sock.fileno())) as plain:
            plain.sendall(data)

    def read_head(self) -> bytes:
        """Return the bytes up to the empty line, or no bytes if the connection ends before it."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                return b""
        head, end, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head + end

    def read_body(self, head: bytes) -> bytes | None:
        """Return the body, as long as the head's Content-Length, or None if the connection ends before."""
        lines = head.lower().split(b"\r\n")
        length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(self._buffer) < length:
            if not self._more():
                return None
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return body

    def _more(self) -> bool:
        part = self.sock.recv(65536)
        self._buffer += part
        return bool(part)

    def wait_closed(self) -> None:
        """Read until the other end closes."""
        while self.sock.recv(65536):
            pass

    def close(self) -> None:
        """Close the connection regularly."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def reset(self) -> None:
        """Close the connection with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.sock.close()

    def interrupt(self) -> None:
        """End all waits of this connection's thread, from another thread."""
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class RawServer:
    """A server on a free port of 127.0.0.1, in its own threads, which end with the ``with`` block.

    - ``scheme``: ``https`` if clients are to speak TLS; then ``greet`` does the handshake (see :func:`handshaking`).
    - ``head_only``: the scripts read the bodies of requests.
    - ``host``: another address of this machine, such as ``::1``.
    - ``path``: the path of a UNIX socket to listen on, instead of a port.
    - ``receive_buffer``: bytes that the system accepts while no script reads (default: the system's own limit).
    """

    def __init__(  # noqa: PLR0913  # each by keyword, and with a default
        self,
        *scripts: Script,
        greet: Callable[[Peer], object] | None = None,
        scheme: str = "http",
        head_only: bool = False,
        host: str = "127.0.0.1",
        path: str | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self.scripts: tuple[Script, ...] = scripts or (reply(b"{}"),)
        self.greet = greet
        self.scheme = scheme
        self.head_only = head_only
        self.host = host
        self.port = 0
        self.requests: list[Received] = []
        self.peers: list[Peer] = []
        self.open: set[int] = set()
        self._path = path
        self._receive_buffer = receive_buffer
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._leaving = False

    def __enter__(self) -> Self:
        if self._path is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self._path)
            self._listener.listen(1024)
        else:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            self._listener = socket.create_server((self.host, 0), family=family, backlog=1024)
            self.port = self._listener.getsockname()[1]
        if self._receive_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving = True
        with socket.socket(self._listener.family) as last:
            last.settimeout(WAIT_TIMEOUT)
            last.connect(self._listener.getsockname())
        self._threads[0].join(WAIT_TIMEOUT)
        self._listener.close()
        for peer in self.peers:
            peer.interrupt()
        for thread in self._threads:
            thread.join(WAIT_TIMEOUT)
        if any(thread.is_alive() for thread in self._threads):
            raise AssertionError("a script of the server does not end: it must return when its connection is closed")

    @property
    def accepted(self) -> int:
        """The number of connections accepted so far."""
        return len(self.peers)

    def url(self, scheme: str | None = None) -> str:
        """Return the server's origin."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme or self.scheme}://{host}:{self.port}"

    def wait_until(self, condition: Callable[[RawServer], object], seconds: float = WAIT_TIMEOUT) -> bool:
        """Wait until the condition is true; False if it is not within ``seconds``. Blocks: call it in another thread."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: condition(self), seconds))

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            if self._leaving:
                sock.close()
                return
            peer = Peer(sock, len(self.peers))
            with self._changed:
                self.peers.append(peer)
                self.open.add(peer.number)
                self._changed.notify_all()
            self._start(self._serve, peer)

    def _serve(self, peer: Peer) -> None:
        try:
            with suppress(OSError):  # the client has closed, or was silent for too long
                self._serve_requests(peer)
        finally:
            peer.close()
            with self._changed:
                self.open.discard(peer.number)
                self._changed.notify_all()

    def _serve_requests(self, peer: Peer) -> None:
        if self.greet is not None:
            self.greet(peer)
        while not peer.closed and (head := peer.read_head()):
            body = b"" if self.head_only else peer.read_body(head)
            if body is None:
                return
            with self._changed:
                request = Received(len(self.requests), peer.number, head, body)
                self.requests.append(request)
                self._changed.notify_all()
            script = self.scripts[min(request.number, len(self.scripts) - 1)]
            if isinstance(script, bytes):
                peer.send(script)
            else:
                script(peer, request)


@contextmanager
def refusing_port() -> Generator[int]:
    """Give a port of 127.0.0.1 that refuses connections and is reserved inside the block."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def full_port() -> Generator[int]:
    """Give a port of 127.0.0.1 where connecting never succeeds: the system keeps connections waiting, or refuses them."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.settimeout(0)
                filler.connect_ex(listener.getsockname())
            yield listener.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


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

    def trusted(self, *, bundle: bool = False) -> dict[str, Any]:
        """Return the transport option that makes it trust this authority; with ``bundle`` it is the path of a CA bundle."""
        if bundle:
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


def handshaking(context: ssl.SSLContext | None = None) -> Callable[[Peer], None]:
    """Return a ``greet`` that does a TLS handshake on each new connection (default: as 127.0.0.1)."""
    chosen = context or authority().of_a_server()
    return lambda peer: peer.start_tls(chosen)


def reply(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    """Return the bytes of a response with a Content-Length."""
    return head(status, f"Content-Length: {len(body)}", *headers) + body


def head(status: str, *headers: str) -> bytes:
    """Return the bytes of a response head."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1")


CHUNKS = head("200 OK", "Transfer-Encoding: chunked")


def chunked(*parts: bytes) -> bytes:
    """Return the bytes of a chunked response."""
    return CHUNKS + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


# Scripts.


def closing(data: bytes = b"") -> Callable[[Peer, Received], None]:
    """Return a script that sends these bytes, then closes the connection."""

    def script(peer: Peer, _: Received) -> None:
        peer.send(data)
        peer.close()

    return script


def ending(data: bytes = b"") -> Callable[[Peer, Received], None]:
    """Return a script that sends these bytes and an end of file, then waits until the client closes the connection."""

    def script(peer: Peer, _: Received) -> None:
        peer.send(data)
        peer.sock.shutdown(socket.SHUT_WR)
        peer.wait_closed()

    return script


def halting(data: bytes = b"") -> Callable[..., None]:
    """Return a script that sends these bytes, and nothing more until the client closes the connection."""

    def script(peer: Peer, _: Received | None = None) -> None:
        peer.send(data)
        peer.wait_closed()

    return script


def silent(peer: Peer, _: Received | None = None) -> None:
    """Send nothing until the client closes the connection: a script, or a ``greet``."""
    peer.wait_closed()


def dripping(before: bytes, each: bytes) -> Callable[[Peer, Received], None]:
    """Return a script that sends bytes slowly, but often enough that a time-out between reads never ends."""

    def script(peer: Peer, _: Received) -> None:
        peer.send(before)
        until = time.monotonic() + WAIT_TIMEOUT
        while time.monotonic() < until:
            time.sleep(0.01)
            peer.send(each)

    return script


def byte_by_byte(data: bytes) -> Callable[[Peer, Received], None]:
    """Return a script that sends these bytes in segments of one byte."""

    def script(peer: Peer, _: Received) -> None:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(data)):
            peer.send(data[place : place + 1])

    return script


def resetting(peer: Peer, _: Received | None = None) -> None:
    """Reset the connection."""
    peer.reset()
