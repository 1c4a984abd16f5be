"""The emulator over real sockets, with uvicorn's HTTP protocol. Needs the extra ``server``; asyncio only.

The server has two ports: one for the platform, with the control interface, and one for the control interface alone, which is
open during an outage, too. Each is a :class:`Listener` behind the same guard.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from datetime import UTC
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, cast

from rbim._support.sockets import bound, bound_to, reserve, url_at, uvicorn_config
from rbim._support.text import missing_extra
from rbim.emulator.asgi import CONNECTION, EMULATED, PRODUCT, failure, write
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.platform.rules import DependsOnDialect
from rbim.emulator.server.control import PREFIX, ControlApp, ControlContext, guard_of

try:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("serving the emulator", missing.name, "server"), name=missing.name) from None

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType
    from typing import Self

    from rbim._support.asgi import App, Receive, Scope, Send
    from rbim.clock import Clock
    from rbim.emulator.emulator import Emulator

__all__ = ["Listener", "Protocol", "Server", "serve"]

logger = logging.getLogger("rbim.emulator")

IDLE = 75  # seconds after which a connection without requests is closed
INTERNAL = "900500"
ABORTING = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)  # SO_LINGER for 0 seconds: closing sends an RST


class _HttpConnection(h11.Connection):
    """Gives the head of an answer together with the first part of its body, so that uvicorn writes both at once."""

    _head: bytes = b""

    def send(self, event: Any) -> Any:  # what uvicorn writes to the socket
        output = cast("bytes | None", super().send(event))
        if output is None:
            return None
        if isinstance(event, h11.Response):
            self._head = output
            return b""
        head, self._head = self._head, b""
        return head + output


class Protocol(H11Protocol):
    """One connection of a listener, as a :class:`~rbim.emulator.asgi.RequestConnection` for its application.

    It resets or closes a connection in the middle of an answer, which no ASGI application can. Answers have the time of the
    emulator's clock as ``Date`` (RFC 9110, 6.6.1), by which it judges the age of signatures.
    """

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener.config, listener.state, {})
        self.conn = _HttpConnection(h11.SERVER)
        self._listener = listener
        self._inner: Any = self.app
        self.app = self._answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Accept the connection, unless the loop accepted it after the server stopped listening."""
        super().connection_made(transport)
        if not self._listener.listening:
            transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, if no answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = failure(400, msg)
            headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
            headers += [(b"content-length", b"%d" % len(response.body)), (b"connection", b"close")]
            head = h11.Response(status_code=400, headers=self._listener.headers() + headers, reason=b"Bad Request")
            self.transport.write((h11.Connection.send(self.conn, head) or b"") + response.body)
        self.close()

    def reset(self) -> None:
        """Close the connection with an RST."""
        self.cycle.disconnected = True
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTING)
            self.transport.abort()

    def close(self) -> None:
        """Close the connection; an application that still handles the request cannot answer any more."""
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, and answer an error of it with status 500."""
        scope["extensions"] = {CONNECTION: self}
        self.cycle.default_headers = self._listener.headers()
        try:
            await self._inner(scope, receive, send)
        except asyncio.CancelledError:  # the server ends; uvicorn would log an error with a traceback
            self.close()
        except DependsOnDialect as error:
            await write(send, failure(500, str(error), INTERNAL))
        except Exception:
            if self.cycle.response_started:
                raise
            logger.exception("the emulator failed")
            await write(send, failure(500, "the emulator failed: see its log", INTERNAL))


class Listener:
    """Serves an ASGI application at one address, and can refuse connections without giving the port away.

    It is *unbound*; then *listening*, from :meth:`bind` on; *refusing* between :meth:`refuse` and :meth:`listen`; and
    *closed* after :meth:`close`. While it refuses, its socket is bound and does not listen.
    """

    def __init__(self, app: App, clock: Clock) -> None:
        self.host = ""
        self.port = 0
        self.state = ServerState()
        self.config = uvicorn_config(app, timeout_keep_alive=IDLE)
        self._clock = clock
        self._headers: tuple[int, list[tuple[bytes, bytes]]] = 0, []
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def listening(self) -> bool:
        """Whether connections are accepted now."""
        return self._server is not None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of each answer at this moment; they are made once a second."""
        now = self._clock.now()
        second = int(now.timestamp())
        if second != self._headers[0]:
            server = EMULATED if isinstance(self._clock, EmulatedClock) else PRODUCT
            date = format_datetime(now.astimezone(UTC), usegmt=True)
            self._headers = second, [(b"date", date.encode()), (b"server", server.encode())]
        return self._headers[1]

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
        """Accept connections, if it does not already."""
        if self._server is not None or self._socket is None:
            return
        reserve(self._socket, alone=False)
        server = self._server = await asyncio.get_running_loop().create_server(
            lambda: Protocol(self), sock=self._socket, backlog=self.config.backlog, start_serving=False
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
        for connection in self.state.connections:
            connection.transport.close()
        await asyncio.sleep(0)
        for connection in self.state.connections:
            connection.transport.abort()
        await asyncio.sleep(0)


class Server:
    """Serves an emulator on the running asyncio loop while its ``async with`` block runs. Port 0: any free port.

    ``host``, ``port`` and ``url``, its base URL, and ``control_url`` are final from the block's first line on.

    It also serves the control interface, under ``/_emulator/`` (:class:`Control`): at ``port``, and alone at
    ``control_port`` of the same host, which an outage does not affect.

    Requests of web pages of other servers are refused with status 403. ``Host`` must be the loopback, the address at which a
    connection arrived, a name given as ``host``, or one of ``allowed_hosts``.

    The control interface copies messages to ``localhost`` and literal loopback addresses. A target on another machine needs
    ``remote_copies``, and ``sign_copies`` unless the emulator made its credentials itself: otherwise everyone who can reach
    it could have messages signed for another machine. ``emulator.copy_to`` has neither limit.

    ``watch`` is called for each request when it is answered, with its ASGI scope and the seconds that it took; it must not
    wait.

    Raises InvalidRequest if one of ``allowed_hosts`` is not a name or an address.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        emulator: Emulator,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        control_port: int = 0,
        allowed_hosts: Iterable[str] = (),
        sign_copies: bool = False,
        remote_copies: bool = False,
        watch: Callable[[Scope, float], None] | None = None,
    ) -> None:
        guard = guard_of(allowed_hosts, bound=host)
        context = ControlContext(emulator, self, sign_copies=sign_copies, remote_copies=remote_copies)
        self.emulator = emulator
        self.host = host
        self.port = port
        self._control_port = control_port
        self._platform = Listener(ControlApp(context, guard, emulator.asgi, watch), emulator.clock)
        self._control = Listener(ControlApp(context, guard, None, watch), emulator.clock)
        self._outage: asyncio.Task[None] | None = None
        self._copying: asyncio.Task[None] | None = None

    @property
    def listening(self) -> bool:
        """Whether clients of the platform can connect now."""
        return self._platform.listening

    @property
    def url(self) -> str:
        """The base URL, with the loopback address if the server is bound to every address of this machine."""
        return url_at(self.host, self.port)

    @property
    def control_url(self) -> str:
        """The URL, with a final slash, of the control interface that an outage does not affect."""
        return url_at(self._control.host, self._control.port) + PREFIX

    async def __aenter__(self) -> Self:
        """Listen. Raises OSError if an address is in use or does not belong to this machine; its ``filename`` names it."""
        try:
            await self._platform.bind(self.host, self.port)
            self.host, self.port = self._platform.host, self._platform.port
            await self._control.bind(self.host, self._control_port)
        except BaseException:
            await self._platform.close()
            await self._control.close()
            raise
        self._copying = asyncio.create_task(self._copy())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stop listening, close all connections, and cancel deliveries and (without an answer) requests in progress."""
        listeners = (self._platform, self._control)
        tasks = [task for task in (self._outage, self._copying) if task is not None]
        tasks += [task for each in listeners for task in each.state.tasks]
        for task in tasks:
            task.cancel()
        for each in listeners:
            await each.close()
        if tasks:
            await asyncio.wait(tasks)

    async def refuse(self, seconds: float) -> None:
        """Refuse connections for ``seconds`` of the emulator's clock, and close the existing ones.

        Returns as soon as all are closed. A new outage replaces the present one. The control port stays open.
        """
        await self.begin_outage(seconds)()

    async def accept(self) -> None:
        """End an outage; without one, do nothing."""
        if self._outage is not None:
            self._outage.cancel()
        await self._platform.listen()

    def begin_outage(self, seconds: float) -> Callable[[], Awaitable[None]]:
        """Refuse connections from now on; return a function that closes the existing ones."""
        if self._outage is not None:
            self._outage.cancel()
        self._platform.refuse()
        self._outage = asyncio.create_task(self._listen_after(seconds))
        return self._platform.close_connections

    async def _copy(self) -> None:
        """Deliver copies of messages as they are sent."""
        try:
            async with self.emulator.copying():
                await asyncio.Event().wait()
        except Exception:  # the server goes on, and its user must know
            logger.exception("the emulator failed, and copies no message any more")

    async def _listen_after(self, seconds: float) -> None:
        await self.emulator.clock.sleep(seconds)
        await self._platform.listen()


serve = Server
