"""``rbim callback serve``: the receiver of callbacks as a process. Needs the extra ``server``; asyncio only."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from logging import CRITICAL
from math import inf
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from attrs import evolve
from uvicorn.protocols.http.h11_impl import H11Protocol

from rbim._support.json_values import json_values
from rbim._support.sockets import bound_to, url_at, uvicorn_config
from rbim._support.text import excerpt
from rbim.callbacks.events import Event, UnknownEvent
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.signature import Policy, Verified, keys_of, sign, verify
from rbim.callbacks.worker.router import HandlerContext  # noqa: TC001  # the router looks at the handler's signature
from rbim.cli.background_writer import Line, StreamListener
from rbim.cli.callback.inboxes import inbox_of, is_on_server, shown_inbox
from rbim.cli.callback.log import receiver_log
from rbim.cli.callback.send import target_of, without_secrets
from rbim.cli.callback.signals import stopped_by_signals, stopping_signals
from rbim.cli.context import callback_credentials, configuration, telemetry
from rbim.cli.exit_codes import Exit
from rbim.cli.json_output import json_line, writes_unicode
from rbim.errors import InvalidRequest, TransportError
from rbim.operations.base import wire_names
from rbim.transports._shared.connecting import EMULATOR
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, MutableMapping, Sequence

    from rbim._support.asgi import App, Receive, Scope, Send
    from rbim.cli.callback.log import LineHandler
    from rbim.cli.callback.options import ServeOptions
    from rbim.credentials import Credentials
    from rbim.otel.observer import OtelObserver

__all__ = ["Forwarder", "NotForwarded", "line_of", "run"]

KEEP_ALIVE = 75  # seconds until an idle connection is closed
SHUTDOWN_TIMEOUT = 4  # seconds for requests in progress on shutdown: more than the time limits of the receiver
DRAIN_TIMEOUT = 3.0  # seconds after that for printing events: in all less than the 10 that Docker waits
MAX_HEAD = 16 * 1024  # bytes in the head of a request
BACKLOG = 2048  # connections waiting to be accepted
OTHER_FILES = 128  # open files for the inbox, the standard streams and the like

FORWARD_TIMEOUT = 60.0  # seconds in which the application must answer: long, because it may stand in a debugger
MOST_KEPT = 10_000  # deliveries whose headers are kept
FRESH = Policy(back=240.0, ahead=60.0)  # a minute below the default of receivers
SENT = ("checksum", "md5", "curtime", "content-type")


def run(options: ServeOptions) -> int:
    """Serve until Ctrl-C or SIGTERM, in the main thread, and return the exit code. Raises InvalidRequest."""
    for flag, path in (("--path", options.path), ("--health", options.health)):
        if path is not None and not path.startswith("/"):
            raise InvalidRequest(f"{flag}: invalid path {path!r}: it must begin with a slash", field=flag)
    if options.keyfile is not None and options.certfile is None:
        raise InvalidRequest("--keyfile needs --certfile: give the certificate too", field="--keyfile")
    config = configuration()
    credentials = callback_credentials(config)
    forwarder = None if options.forward_to is None else Forwarder(options.forward_to, credentials)
    sink, otel = inbox_of(options.inbox), telemetry()
    if is_on_server(options.inbox) and options.spool is None and options.mode == "normal":
        raise InvalidRequest(
            "--spool is needed with an inbox in a database: in normal mode the platform tries each delivery once, and a"
            " server cannot always be reached. Give the path of an overflow file, or use --mode high-guarantee",
            field="--spool",
        )
    receiver = Receiver(
        credentials=credentials,
        dialect=config.dialect,
        sink=sink,
        spool=options.spool,
        mode=options.mode,
        timeout=inf,  # the reader of standard output may be slow
        drain=DRAIN_TIMEOUT,
        health=options.health,
        observers=() if otel is None else (otel,),
    )
    with receiver_log() as log:
        return asyncio.run(_serve(options, receiver, forwarder, otel, log))


async def _serve(  # noqa: C901  # in order
    options: ServeOptions, receiver: Receiver, forwarder: Forwarder | None, otel: OtelObserver | None, log: LineHandler
) -> int:
    """Listen, receive and handle until a signal, or until the reader of printed events has left; return the exit code."""
    server = _UvicornServer(_config(options, _at_path(options, receiver.asgi, forwarder, log)))
    loop, code, lines = asyncio.get_running_loop(), Exit.DONE, SimpleQueue[Line]()
    ascii_only = not writes_unicode()

    def stop() -> None:
        server.should_exit = True  # uvicorn checks it ten times a second

    async def handle(event: Event, context: HandlerContext) -> None:
        nonlocal code
        if forwarder is not None:
            await forwarder.forward(context)
        if options.printing:
            line = Line(line_of(event, context, ascii_only=ascii_only))
            lines.put(line)
            try:
                await asyncio.wrap_future(line.written)
            except OSError:  # the reader has closed standard output; the event is left unhandled
                code = Exit.READER_LEFT
                loop.call_soon_threadsafe(stop)
                raise

    if options.printing or forwarder is not None:
        receiver.fallback(handle)
    try:
        bound = await bound_to(options.host, options.port)
        bound.listen(BACKLOG)
    except OSError as error:
        place = f"{options.host} port {options.port}"
        log.log_text(f"cannot listen on {place} ({error.strerror}): choose another --port or --host", CRITICAL)
        return Exit.USAGE
    host, number, *_ = bound.getsockname()  # with more for IPv6
    url = url_at(host, number, "http" if options.certfile is None else "https") + options.path
    with bound, stopped_by_signals(stop, stopping_signals()), ExitStack() as printing:
        try:
            async with (
                nullcontext() if forwarder is None else forwarder.transport,
                receiver,
                nullcontext() if otel is None else otel.observe_receiver(receiver),
            ):
                sys.stdout.write(f"{url}\n")
                sys.stdout.flush()
                if options.printing:
                    printing.enter_context(StreamListener(sys.stdout, lines))  # events are printed after the URL
                elif forwarder is None:
                    log.log_text(
                        f"events wait in {shown_inbox(options.inbox)} for another process; --print handles them here",
                        CRITICAL,
                    )
                await server.serve(sockets=[bound])
        except sqlite3.Error as error:
            file = options.spool if is_on_server(options.inbox) else f"{options.inbox}, or its overflow file"
            log.log_text(f"{file}: {error}", CRITICAL)
            return Exit.USAGE
    return code


def _config(options: ServeOptions, app: App) -> uvicorn.Config:
    config = uvicorn_config(
        app,
        http=_Http,
        backlog=BACKLOG,
        limit_concurrency=_allowed(options.connections) + 1,  # uvicorn answers 503 from this number on
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


def _allowed(connections: int) -> int:
    """Return how many connections the limit of open files allows, which is raised as far as the system lets it."""
    if sys.platform == "win32":
        return connections
    from resource import RLIMIT_NOFILE, getrlimit, setrlimit

    files, most = getrlimit(RLIMIT_NOFILE)
    needed = connections + OTHER_FILES
    if not 0 <= files < needed:  # a negative number is no limit
        return connections
    files = needed if most < 0 else min(needed, most)
    setrlimit(RLIMIT_NOFILE, (files, most))
    return max(1, files - OTHER_FILES)


class _Http(H11Protocol):
    """uvicorn's protocol, whose answer to bytes that are not HTTP fails if another answer has begun."""

    def send_400_response(self, msg: str) -> None:
        """Answer 400 and close; only close if an answer has begun."""
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.abort()


