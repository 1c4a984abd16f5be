"""An ASGI application over real HTTP on a free loopback port, in this process and event loop. Needs the extra ``server``."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from typing import Any

__all__ = ["serving"]

PATIENCE = 1  # seconds that the server's end waits for connections that somebody still holds


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[str]:  # any ASGI 3 application
    """Serve the application while the block runs; gives its base URL, ``http://127.0.0.1:PORT``."""
    # asyncio sends without delay only on sockets that say they speak TCP: otherwise each answer waits 40 ms for an ACK
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        server = _Server(
            uvicorn.Config(
                app,
                log_level="warning",
                log_config=None,  # whoever runs this decides on logging
                access_log=False,
                interface="asgi3",
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=PATIENCE,
            )
        )
        running = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            await server.ready.wait()
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await running


class _Server(uvicorn.Server):
    """Tells when it is ready, and leaves the process's signal handlers alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
