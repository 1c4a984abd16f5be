"""One connection: an asyncio protocol that writes a request and sets the result of a future to its response."""

# States of a connection, and what moves it between them:
#
#   opening -> ready   ``connection_made``, then, if the route needs them, the tunnel and ``start_tls``
#   opening -> closed  ``abort``, if opening fails or is cancelled; the same from ready
#   ready -> busy      ``expect``: a future waits for a response, and the timer is set for its deadline at the latest
#   idle -> busy       ``expect``, after the transport took the connection from the stack ``idle``
#   busy -> idle       ``_settle(reusable=True)``: the response is complete, nothing came behind it, the request is written
#   busy -> ready      the same for the response to CONNECT, which does not put the connection on the stack
#   busy -> closed     ``_settle`` otherwise (fault, lost connection, deadline), ``fail``, ``abandon`` (cancelled)
#   idle -> closed     any byte or end of file, MAX_IDLE seconds without a request, too old for the request, ``fail``
#
# Always true: ``_waiter`` is set exactly while the connection is busy, and its future gets at most one result. Only an idle
# connection is in the stack ``idle``. From ``register`` (it is open) to ``connection_lost`` it is in ``open_connections``.
# There is at most one timer. It is not moved when a request begins unless it would fire too late; when it fires early, it
# is set again. A connection that may carry bytes of another response is never idle: that response would be the next one's.

from __future__ import annotations

import asyncio
import select
import ssl
import time
from typing import TYPE_CHECKING, cast

from attrs import frozen

from rbim.errors import AnswerTooLarge, Unanswered
from rbim.transports._shared.redaction import redacted, sanitized
from rbim.transports.asyncio.answer import AnswerReader, KnownHeads

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.errors import TransportError
    from rbim.http import Request, Response

__all__ = ["MAX_TIMER", "Broken", "Connection", "Idle"]

MAX_IDLE = 60.0  # seconds after which an idle connection is closed
MAX_TIMER = 3600.0
"""The longest timer in seconds: a time-out may be infinite, but a timer of uvloop may not."""


@frozen
class Broken:
    """The reason why there is no response.

    ``reason`` is rbim's own text, ``error`` an exception from below (or None). ``late``: the deadline passed. ``limit``: the
    body was longer than this many bytes.
    """

    reason: str = ""
    error: Exception | None = None
    late: bool = False
    limit: int | None = None

    def to_error(self, request: Request) -> TransportError:
        """Return the error to raise, without secrets of the request."""
        if self.limit is not None:
            return AnswerTooLarge(self.reason, limit=self.limit)
        if self.error is None:
            return Unanswered(self.reason)
        cause = sanitized(self.error, request.secrets)
        failure = Unanswered(f"{self.reason}: {type(cause).__name__}: {redacted(str(cause), request.secrets)}")
        failure.__cause__ = cause
        return failure


