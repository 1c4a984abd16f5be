"""One listening socket of the emulator's server, with its connections. Needs the extra ``server``; asyncio only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rbim._support.sockets import bound, bound_to, reserve
from rbim.emulator.server.protocol import Config, Heads, Protocol, ServerState

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from rbim._support.asgi import Receive, Scope, Send

__all__ = ["Listener"]

IDLE = 75  # seconds after which a connection without requests is closed


class Listener:
    """Serves an ASGI application at one address, and can refuse connections without giving the port away.

    It is *unbound*; then *listening*, from :meth:`bind` on; *refusing* between :meth:`refuse` and :meth:`listen`; and
    *closed* after :meth:`close`. While it refuses, its socket is bound and does not listen.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        heads: Heads,
    ) -> None:
        self._heads = heads
        self.host = ""
        self.port = 0
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._state = ServerState()
        self._config = Config(
            app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,  # the process configures logging
            proxy_headers=False,
            timeout_keep_alive=IDLE,
        )

    @property
    def listening(self) -> bool:
        """Whether connections are accepted now."""
        return self._server is not None

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The requests in progress."""
        return self._state.tasks

    async def bind(self, host: str, port: int) -> None:
        """Listen at an address. Raises OSError, with the address as its filename, if it is in use or not of this machine."""
        try:
            self._socket = await bound_to(host, port)
        except OSError as error:
            error.filename = f"{host} port {port}"
            raise
        name: Any = self._socket.getsockname()  # its form depends on the address family
        self.host, self.port = str(name[0]), int(name[1])
        await self.listen()

    async def listen(self) -> None:
        """Accept connections, if it does not already. Raises OSError if another process listens at the address by now."""
        if self._server is not None or self._socket is None:
            return
        reserve(self._socket, alone=False)
        self._socket.listen(self._config.backlog)  # before asyncio knows the socket: a failure changes nothing
        server = self._server = await asyncio.get_running_loop().create_server(
            lambda: Protocol(self._config, self._state, lambda: self.listening, self._heads),
            sock=self._socket,
            backlog=self._config.backlog,
            start_serving=False,
        )
        await server.start_serving()

    def refuse(self) -> None:
        """Refuse connections from now on; existing ones stay."""
        if self._socket is None:
            raise RuntimeError("the server is not entered: enter it with 'async with' first")
        if self._server is not None:
            family, address = self._socket.family, self._socket.getsockname()
            self._server.close()
            self._server = None
            self._socket = bound(family, address)  # bound, not listening: it refuses connections and keeps the port
            reserve(self._socket, alone=True)

    async def close(self) -> None:
        """Give the port away and close all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        await self.close_connections()

    async def close_connections(self) -> None:
        """Close all connections, without waiting for peers that do not read."""
        for connection in self._state.connections:
            connection.transport.close()
        await asyncio.sleep(0)
        for connection in self._state.connections:
            connection.transport.abort()
        await asyncio.sleep(0)
