"""One connection of an asyncio event loop: a socket, TLS on top of it, and one timer for its deadlines."""

# States of a link, and what moves it between them:
#
#   opening -> busy    it is open; ``expect`` begins an exchange and sets its deadline
#   busy -> idle       ``rest``: the exchange is complete; its owner puts the link on the stack of idle links
#   idle -> busy       the owner takes the link from the stack; then ``expect``
#   busy -> closed     ``abort``, a lost connection; the deadline calls ``late``, which decides
#   idle -> closed     any byte or end of file, ``max_idle`` seconds without an exchange, a lost connection
#
# Always true: only an idle link is on the stack ``idle``. From ``register`` (it is open) to ``connection_lost`` a link is in
# ``links``. There is at most one timer. It is not moved when an exchange begins unless it would fire too late; when it fires
# early, it is set again. A link that may carry bytes of another response is never idle: it would be read as the next one.

from __future__ import annotations

import asyncio
import math
import ssl
import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rbim.transports._shared.network import ip_of, readable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GRACE", "MAX_TIMER", "READ_SIZE", "Deadline", "DeadlinePassed", "LinkProtocol", "Links"]

MAX_TIMER = 3600.0
"""The longest timer in seconds: a time-out may be infinite, but a timer of uvloop may not."""

GRACE = 1.0
"""The most seconds after a deadline in which what has arrived is read: the event loop may have been blocked, or stopped."""

READ_SIZE = 64 * 1024
"""Bytes per read: with more, asyncio's reads cost page faults."""

TURNS = 8  # turns of the event loop in which TLS passes on what was read, and a task takes it
CLOSE_TURNS = 10  # turns of the event loop; closed connections need two or three of them
HAPPY_EYEBALLS_DELAY = 0.25  # seconds before the next address is tried in parallel, as RFC 8305 recommends


class DeadlinePassed(Exception):
    """The deadline of an exchange has passed."""