class Connection(asyncio.BufferedProtocol):
    """One connection to one origin, idle or with one request in flight (see the states above)."""

    __slots__ = (
        "_buffer",
        "_deadline",
        "_idle",
        "_known",
        "_loop",
        "_open_connections",
        "_poll",
        "_reader",
        "_secure",
        "_timer",
        "_timer_at",
        "_tunnel",
        "_waiter",
        "idle_since",
        "transport",
    )

    def __init__(  # all of this is shared by the connections of one transport or route
        self,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        known: KnownHeads,
        idle: Idle,
        open_connections: set[Connection],
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._known = known
        self._idle = idle
        self._open_connections = open_connections
        self._reader = AnswerReader(known)
        self._waiter: asyncio.Future[Response | Broken] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._timer_at = 0.0
        self._secure = self._tunnel = False
        self._poll: Callable[[], object] | None = None
        self.idle_since = 0.0
        self.transport: asyncio.Transport | None = None

    # Called by the transport.

    @property
    def closing(self) -> bool:
        """Whether nothing can be written to the connection."""
        return self.transport is None or self.transport.is_closing()

    @property
    def stale(self) -> bool:
        """Whether the idle connection was closed or has unread data, even if the event loop has not seen it yet."""
        if self.closing:
            return True
        if self._poll is None:
            self._poll = _poll(self._open_transport.get_extra_info("socket").fileno())
        return bool(self._poll())

    def expect(self, deadline: float, *, tunnel: bool = False) -> asyncio.Future[Response | Broken]:
        """Return the future of the response to the next request; ``deadline`` is a time of the monotonic clock."""
        self._reader.begin(tunnel=tunnel)
        self._waiter = waiter = self._loop.create_future()
        self._deadline = deadline
        self._tunnel = tunnel
        if self._timer is None or self._timer_at > deadline:
            self._set_timer(deadline)
        return waiter

    def write(self, message: bytes) -> None:
        """Write one complete request. The frames of an exception from here contain ``message``."""
        self._open_transport.write(message)

    def abandon(self, waiter: asyncio.Future[Response | Broken]) -> None:
        """Close the connection if it still works for this future, whose caller has stopped waiting."""
        if self._waiter is waiter:
            self._waiter = None
            self.abort()

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS on the open connection. Raises ConnectionResetError if it is closed before the handshake ends."""
        secure = None
        if not self.closing:
            secure = await self._loop.start_tls(self._open_transport, self, context, server_hostname=host)
        if secure is None:
            raise ConnectionResetError("the connection was closed before the TLS handshake was complete")
        self.transport = secure
        self._secure = True
        self._reader = AnswerReader(self._known)  # the last one has read the response of a proxy

    def register(self) -> None:
        """Add this connection to ``open_connections``, until it is lost."""
        if not self.closing:
            self._open_connections.add(self)

    def abort(self) -> None:
        """Close the connection at once."""
        self._retire()
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close the idle connection; with TLS, send close_notify but do not wait for the reply."""
        self._retire()
        if self.transport is not None:
            self.transport.close()
            if self._secure:
                self.transport.abort()

    def fail(self, reason: str) -> None:
        """Fail the current request with this reason, or close the connection if it is idle."""
        if self._waiter is not None:
            self._settle(Broken(reason))
        else:
            self.close()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the buffer has a fixed size
        """Return the buffer to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read a part of the response; without a request, close the connection."""
        if self._waiter is None:
            self.abort()
        elif self._reader.feed(self._buffer[:nbytes]):
            if nbytes == len(self._buffer):  # TLS may hold more bytes, and nothing shows it
                self._reader.reusable = False
            self._conclude()

    def eof_received(self) -> None:
        """Handle the end of the server's data."""
        if self._waiter is None:
            self.abort()
        elif self._secure and not self._closed_by_tls():
            self._lose(None)
        else:
            self._reader.end()
            self._conclude()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the current request, if there is one."""
        self._retire()
        self._open_connections.discard(self)
        if self._waiter is not None:
            self._lose(exc)

    # Internal.

    def _closed_by_tls(self) -> bool:
        """Whether the server closed the TLS connection with close_notify: anyone on the path can close the TCP connection.

        asyncio does not distinguish the two, and neither do Python's TLS contexts by default.
        """
        try:
            left = self._open_transport.get_extra_info("ssl_object").read(1)
        except ssl.SSLError:
            return False
        return not left

    @property
    def _open_transport(self) -> asyncio.Transport:
        assert self.transport is not None  # noqa: S101  # only called after connection_made
        return self.transport

    def _lose(self, error: Exception | None) -> None:
        where = "within" if self._reader.begun else "before"
        self._settle(Broken(f"the connection was lost {where} the response", error))

    def _conclude(self) -> None:
        reader = self._reader
        if reader.whole:
            self._settle(reader.response(), reusable=reader.reusable)
        else:
            self._settle(Broken(reader.fault, limit=self._known.limit if reader.too_large else None))

    def _settle(self, outcome: Response | Broken, *, reusable: bool = False) -> None:
        """Set the result of the future; then put the connection on its stack, or close it."""
        waiter, self._waiter = self._waiter, None
        tunnelled, self._tunnel = self._tunnel, False
        assert waiter is not None  # noqa: S101  # only a busy connection can be settled
        if waiter.done():  # cancelled
            reusable = False
        else:
            waiter.set_result(outcome)
        transport = self._open_transport
        if reusable and not transport.is_closing() and not transport.get_write_buffer_size():
            self.idle_since = time.monotonic()
            if not tunnelled:
                self._idle[self] = None
        else:  # also if the response came before the request was completely written
            self.abort()

    def _retire(self) -> None:
        self._idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_later(min(max(when - time.monotonic(), 0.0), MAX_TIMER), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        due = self.idle_since + MAX_IDLE if self._waiter is None else self._deadline
        if due > time.monotonic():
            self._set_timer(due)
        elif self._waiter is None:
            self.close()
        else:
            self._settle(Broken(late=True))


Idle = dict[Connection, None]
"""A stack of idle connections that can lose any of its items: ``popitem`` removes the one added last."""


def _poll(descriptor: int) -> Callable[[], object]:
    """Return a function that tells whether there is data to read or an end of file."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return lambda: poll.poll(0)
    return lambda: select.select([descriptor], [], [], 0)[0]  # Windows
