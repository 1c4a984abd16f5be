"""uvicorn's HTTP protocol with limits for untrusted clients.

States of a connection, and their timeouts:

- new: no request yet. Its whole head must arrive within HEAD_TIMEOUT.
- active: a request waits for its response, which must be written within RESPONSE_TIMEOUT.
- idle: between requests, with nothing received. It is kept for uvicorn's keep-alive timeout.
- reading: a later request has begun. The rest of its head must arrive within HEAD_TIMEOUT.

After a timeout the connection is aborted. The table holds all connections except active ones. While there are more
connections than its limit, the oldest new one is aborted, else the oldest of the idle and reading ones; active ones never.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn import Config
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
    from uvicorn.server import ServerState

__all__ = ["HEAD_TIMEOUT", "MAX_CONNECTIONS", "RESPONSE_TIMEOUT", "ConnectionTable", "LimitedConnection", "max_connections"]

HEAD_TIMEOUT = 5.0
"""Seconds for the whole head of a request, from the start of the connection, or from the first byte of a later request."""

RESPONSE_TIMEOUT = 15.0
"""Seconds for a whole response; the client must have read it, except for what buffers hold."""

MAX_CONNECTIONS = 1000
"""The maximum number of connections, if the process may have twice as many open files."""


def max_connections() -> int:
    """Return the maximum number of connections: MAX_CONNECTIONS, or half the limit of open files."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    from resource import RLIMIT_NOFILE, getrlimit

    files = getrlimit(RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files < 0 else max(1, min(MAX_CONNECTIONS, files // 2))


class ConnectionTable:
    """The connections of a server without a pending response, the oldest first; ``known`` had a request before."""

    def __init__(self) -> None:
        self.limit = max_connections()
        self.head_timeout = HEAD_TIMEOUT
        self.response_timeout = RESPONSE_TIMEOUT
        self.new: dict[LimitedConnection, None] = {}
        self.known: dict[LimitedConnection, None] = {}

    def forget(self, connection: LimitedConnection) -> None:
        """Remove a connection from the table."""
        self.new.pop(connection, None)
        self.known.pop(connection, None)

    def close_idle(self) -> bool:
        """Abort the oldest connection without a request, else the oldest between requests. Return whether there was one."""
        connection = next(iter(self.new or self.known), None)
        if connection is None:
            return False
        connection.abort()
        return True


class LimitedConnection(H11Protocol):
    """A connection with a timeout in every state; between requests it may be closed to make room for others."""

    def __init__(self, config: Config, state: ServerState, table: ConnectionTable) -> None:
        super().__init__(config, state, {})
        self._table = table
        self._seconds: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Accept the connection; close idle ones if there are too many."""
        super().connection_made(transport)
        while len(self.connections) > self._table.limit and self._table.close_idle():
            pass
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