class Deadline:
    """A time of the event loop that ends the block of ``scope``, after the loop has read what has arrived.

    A timer may fire before that: the loop was blocked, or the process was stopped. So the loop turns on while ``unread``
    tells that there is data, but not for longer than GRACE, and a few times more, so that the task of the block takes it.
    """

    def __init__(self, when: float, unread: Callable[[], bool]) -> None:
        self.scope = asyncio.timeout(None)
        self._when = when
        self._unread = unread
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_at(when, self._end, TURNS) if when < math.inf else None

    def stop(self) -> None:
        """Stop: the block has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, turns: int) -> None:
        if turns and self._loop.time() < self._when + GRACE:
            self._timer = self._loop.call_later(0, self._end, TURNS if self._unread() else turns - 1)
        else:
            self.scope.reschedule(0)


class Links:
    """The open links of one transport, in one event ``loop``, and the buffer into which they read.

    ``opening`` are the timeouts of those that are being opened. Links that were idle for ``max_idle`` seconds are closed.
    """

    def __init__(self, max_idle: float) -> None:
        self.max_idle = max_idle
        self.loop = asyncio.get_running_loop()
        self.open: set[LinkProtocol] = set()
        self.opening: set[asyncio.Timeout] = set()
        self._buffer = memoryview(bytearray(READ_SIZE))

    def read_buffer(self) -> memoryview:
        """Return the read buffer of a link: one for all, except on Windows, whose loop reads into several at once."""
        return memoryview(bytearray(READ_SIZE)) if sys.platform == "win32" else self._buffer

    async def close(self) -> None:
        """End every link: an exchange in flight fails. Wait until the event loop has closed them."""
        for timeout in self.opening:
            if not timeout.expired():
                timeout.reschedule(0.0)
        for link in [*self.open]:
            if link.busy:
                link.lost(None, "the transport was closed")
            else:
                link.close()
        for _ in range(CLOSE_TURNS):
            if self.open:
                await asyncio.sleep(0)


class LinkProtocol(asyncio.BufferedProtocol, ABC):
    """One connection to one origin, idle or in an exchange (see the states above).

    A subclass reads (``buffer_updated``), and says what ends an exchange: ``late`` (its deadline), ``lost`` (the connection)
    and ``ended`` (the end of the server's data).
    """

    def __init__(self, links: Links, idle: dict[Any, None]) -> None:
        self._loop = links.loop
        self._links = links.open
        self._max_idle = links.max_idle
        self._buffer = links.read_buffer()
        self._idle = idle
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._timer_at = 0.0
        self._turns = TURNS
        self._secure = False
        self._poll: Callable[[], object] | None = None
        self.busy = False
        self.idle_since = 0.0
        self.transport: Any = None
        """The transport of asyncio, from ``connection_made`` on."""

    # Called by a transport.

    @property
    def closing(self) -> bool:
        """Whether nothing can be written to the connection."""
        return self.transport is None or self.transport.is_closing()

    @property
    def stale(self) -> bool:
        """Whether the idle connection was closed or has unread data, even if the event loop has not seen it yet."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        if self._poll is None:
            self._poll = readable(transport.get_extra_info("socket").fileno())
        return bool(self._poll())

    async def connect(self, host: str, port: int, uds: str | None = None) -> None:
        """Connect to the host, or to the UNIX socket with this path. If this fails, the link is closed."""
        try:
            if uds is not None:
                await self._loop.create_unix_connection(lambda: self, uds)
            else:  # asyncio can try several addresses of a host in parallel, uvloop only one by one
                parallel = isinstance(self._loop, asyncio.BaseEventLoop) and ip_of(host) is None
                delay: dict[str, Any] = {"happy_eyeballs_delay": HAPPY_EYEBALLS_DELAY} if parallel else {}
                await self._loop.create_connection(lambda: self, host, port, **delay)
        except BaseException:
            self.abort()
            raise

    async def secure(self, context: ssl.SSLContext, host: str | None) -> None:
        """Start TLS on the open connection. Raises ConnectionResetError if it is closed before the handshake ends."""
        secure = None
        try:
            if not self.closing:
                secure = await self._loop.start_tls(self.transport, self, context, server_hostname=host)
        except BaseException:
            self.abort()
            raise
        if secure is None or self.closing:  # uvloop gives a transport also for a connection that was closed meanwhile
            self.abort()
            raise ConnectionResetError("the connection was closed before the TLS handshake was complete")
        self.transport = secure
        self._secure = True

    def register(self) -> None:
        """Add this link to the open ones, until it is lost."""
        if not self.closing:
            self._links.add(self)

    def expect(self, deadline: float) -> None:
        """Begin an exchange that ends by ``deadline`` (monotonic clock)."""
        self.busy = True
        self._deadline = deadline
        self._turns = TURNS
        if self._timer is None or self._timer_at > deadline:
            self._set_timer(deadline)

    def rest(self) -> bool:
        """End an exchange whose response is complete; return whether the link can serve another one.

        It cannot if the response came before the request was completely written.
        """
        transport = self.transport
        self.busy = False
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            self.abort()
            return False
        self.idle_since = time.monotonic()
        until = self.idle_since + self._max_idle
        if self._timer is None or self._timer_at > until:
            self._set_timer(until)
        return True

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

    # What ends an exchange, for subclasses.

    @abstractmethod
    def late(self) -> None:
        """Handle the deadline."""

    @abstractmethod
    def lost(self, error: Exception | None, reason: str = "the connection was lost") -> None:
        """Handle the loss of the connection, or its end for this reason."""

    @abstractmethod
    def ended(self) -> None:
        """Handle the regular end of the server's data."""

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the buffer has a fixed size
        """Return the buffer to read into."""
        return self._buffer

    def eof_received(self) -> None:
        """Handle the end of the server's data."""
        if not self.busy:
            self.abort()
        elif self._secure and not self._closed_by_tls():
            self.lost(None)
        else:
            self.ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange, if there is one."""
        busy = self.busy
        self._retire()
        self._links.discard(self)
        if busy:
            self.lost(exc)

    # Internal.

    def _closed_by_tls(self) -> bool:
        """Whether the server closed the TLS connection with close_notify: anyone on the path can close the TCP connection.

        asyncio does not distinguish the two, and neither do Python's TLS contexts by default.
        """
        try:
            left = self.transport.get_extra_info("ssl_object").read(1)
        except ssl.SSLError:
            return False
        return not left

    def _retire(self) -> None:
        self.busy = False
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
        due = self._deadline if self.busy else self.idle_since + self._max_idle
        now = time.monotonic()
        if due > now:
            self._set_timer(due)
        elif not self.busy:
            self.close()
        elif self._turns and now < due + GRACE:  # see Deadline
            self._turns = TURNS if self.stale and not self.closing else self._turns - 1
            self._set_timer(now)
        else:
            self.late()
