"""The emulator over real sockets, with uvicorn's HTTP protocol. Needs the extra ``server``; asyncio only.

The server owns the listening socket, so that it can refuse all connections for a while. The accepted connections belong to
:mod:`rbim.emulator.server.protocol`.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from rbim._support.sockets import bound, bound_to
from rbim.emulator.server.control import Control
from rbim.emulator.server.protocol import Config, Protocol, ServerState

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType
    from typing import Self

    from rbim.emulator.emulator import Emulator

__all__ = ["Server", "run", "serve"]

IDLE = 75  # seconds after which a connection without requests is closed


class Server:
    """Serves an emulator while its ``async with`` block runs; :func:`serve` creates one.

    ``host``, ``port`` and ``url``, its base URL, are final from the block's first line on.
    """

    def __init__(self, emulator: Emulator, *, host: str, port: int, control: bool) -> None:
        self.emulator = emulator
        self.host = host
        self.port = port
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._outage: asyncio.Task[None] | None = None
        self._copying: asyncio.Task[None] | None = None
        self._state = ServerState()
        self._config = Config(
            Control(emulator, outage=self._begin_outage) if control else emulator.asgi,
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
        return self._listener is not None

    @property
    def url(self) -> str:
        """The base URL, with the loopback address if the server is bound to every address of this machine."""
        host = self.host
        if ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Listen. Raises OSError if the address is in use or does not belong to this machine."""
        self._socket = await bound_to(self.host, self.port)
        name: Any = self._socket.getsockname()  # its form depends on the address family
        self.host, self.port = str(name[0]), int(name[1])
        await self._listen(self._socket)
        self._copying = asyncio.create_task(self._copy())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stop listening, close all connections, and cancel deliveries and (without an answer) requests in progress."""
        tasks = [task for task in (*self._state.tasks, self._outage, self._copying) if task is not None]
        for task in tasks:
            task.cancel()
        self._stop_listening()
        if self._socket is not None:
            self._socket.close()
        await self._close_connections()
        if tasks:
            await asyncio.wait(tasks)

    async def refuse(self, seconds: float) -> None:
        """Refuse connections for ``seconds`` of the emulator's clock, and close the existing ones.

        Returns as soon as all are closed. A new outage replaces the present one.
        """
        await self._begin_outage(seconds)()

    def _begin_outage(self, seconds: float) -> Callable[[], Awaitable[None]]:
        """Refuse connections from now on; return a function that closes the existing ones."""
        if self._outage is not None:
            self._outage.cancel()
        if self._socket is None:
            raise RuntimeError("the server is not entered: enter it with 'async with' first")
        if self._listener is not None:
            family, address = self._socket.family, self._socket.getsockname()
            self._stop_listening()
            self._socket = bound(family, address)  # bound, not listening: it refuses connections and keeps the port
        self._outage = asyncio.create_task(self._listen_after(seconds, self._socket))
        return self._close_connections

    async def _copy(self) -> None:
        """Deliver copies of messages as they are sent."""
        async with self.emulator.copying():
            await asyncio.Event().wait()

    async def _listen_after(self, seconds: float, bound: socket.socket) -> None:
        await self.emulator.clock.sleep(seconds)
        await self._listen(bound)

    async def _listen(self, bound: socket.socket) -> None:
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Protocol(self._config, self._state, lambda: self.listening),
            sock=bound,
            backlog=self._config.backlog,
            start_serving=False,
        )
        await self._listener.start_serving()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _close_connections(self) -> None:
        """Close all connections, without waiting for peers that do not read."""
        for connection in self._state.connections:
            connection.transport.close()
        await asyncio.sleep(0)
        for connection in self._state.connections:
            connection.transport.abort()
        await asyncio.sleep(0)


def serve(emulator: Emulator, *, host: str = "127.0.0.1", port: int = 0, control: bool = True) -> Server:
    """Return a server of the emulator for ``async with``, in the running asyncio loop. Port 0: any free port.

    With ``control`` (default) it also serves the control interface, under ``/_emulator/`` (:class:`Control`).
    """
    return Server(emulator, host=host, port=port, control=control)


def run(
    emulator: Emulator,
    *,
    host: str = "127.0.0.1",
    port: int = 8883,
    begun: Callable[[Server], None] = lambda _: None,
    ended: Callable[[], None] = lambda: None,
) -> None:
    """Serve the emulator until Ctrl-C or SIGTERM. Call it in the main thread.

    ``begun`` is called when it listens, ``ended`` when it no longer serves; a second signal interrupts neither. Raises
    OSError if the address is in use or does not belong to this machine.
    """

    async def until_stopped() -> None:
        stop = asyncio.Event()
        with _signals(asyncio.get_running_loop(), stop):
            async with serve(emulator, host=host, port=port) as server:
                begun(server)
                await stop.wait()
            ended()

    asyncio.run(until_stopped())


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Generator[None]:
    def on_signal(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