# `POST http://receiver:8000/copies HTTP/1.1`, as clients of a proxy write it
_ABSOLUTE = re.compile("^https?://[^/]*", re.IGNORECASE)


def _at_path(options: ServeOptions, app: App, forwarder: Forwarder | None, log: LineHandler) -> App:
    """Return the ASGI app: the receiver at one path, its health at another, 404 at all others."""

    async def at_path(scope: Scope, receive: Receive, send: Send) -> None:
        path = _ABSOLUTE.sub("", scope["path"]) or "/"
        if path != options.path and (path != options.health or scope["method"] not in {"GET", "HEAD"}):
            log.log_text(f"not found: {scope['method']} {path}: the receiver is at {options.path}")
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        parts: list[bytes] = []

        async def overheard() -> MutableMapping[str, Any]:
            message = await receive()
            if forwarder is not None and message["type"] == "http.request":
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    forwarder.received(scope["headers"], b"".join(parts))
            return message

        await app({**scope, "path": path}, receive if forwarder is None else overheard, send)

    return at_path


class _UvicornServer(uvicorn.Server):
    """Leaves signals to the caller: the second one ends the process at once."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def line_of(event: Event, context: HandlerContext, *, ascii_only: bool) -> str:
    """Return an event as one line of JSON: its fields under the interface's names, and key, attempt and received.

    Fields that the platform left out are left out; null stays null, times are the original text.
    """
    document: dict[str, Any] = dict(event.document if isinstance(event, UnknownEvent) else event.extra)
    if not isinstance(event, UnknownEvent):
        for name, key in wire_names(type(event)).items():
            if name not in {"extra", "msg_timestamp", "document"} and key in event.document:
                document[key] = None if event.document[key] is None else json_values(getattr(event, name))
    document |= {"key": context.key, "attempt": context.attempt, "received": context.received.isoformat()}
    return f"{json_line(document, ascii_only=ascii_only)}\n"


class NotForwarded(Exception):
    """The application could not be reached, or did not answer with 200."""


class Forwarder:
    """Posts events to ``url`` through ``transport``, which the caller enters. Raises InvalidRequest for a wrong URL.

    An inbox stores no signature headers. So those of a delivery are kept in memory until its event is handled, and are
    sent unchanged while the application still accepts their time. Later, after a restart, and on a replay, the same body is
    signed anew, with the current time and the current token of its application.
    """

    def __init__(self, url: str, credentials: Sequence[Credentials]) -> None:
        self.transport = HttpxTransport(trust_env=False)
        self._target = target_of(url, "--forward-to")
        self._shown = without_secrets(url)
        self._credentials = credentials
        self._keys = keys_of(credentials)
        self._kept: dict[bytes, dict[str, str]] = {}  # by a digest of the body, which may have a megabyte

    def received(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Keep the headers of a delivery if they are authentic."""
        pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
        if self._fresh(pairs, body):
            self._kept[_digest(body)] = {name: value for name, value in pairs if name in SENT}
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]

    async def forward(self, context: HandlerContext) -> None:
        """Post the body of an event. Raises NotForwarded."""
        request = evolve(self._target, headers=self._headers(context), body=context.body, repeatable=True)
        try:
            response = await self.transport.send(request, timeout=FORWARD_TIMEOUT)
        except TransportError as error:
            raise NotForwarded(str(error).replace(EMULATOR, "is your application running?")) from error
        if response.status != HTTPStatus.OK:
            raise NotForwarded(f"{self._shown} answered {response.status} {excerpt(response.body)}".rstrip())
        self._kept.pop(_digest(context.body), None)

    def _headers(self, context: HandlerContext) -> dict[str, str]:
        kept = self._kept.get(_digest(context.body), {})
        if self._fresh(kept.items(), context.body):
            return kept
        own = next((each for each in self._credentials if each.app_id == context.app_id), None)
        if own is None:
            raise NotForwarded(f"there is no token of application {context.app_id} to sign it with")
        return {"content-type": "application/json", **sign(context.body, credentials=own, now=datetime.now(UTC))}

    def _fresh(self, headers: Iterable[tuple[str, str]], body: bytes) -> bool:
        verified = verify(list(headers), body, credentials=self._keys, now=datetime.now(UTC), policy=FRESH)
        return isinstance(verified, Verified)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()
