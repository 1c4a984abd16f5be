"""The server of a page: one socket on the loopback, with a free port. Needs the extra ``server``; asyncio only."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from rbim._support.sockets import bound_to

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.cli.page.app import LocalPageApp

__all__ = ["LocalPageServer"]

LOOPBACK = "127.0.0.1"
IDLE = 75  # seconds after which a connection without requests is closed
MAX_HEAD = 16 * 1024  # bytes in the head of a request
BACKLOG = 64
LAST_WORDS = 0.2  # seconds in which an answer may end by itself


def _without_traceback(app: LocalPageApp) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an application that ends quietly when its server does; uvicorn would log a traceback."""

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return quiet


class LocalPageServer:
    """Serves an application on the loopback while its block runs; ``port`` is known in it."""

    def __init__(self, app: LocalPageApp) -> None:
        self.port = 0
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._config = Config(
            _without_traceback(app),
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE,
            h11_max_incomplete_event_size=MAX_HEAD,
        )

    async def __aenter__(self) -> Self:
        self._config.load()
        listening: socket.socket = await bound_to(LOOPBACK, 0)
        self.port = int(listening.getsockname()[1])
        self._server = await asyncio.get_running_loop().create_server(
            lambda: H11Protocol(self._config, self._state, {}), sock=listening, backlog=BACKLOG
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close the port and all connections, without waiting for readers that are slow or stuck."""
        if self._server is not None:
            self._server.close()
        tasks: set[asyncio.Task[Any]] = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
