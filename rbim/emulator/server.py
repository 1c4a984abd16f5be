"""The server door: an emulator over real sockets, by uvicorn's HTTP protocol. Needs the extra ``server``; asyncio only.

What no ASGI application can do to a connection, the protocol in front of it does: reset it, or close it in the middle of an
answer. The listening socket is the server's own, so that for a while nobody gets a connection at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from rbim.emulator.asgi import CONNECTION, failure, write
from rbim.emulator.control import Control
from rbim.emulator.rules import DependsOnDialect

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
    from uvicorn.server import ServerState
except ModuleNotFoundError as missing:
    REASON = f'serving the emulator needs {missing.name}, which comes with: python -m pip install "rbim[server]"'
    raise ModuleNotFoundError(REASON, name=missing.name) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Self

    from rbim.emulator.asgi import Receive, Scope, Send
    from rbim.emulator.emulator import Emulator
    from rbim.message import Response

__all__ = ["Server", "run", "serve"]

logger = logging.getLogger("rbim.emulator")

INTERNAL = "900500"
IDLE = 75  # seconds after which a connection without requests is closed
ABORTING = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)  # SO_LINGER for 0 seconds: closing sends an RST


class Server:
    """Serves an emulator while its ``async with`` block runs; :func:`serve` makes one.

    ``host`` and ``port`` are what it is bound to, ``url`` its base URL, from the block's first line on.
    """

    def __init__(self, emulator: Emulator, *, host: str, port: int, control: bool) -> None:
        self.emulator = emulator
        self.host = host
        self.port = port
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._outage: asyncio.Task[None] | None = None
        self._state = ServerState()
        self._config = uvicorn.Config(
            Control(emulator, outage=self.refuse) if control else emulator.asgi,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,  # logging is the process's own
            proxy_headers=False,
            timeout_keep_alive=IDLE,
        )

    @property
    def listening(self) -> bool:
        """Whether connections are taken at this moment."""
        return self._listener is not None

    @property
    def url(self) -> str:
        """The base URL: that of the loopback, where the server is bound to every address of this machine."""
        host = self.host
        if ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Listen. Raises OSError where the address is taken or not this machine's."""
        self._socket = await _resolved(self.host, self.port)
        name: Any = self._socket.getsockname()  # its shape is the address family's
        self.host, self.port = str(name[0]), int(name[1])
        await self._listen(self._socket)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stop listening, close every connection, and end what is in flight without an answer."""
        tasks = [*self._state.tasks, *([self._outage] if self._outage else [])]
        for task in tasks:
            task.cancel()
        self._hang_up()
        if self._socket is not None:
            self._socket.close()
        if tasks:
            await asyncio.wait(tasks)
        await self._closed()

    async def refuse(self, seconds: float) -> None:
        """Refuse connections for so many seconds of the emulator's clock, and close those that exist.

        Returns as soon as nobody is served any more; an outage during another takes its place.
        """
        if self._outage is not None:
            self._outage.cancel()
        if self._socket is None:
            reason = "a server that is not entered refuses anyway"
            raise RuntimeError(reason)
        if self._listener is not None:
            family, address = self._socket.family, self._socket.getsockname()
            self._hang_up()
            self._socket = _bound(family, address)  # bound and not listening: it refuses, and nobody else gets the port
        self._outage = asyncio.create_task(self._return_after(seconds, self._socket))
        await self._closed()

    async def _return_after(self, seconds: float, bound: socket.socket) -> None:
        await self.emulator.clock.sleep(seconds)
        await self._listen(bound)

    async def _listen(self, bound: socket.socket) -> None:
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: _Protocol(self, self._config, self._state),
            sock=bound,
            backlog=self._config.backlog,
            start_serving=False,
        )
        await self._listener.start_serving()

    def _hang_up(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in self._state.connections:
            connection.transport.close()

    async def _closed(self) -> None:
        """Let the connections go, with no patience for peers that do not read."""
        await asyncio.sleep(0)
        for connection in self._state.connections:
            connection.transport.abort()
        await asyncio.sleep(0)


def serve(emulator: Emulator, *, host: str = "127.0.0.1", port: int = 0, control: bool = True) -> Server:
    """Return a server of the emulator for ``async with``, in the running asyncio loop. Port 0 stands for any free one.

    With ``control`` the emulator's own commands are served as well, under ``/_emulator/`` (:mod:`rbim.emulator.control`).
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
    """Serve the emulator until Ctrl-C or SIGTERM, in the main thread.

    ``begun`` is called once it listens, ``ended`` when it no longer serves; a second signal ends neither. Raises OSError
    where the address is taken or not this machine's.
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
    def heed(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    kept = {number: signal.signal(number, heed) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


async def _resolved(host: str, port: int) -> socket.socket:
    """Return a socket bound to the first of the host's addresses that can be had."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, *_, address in found[:-1]:
        try:
            return _bound(family, address)
        except OSError:
            continue
    family, *_, address = found[-1]
    return _bound(family, address)


def _bound(family: int, address: Any) -> socket.socket:  # an address as its family has it
    # asyncio sends without delay only on sockets that say they speak TCP: otherwise an answer may wait 40 ms for an ACK
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would share the port with whoever else asks for it
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


class _Protocol(H11Protocol):
    """uvicorn's protocol over one connection, which lends a hand on it (:class:`~rbim.emulator.asgi.Connection`)."""

    def __init__(self, door: Server, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._door = door
        self._inner: Any = self.app
        self.app = self._answer
        self.access_log = False  # it would write the sig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        if not self._door.listening:  # accepted by the loop before it heard
            transport.abort()

    def eof_received(self) -> Any:  # a bool; uvicorn's never keeps the connection
        """Answer a peer that has nothing more to say, if it is owed an answer; tell whether it is."""
        unread = self.conn.their_state is h11.SEND_BODY
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY) and not unread:
            self.cycle.keep_alive = False
            return True
        if unread or self.conn.trailing_data[0]:
            self.send_400_response("the request ends too early")
        return False

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and close."""
        self._end(failure(400, msg))

    def reset(self) -> None:
        """Close the connection by an RST."""
        self.cycle.disconnected = True
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTING)
            self.transport.abort()

    def cut(self, response: Response, keep: float) -> None:
        """Write the head and less than all of the body, and close."""
        self.cycle.disconnected = True
        whole = len(response.body)
        self._end(response, max(0, min(int(whole * keep), whole - 1)))

    def _end(self, response: Response, length: int | None = None) -> None:
        """Close the connection, with so much of an answer's body before that, where one may still begin."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = {**response.headers, "content-length": str(len(response.body)), "connection": "close"}
            head = self.conn.send(
                h11.Response(
                    status_code=response.status, headers=list(headers.items()), reason=STATUS_PHRASES[response.status]
                )
            )
            self.transport.write((head or b"") + response.body[:length])
        self.transport.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, and answer for it where it fails."""
        scope["extensions"] = {CONNECTION: self}
        try:
            await self._inner(scope, receive, send)
        except asyncio.CancelledError:  # the server's end; uvicorn would make an error and a traceback of it
            self.transport.close()
            self.cycle.disconnected = True
        except Exception as error:
            if self.cycle.response_started:
                raise
            if isinstance(error, DependsOnDialect):
                why = str(error)
            else:
                why = "the emulator failed; its log says why"
                logger.exception("the emulator failed")
            await write(send, failure(500, why, INTERNAL))
