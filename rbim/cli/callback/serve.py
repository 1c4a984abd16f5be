"""The receiver of message copies as a process: ``rbim callback serve``. Needs the extra ``server``; asyncio only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from contextlib import ExitStack, contextmanager
from enum import Enum
from ipaddress import ip_address
from logging import CRITICAL
from math import inf
from pathlib import Path  # noqa: TC003  # attrs resolves it
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, cast

import uvicorn
from attrs import frozen

from rbim._support.sockets import bound_to
from rbim.callbacks.events.fields import Account
from rbim.callbacks.events.types import Event, UnknownEvent
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.worker.router import HandlerContext  # noqa: TC001  # the router looks at the handler's signature
from rbim.cli.callback.connection import ConnectionTable, LimitedConnection
from rbim.cli.callback.log import Line, RateLimitedHandler, StreamListener, receiver_log
from rbim.cli.context import callback_credentials
from rbim.cli.exit_codes import Exit
from rbim.errors import InvalidRequest
from rbim.wire.hooks import wire_names

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator

    from rbim._support.asgi import Receive, Scope, Send

__all__ = ["ServeOptions", "line_of", "run"]

IDLE = 75  # seconds after which a connection without requests is closed
PATIENCE = 4  # seconds that requests which have begun may still take when it stops: more than the receiver's budgets
DRAIN = 3.0  # seconds that who reads what is printed has after that: with the rest, less than the 10 that Docker waits
HEAD = 16 * 1024  # bytes of a request's head at most
FAREWELL = 1.0  # seconds that the other end of a TLS connection has to say goodbye
AT_A_TIME = 128  # connections that are taken before any of them is looked at
BACKLOG = 2048  # connections that wait for that


@frozen(kw_only=True)
class ServeOptions:
    """What to serve, and where."""

    inbox: Path
    host: str
    port: int
    path: str
    mode: Literal["normal", "high-guarantee"]
    printing: bool
    certfile: Path | None
    keyfile: Path | None


def run(serving: ServeOptions) -> int:
    """Serve until Ctrl-C or SIGTERM, in the main thread, and return the exit code. Raises InvalidRequest."""
    if not serving.path.startswith("/"):
        raise InvalidRequest(f"--path: it begins with a slash, not {serving.path!r}", field="--path")
    if serving.keyfile is not None and serving.certfile is None:
        raise InvalidRequest("--keyfile: there is a key, and no --certfile", field="--keyfile")
    receiver = Receiver(
        credentials=callback_credentials(),
        sink=SqliteInbox(serving.inbox),
        mode=serving.mode,
        timeout=inf,  # for who reads what is printed
        drain=DRAIN,
    )
    with receiver_log() as log, ExitStack() as printing:
        config = _config(serving, _At(serving.path, receiver, log))
        return asyncio.run(_until_stopped(serving, receiver, config, log, printing))


def _config(serving: ServeOptions, app: _At) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http="h11",  # which bounds a request's head
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=PATIENCE,
        h11_max_incomplete_event_size=HEAD,
        ssl_certfile=serving.certfile,
        ssl_keyfile=serving.keyfile,
    )
    try:
        config.load()
    except OSError as error:  # ssl's are of this kind
        files = ", ".join(str(file) for file in (serving.certfile, serving.keyfile) if file is not None)
        raise InvalidRequest(f"--certfile, --keyfile: {files}: {error.strerror or error}", field="--certfile") from None
    return config


class _At:
    """The receiver at one path, and nothing at all others."""

    def __init__(self, path: str, receiver: Receiver, log: RateLimitedHandler) -> None:
        self._path = path
        self._app = receiver.asgi
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["path"] == self._path:
            await self._app(scope, receive, send)
            return
        self._log.say(f"not found: {scope['method']} {scope['path']}: copies are received at {self._path} only")
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


class _Server(uvicorn.Server):
    """Leaves signals to whoever serves, says when it listens, and has its connections give way."""

    def __init__(self, config: uvicorn.Config, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = begun
        self._crowd = ConnectionTable()
        config.limit_concurrency = self._crowd.most + 1  # which is reached where none of them is idle

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, as uvicorn does, which bounds no handshake."""
        loop, secured = asyncio.get_running_loop(), self.config.ssl is not None
        self.servers = [
            await loop.create_server(
                lambda: LimitedConnection(self.config, self.server_state, self._crowd),
                sock=each,
                backlog=AT_A_TIME,
                ssl=self.config.ssl,
                ssl_handshake_timeout=self._crowd.begun if secured else None,
                ssl_shutdown_timeout=FAREWELL if secured else None,
            )
            for each in sockets or ()
        ]
        for each in sockets or ():
            each.listen(BACKLOG)  # which asyncio has as one number
        self.started = True
        self._begun()


