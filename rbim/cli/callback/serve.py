"""``rbim callback serve``: the receiver of callbacks as a process. Needs the extra ``server``; asyncio only."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from enum import Enum
from functools import partial
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
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.signature import Policy
from rbim.callbacks.worker.router import HandlerContext  # noqa: TC001  # the router looks at the handler's signature
from rbim.cli.background_writer import Line, StreamListener
from rbim.cli.callback.connection import max_connections
from rbim.cli.callback.forward import Forwarder
from rbim.cli.callback.inboxes import inbox_of, is_on_servers
from rbim.cli.callback.log import RateLimitedHandler, receiver_log
from rbim.cli.callback.signals import stopped_by_signals
from rbim.cli.connection import ConnectionTable, LimitedConnection
from rbim.cli.context import callback_credentials, configuration
from rbim.cli.exit_codes import Exit
from rbim.cli.printable import json_line
from rbim.cli.telemetry import telemetry
from rbim.errors import InvalidRequest
from rbim.operations.base import wire_names

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, MutableMapping

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.callbacks.inbox.protocols import Archive
    from rbim.callbacks.observers import Observation
    from rbim.cli.callback.page.page import CallbackPage
    from rbim.config.config import Config
    from rbim.credentials import Credentials
    from rbim.otel.observer import OtelObserver

__all__ = ["ServeOptions", "line_of", "run"]

KEEP_ALIVE = 75  # seconds until an idle connection is closed
SHUTDOWN_TIMEOUT = 4  # seconds for requests in progress on shutdown: more than the time limits of the receiver
DRAIN_TIMEOUT = 3.0  # seconds after that for printing events: in all less than the 10 that Docker waits
MAX_HEAD = 16 * 1024  # bytes in the head of a request
TLS_SHUTDOWN_TIMEOUT = 1.0  # seconds for the close of a TLS connection by the other end
ACCEPT_BATCH = 128  # connections accepted in one step of the event loop
BACKLOG = 2048  # connections waiting to be accepted


@frozen(kw_only=True)
class ServeOptions:
    """The flags of the command."""

    inbox: str
    host: str
    port: int
    path: str
    mode: Literal["normal", "high-guarantee"]
    printing: bool
    certfile: Path | None
    keyfile: Path | None
    connections: int | None = None
    forward_to: str | None = None
    health: str | None = None
    spool: Path | None = None
    page: bool = False


def run(options: ServeOptions) -> int:
    """Serve until Ctrl-C or SIGTERM, in the main thread, and return the exit code. Raises InvalidRequest."""
    for flag, path in (("--path", options.path), ("--health", options.health)):
        if path is not None and not path.startswith("/"):
            raise InvalidRequest(f"{flag}: invalid path {path!r}: it must begin with a slash", field=flag)
    if options.keyfile is not None and options.certfile is None:
        raise InvalidRequest("--keyfile needs --certfile: give the certificate too", field="--keyfile")
    limit = max_connections(options.connections)
    config = configuration()
    credentials = callback_credentials(config)
    forwarder = None if options.forward_to is None else Forwarder(options.forward_to, credentials)
    sink, otel = inbox_of(options.inbox), telemetry()
    if is_on_servers(options.inbox) and options.spool is None and options.mode == "normal":
        raise InvalidRequest(
            "--spool is needed with an inbox on servers: in normal mode the platform tries each delivery once, and servers "
            "cannot always be reached. Give the path of an overflow file, or use --mode high-guarantee",
            field="--spool",
        )
    page = _page(options, sink, credentials, config) if options.page else None
    observers: list[Callable[[Observation], object]] = [] if otel is None else [otel.on_callback]
    if page is not None:
        observers.append(page.deliveries.observe)
    receiver = Receiver(
        credentials=credentials,
        dialect=config.dialect,
        sink=sink,
        spool=options.spool,
        mode=options.mode,
        timeout=inf,  # the reader of standard output may be slow
        drain=DRAIN_TIMEOUT,
        health=options.health,
        observers=observers,
    )
    with receiver_log() as log, ExitStack() as closing:
        app = _AtPath(options, receiver.asgi if page is None else page.deliveries.watched(receiver.asgi), forwarder, log)
        serving = _Serving(receiver, forwarder, _config(options, app), ConnectionTable(limit), otel, page)
        return asyncio.run(_until_stopped(options, serving, log, closing))


def _page(options: ServeOptions, sink: Archive, credentials: tuple[Credentials, ...], config: Config) -> CallbackPage:
    from rbim.cli.callback.page.page import CallbackPage, PageFacts

    by = (("print", options.printing), ("forward", options.forward_to is not None))
    return CallbackPage(
        facts=PageFacts(
            inbox=options.inbox,
            kind="servers" if is_on_servers(options.inbox) else "file",
            mode=options.mode,
            handling=tuple(name for name, given in by if given),
        ),
        archive=sink,
        credentials=credentials,
        policy=Policy.of(config.dialect),
    )


def _config(options: ServeOptions, app: _AtPath) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http="h11",  # limits the head of a request
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        h11_max_incomplete_event_size=MAX_HEAD,
        ssl_certfile=options.certfile,
        ssl_keyfile=options.keyfile,
    )
    try:
        config.load()
    except OSError as error:  # errors of ssl are OSErrors
        files = ", ".join(str(file) for file in (options.certfile, options.keyfile) if file is not None)
        raise InvalidRequest(f"--certfile, --keyfile: {files}: {error.strerror or error}", field="--certfile") from None
    return config


# `POST http://receiver:8000/copies HTTP/1.1`, as clients of a proxy write it
_ABSOLUTE = re.compile("^https?://[^/]*", re.IGNORECASE)


class _AtPath:
    """The ASGI app: the receiver at one path, its health at another, 404 at all others."""

    def __init__(
        self,
        options: ServeOptions,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        forwarder: Forwarder | None,
        log: RateLimitedHandler,
    ) -> None:
        self._path = options.path
        self._health = options.health
        self._app = app
        self._forwarder = forwarder
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = _ABSOLUTE.sub("", scope["path"]) or "/"
        if path == self._path or (path == self._health and scope["method"] in {"GET", "HEAD"}):
            if self._forwarder is not None:
                receive = _listened(receive, partial(self._forwarder.received, scope["headers"]))
            await self._app({**scope, "path": path}, receive, send)
            return
        self._log.log_text(f"not found: {scope['method']} {path}: the receiver is at {self._path}")
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def _listened(receive: Receive, received: Callable[[bytes], None]) -> Receive:
    """Return ``receive`` that also calls ``received`` with the whole body, before it returns the last part."""
    parts: list[bytes] = []

    async def listened() -> MutableMapping[str, Any]:
        message = await receive()
        if message["type"] == "http.request":
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                received(b"".join(parts))
        return message

    return listened


class _Server(uvicorn.Server):
    """Leaves signals to the caller, calls ``begun`` when it listens, and closes idle connections to make room."""

    def __init__(self, config: uvicorn.Config, table: ConnectionTable, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = begun
        self._connection_table = table
        config.limit_concurrency = table.limit + 1  # reached only if no connection is idle

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen like uvicorn, but with a timeout for TLS handshakes."""
        loop, secured = asyncio.get_running_loop(), self.config.ssl is not None
        self.servers = [
            await loop.create_server(
                lambda: LimitedConnection(self.config, self.server_state, self._connection_table),
                sock=each,
                backlog=ACCEPT_BATCH,
                ssl=self.config.ssl,
                ssl_handshake_timeout=self._connection_table.head_timeout if secured else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT if secured else None,
            )
            for each in sockets or ()
        ]
        for each in sockets or ():
            each.listen(BACKLOG)  # asyncio uses one number for both
        self.started = True
        self._begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop like uvicorn; report the connections that gave way."""
        await super().shutdown(sockets)
        self._connection_table.report()


@frozen
class _Serving:
    """The parts of a server."""

    receiver: Receiver
    forwarder: Forwarder | None
    config: uvicorn.Config
    table: ConnectionTable
    otel: OtelObserver | None
    page: CallbackPage | None

    def handle_by(self, printer: _Printer | None) -> None:
        """Forward and print events, unless neither is wanted."""
        forwarder = self.forwarder

        async def handle(event: Event, context: HandlerContext) -> None:
            if forwarder is not None:
                await forwarder.forward(context)
            if printer is not None:
                await printer.show(event, context)

        if printer is not None or forwarder is not None:
            self.receiver.fallback(handle)

    @asynccontextmanager
    async def receiving(self, url: str, log: RateLimitedHandler) -> AsyncGenerator[None]:
        """Receive deliveries in the block, and show them on the page, if there is one."""
        async with (
            nullcontext() if self.forwarder is None else self.forwarder.transport,
            self.receiver,
            nullcontext() if self.otel is None else self.otel.observe_receiver(self.receiver),
            nullcontext() if self.page is None else self.page.serving(url) as address,
        ):
            if address is not None:
                log.log_text(f"page: {address}", CRITICAL)
            yield


class _Printer:
    """Prints events, one line each. If standard output is closed, calls ``stop`` and leaves the event unhandled."""

    def __init__(self, lines: SimpleQueue[Line], stop: Callable[[], object]) -> None:
        self._lines = lines
        self._stop = stop
        self._ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")

    async def show(self, event: Event, context: HandlerContext) -> None:
        line = Line(line_of(event, context, ascii_only=self._ascii_only))
        self._lines.put(line)
        try:
            await asyncio.wrap_future(line.written)
        except OSError:
            self._stop()
            raise


async def _until_stopped(options: ServeOptions, serving: _Serving, log: RateLimitedHandler, closing: ExitStack) -> int:
    loop, codes, lines = asyncio.get_running_loop(), [Exit.DONE], SimpleQueue[Line]()

    def reader_left() -> None:
        codes.append(Exit.READER_LEFT)  # as for every command whose reader has closed standard output
        server.should_exit = True

    def begun() -> None:
        sys.stdout.write(f"{_url(options, bound)}\n")
        sys.stdout.flush()
        if options.printing:
            closing.enter_context(StreamListener(sys.stdout, lines))  # events are printed after the URL
        elif serving.forwarder is None:
            log.log_text(f"events wait in {options.inbox} for another process; --print handles them here", CRITICAL)

    serving.handle_by(_Printer(lines, lambda: loop.call_soon_threadsafe(reader_left)) if options.printing else None)
    server = _Server(serving.config, serving.table, begun)
    try:
        bound = await bound_to(options.host, options.port)
    except OSError as error:
        place = f"{options.host} port {options.port}"
        log.log_text(f"cannot listen on {place} ({error.strerror}): choose another --port or --host", CRITICAL)
        return Exit.USAGE

    def stop() -> None:
        server.should_exit = True  # uvicorn checks it ten times a second

    url = "" if serving.page is None else _url(options, bound)
    with bound, stopped_by_signals(stop):
        try:
            async with serving.receiving(url, log):
                await server.serve(sockets=[bound])
        except sqlite3.Error as error:
            log.log_text(f"{options.inbox}: {error}", CRITICAL)
            return Exit.USAGE
    return codes[-1]


def _url(options: ServeOptions, bound: socket.socket) -> str:
    """Return the URL, with the loopback address if the server listens on all addresses of this machine."""
    name: Any = bound.getsockname()  # its shape is the address family's
    host, port = str(name[0]), int(name[1])
    if ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    scheme = "http" if options.certfile is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{options.path}"


def line_of(event: Event, context: HandlerContext, *, ascii_only: bool) -> str:
    """Return an event as one line of JSON: its fields under the interface's names, and key, attempt and received.

    Fields that the platform left out are left out; null stays null, times are the original text.
    """
    document: dict[str, Any] = dict(event.document) if isinstance(event, UnknownEvent) else _fields(event)
    document |= {"key": context.key, "attempt": context.attempt, "received": context.received.isoformat()}
    return f"{json_line(document, ascii_only=ascii_only)}\n"


def _fields(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = dict(event.extra)
    for name, key in wire_names(type(event)).items():
        if name not in {"extra", "msg_timestamp", "document"} and key in event.document:
            found[key] = None if event.document[key] is None else _plain(getattr(event, name))
    return found


def _plain(value: Any) -> Any:  # a field of an event in, JSON out
    if isinstance(value, tuple):
        return [str(each) for each in cast("tuple[Account, ...]", value)]
    return str(value) if isinstance(value, (Account, Enum)) else value
