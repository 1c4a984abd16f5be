"""uvicorn's HTTP protocol, for connections from anywhere: one that asks for nothing is closed, before it is in the way."""

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

__all__ = ["ANSWERED", "AT_ONCE", "BEGUN", "ConnectionTable", "LimitedConnection", "most"]

BEGUN = 5.0
"""Seconds until a new connection's first request has a whole head; and until a later one has, from its first byte on."""

ANSWERED = 15.0
"""Seconds until a request has its whole answer, which who asked must have read but for what buffers hold."""

AT_ONCE = 1000
"""Connections at most, where the process may have twice as many open files."""


def most() -> int:
    """Return how many connections there may be."""
    if sys.platform == "win32":
        return AT_ONCE
    from resource import RLIMIT_NOFILE, getrlimit

    files = getrlimit(RLIMIT_NOFILE)[0]
    return AT_ONCE if files < 0 else max(1, min(AT_ONCE, files // 2))


class ConnectionTable:
    """The connections of a server that are owed no answer, of either kind the one first that has been so for longest."""

    def __init__(self) -> None:
        self.most = most()
        self.begun = BEGUN
        self.answered = ANSWERED
        self.new: dict[LimitedConnection, None] = {}
        self.known: dict[LimitedConnection, None] = {}

    def leave(self, connection: LimitedConnection) -> None:
        """Forget a connection."""
        self.new.pop(connection, None)
        self.known.pop(connection, None)

    def give_way(self) -> bool:
        """Close a connection that nothing came of yet, or else one that is between requests. Return whether there is one."""
        found = next(iter(self.new or self.known), None)
        if found is None:
            return False
        found.drop()
        return True


class LimitedConnection(H11Protocol):
    """One connection. It is closed after a while in which nothing comes of it. Between requests it gives way to others."""

    def __init__(self, config: Config, state: ServerState, crowd: ConnectionTable) -> None:
        super().__init__(config, state, {})
        self._crowd = crowd
        self._within: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Take the connection, in place of an idle one where there are too many."""
        super().connection_made(transport)
        while len(self.connections) > self._crowd.most and self._crowd.give_way():
            pass
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._rest(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        self._rest(None)
        super().on_response_complete()
        self._watch()

    def drop(self) -> None:
        """Close the connection, whatever the other end does."""
        self._rest(None)
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """Give the other end the time that it has in the state in which the connection is now."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if self.transport.is_closing():
            self._rest(None)
        elif not (cycle is None or cycle.response_complete):
            self._rest(self._crowd.answered, idle=False)
        elif cycle is not None and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._rest(self.timeout_keep_alive)
        else:
            self._rest(self._crowd.begun)

    def _rest(self, within: float | None, *, idle: bool = True) -> None:
        if within == self._within:
            return
        self._within = within
        self._crowd.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if within is not None:
            if idle:
                kind = self._crowd.known if cast("RequestResponseCycle | None", self.cycle) else self._crowd.new
                kind[self] = None
            self._timer = self.loop.call_later(within, self.drop)