class _Printer:
    """Prints events, one line each. Where nobody reads them any more, ``stop`` is called and the event stays unhandled."""

    def __init__(self, lines: SimpleQueue[Line], stop: Callable[[], object]) -> None:
        self._lines = lines
        self._stop = stop

    async def show(self, event: Event, handling: HandlerContext) -> None:
        line = Line(line_of(event, handling))
        self._lines.put(line)
        try:
            await asyncio.wrap_future(line.written)
        except OSError:
            self._stop()
            raise


async def _until_stopped(
    serving: ServeOptions, receiver: Receiver, config: uvicorn.Config, log: RateLimitedHandler, printing: ExitStack
) -> int:
    loop, codes, lines = asyncio.get_running_loop(), [Exit.DONE], SimpleQueue[Line]()

    def lost() -> None:
        codes.append(Exit.READER_LEFT)  # as whenever the reader of standard output has left
        server.should_exit = True

    def begun() -> None:
        sys.stdout.write(f"{_url(serving, bound)}\n")
        sys.stdout.flush()
        if serving.printing:
            printing.enter_context(StreamListener(sys.stdout, lines))  # events are printed after the URL
        else:
            log.say(f"events are kept in {serving.inbox} and wait there; --print handles them as well", CRITICAL)

    if serving.printing:
        receiver.fallback(_Printer(lines, lambda: loop.call_soon_threadsafe(lost)).show)
    server = _Server(config, begun)
    try:
        bound = await bound_to(serving.host, serving.port)
    except OSError as error:
        log.say(f"cannot listen on port {serving.port} of {serving.host}: {error.strerror}", CRITICAL)
        return Exit.USAGE
    with bound, _signals(server):
        try:
            async with receiver:
                await server.serve(sockets=[bound])
        except sqlite3.Error as error:
            log.say(f"{serving.inbox}: {error}", CRITICAL)
            return Exit.USAGE
    return codes[-1]


@contextmanager
def _signals(server: uvicorn.Server) -> Generator[None]:
    heeded: list[int] = []

    def heed(number: int, _: object) -> None:
        if heeded:
            os._exit(128 + number)  # whatever waits for whomever; the inbox bears it
        heeded.append(number)
        server.should_exit = True  # it looks ten times a second

    kept = {number: signal.signal(number, heed) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _url(serving: ServeOptions, bound: socket.socket) -> str:
    """Return the URL: at the loopback, where the server is bound to every address of this machine."""
    name: Any = bound.getsockname()  # its shape is the address family's
    host, port = str(name[0]), int(name[1])
    if ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    scheme = "http" if serving.certfile is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{serving.path}"


def line_of(event: Event, handling: HandlerContext) -> str:
    """Return an event as one line of JSON, in ASCII: what there is of it under the interface's names, and three of ours.

    Flags are there where they are set, times as the text that came.
    """
    document: dict[str, Any] = dict(event.document) if isinstance(event, UnknownEvent) else _fields(event)
    document |= {"key": handling.key, "attempt": handling.attempt, "received": handling.received.isoformat()}
    return json.dumps(document) + "\n"


def _fields(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = dict(event.extra)
    for name, key in wire_names(type(event)).items():
        value = getattr(event, name)
        if name not in {"extra", "msg_timestamp"} and value and str(value):
            found[key] = _plain(value)
    return found


def _plain(value: Any) -> Any:  # a field of an event in, JSON out
    if isinstance(value, tuple):
        return [str(each) for each in cast("tuple[Account, ...]", value)]
    return str(value) if isinstance(value, (Account, Enum)) else value
