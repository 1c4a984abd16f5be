"""uvicorn's HTTP protocol with limits for untrusted clients.

States of a connection, and their timeouts:

- new: no request yet. Its whole head must arrive within HEAD_TIMEOUT.
- active: a request waits for its response, which must be written within RESPONSE_TIMEOUT.
- idle: between requests, with nothing received. It is kept for uvicorn's keep-alive timeout.
- reading: a later request has begun. The rest of its head must arrive within HEAD_TIMEOUT.

After a timeout the connection is aborted. The table holds all connections except active ones. While there are more
connections than its limit, one gives way (it is aborted): the oldest new one if it has been silent for QUIET, else the
oldest of the idle and reading ones, else the oldest new one. Active ones never give way. In a burst each new connection is
about to send its request, and those that have their answer are the ones that may end.

The answers of a page may be streams of events: they have no timeout. Where all its connections are active, the newest is
aborted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn import Config
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
    from uvicorn.server import ServerState

__all__ = [
    "HEAD_TIMEOUT",
    "QUIET",
    "RESPONSE_TIMEOUT",
    "ConnectionTable",
    "LimitedConnection",
]

log = logging.getLogger(__name__)

HEAD_TIMEOUT = 5.0
"""Seconds for the whole head of a request, from the start of the connection, or from the first byte of a later request."""

RESPONSE_TIMEOUT = 15.0
"""Seconds for a whole response; the client must have read it, except for what buffers hold."""

QUIET = 1.0
"""Seconds in which a new connection is given the time to send its request."""

REPORT_PAUSE = 1.0  # seconds in which connections that gave way are counted for one line of the log


class ConnectionTable:
    """The connections of a server without a pending response, the oldest first; ``known`` had a request before.

    ``page``: for the page of a command (see the module); nothing is logged.
    """

    def __init__(self, limit: int, *, page: bool = False) -> None:
        self.limit = limit
        self.page = page
        self.quiet = QUIET
        self.head_timeout = HEAD_TIMEOUT
        self.response_timeout = None if page else RESPONSE_TIMEOUT
        self.new: dict[LimitedConnection, None] = {}
        self.known: dict[LimitedConnection, None] = {}

        self._gave_way = 0

    def forget(self, connection: LimitedConnection) -> None:
        """Remove a connection from the table."""
        self.new.pop(connection, None)
        self.known.pop(connection, None)

    def make_room(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Abort the connection that gives way first. Return whether there was one."""
        new, known = (next(iter(kind), None) for kind in (self.new, self.known))
        quiet = new is not None and loop.time() - new.began >= self.quiet
        connection = new if quiet or known is None else known
        if connection is None:
            return False
        connection.abort()
        if not self._gave_way and not self.page:
            loop.call_later(REPORT_PAUSE, self.report)
        self._gave_way += 1
        return True

    def report(self) -> None:
        """Log how many connections gave way since the last report, if any."""
        count, self._gave_way = self._gave_way, 0
        if count:
            log.warning(
                "%d %s to others: at most %d are open at once (--connections)",
                count,
                "connection gave way" if count == 1 else "connections gave way",
                self.limit,
            )


class LimitedConnection(H11Protocol):
    """A connection with a timeout in every state; between requests it may be closed to make room for others."""

    def __init__(self, config: Config, state: ServerState, table: ConnectionTable) -> None:
        super().__init__(config, state, {})
        self._table = table
        self.began = self.loop.time()
        self._seconds: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Accept the connection; close idle ones if there are too many."""
        super().connection_made(transport)
        while len(self.connections) > self._table.limit and self._table.make_room(self.loop):
            pass
        if self._table.page and len(self.connections) > self._table.limit:
            self.abort()
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        super().data_received(data)
        self._update_deadline()

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        self._set_deadline(None)
        super().on_response_complete()
        self._update_deadline()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's signature
        """Answer bytes that are not HTTP with 400, unless an answer has begun, and close the connection.

        uvicorn's own fails after a HEAD request, and lets the application answer the same request a second time.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("connection", "close"), ("content-length", "0")]
            self.transport.write(self.conn.send(h11.Response(status_code=400, headers=headers, reason=STATUS_PHRASES[400])))
        self.transport.close()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def shutdown(self) -> None:
        """Close the connection, or announce in the pending response that it is the last."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_started:
            cycle.default_headers = [*cycle.default_headers, (b"connection", b"close")]
        super().shutdown()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore the request for another protocol in silence: clients of HTTP/2 ask for one, and the answer says enough."""

    def abort(self) -> None:
        """Close the connection without waiting for the other end."""
        self._set_deadline(None)
        self.connections.discard(self)
        self.transport.abort()

    def _update_deadline(self) -> None:
        """Set the timeout of the current state."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if self.transport.is_closing():
            self._set_deadline(None)
        elif not (cycle is None or cycle.response_complete):
            self._set_deadline(self._table.response_timeout, idle=False)
        elif cycle is not None and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._set_deadline(self.timeout_keep_alive)
        else:
            self._set_deadline(self._table.head_timeout)

    def _set_deadline(self, seconds: float | None, *, idle: bool = True) -> None:
        if seconds == self._seconds:
            return
        self._seconds = seconds
        self._table.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            if idle:
                kind = self._table.known if cast("RequestResponseCycle | None", self.cycle) else self._table.new
                kind[self] = None
            self._timer = self.loop.call_later(seconds, self.abort)
