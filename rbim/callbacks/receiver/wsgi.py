"""The receiver's WSGI application, for synchronous frameworks such as Flask and Django."""

from __future__ import annotations

import os
import sys
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from http import HTTPStatus
from threading import Lock, Thread, main_thread
from typing import TYPE_CHECKING, Protocol, TypeVar

from anyio.from_thread import start_blocking_portal

from rbim.callbacks.receiver.replies import INCOMPLETE, NOT_POST, TEXT, UNAVAILABLE, reply_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from anyio.from_thread import BlockingPortal

    from rbim.callbacks.receiver.replies import Health, Reply
    from rbim.callbacks.signature import Headers

__all__ = ["ReceiverWsgi"]

T = TypeVar("T")

# Theory of operation: the thread of the receiver.
#
#   none      Nothing was asked yet, or the start failed.
#   running   The receiver is entered in a thread with an asyncio event loop; requests wait for it through a portal.
#   stopped   stop() was called, or the main thread has ended: 503.
#
# none -> running      start(), or the first request: not earlier, because servers fork after they import the application
# running -> stopped   stop(), or the end of the main thread; handlers have the receiver's ``drain``
# stopped -> running   start()
#
# The interpreter waits at its end until the receiver is left: for the thread that waits for the end of the main thread.


class _AsyncReceiver(AbstractAsyncContextManager[object], Protocol):
    async def receive(self, headers: Headers, body: bytes) -> Reply: ...

    async def health(self) -> Health: ...


class ReceiverWsgi:
    """The WSGI application of a receiver; it takes deliveries at every path, and a GET at the path ``health``.

    The receiver runs in a thread with an event loop of its own: from :meth:`start` or the first request to :meth:`stop` or
    the end of the process. A request waits until its delivery is stored. Any thread may call its methods.
    """

    def __init__(self, receiver: _AsyncReceiver, max_body: int | None, health: str | None) -> None:
        self._receiver = receiver
        self._max_body = max_body
        self._health = health
        self._lock = Lock()
        self._portal: BlockingPortal | None = None
        self._running: ExitStack | None = None
        self._pid = 0

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        """Answer one request."""
        reply = NOT_POST
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO")
        if method == "POST":
            body = self._body(environ)
            reply = INCOMPLETE if body is None else self.receive(_headers(environ), body)
        elif method in {"GET", "HEAD"} and self._health is not None and path == self._health:
            health = self._call(self._receiver.health)
            reply = UNAVAILABLE if health is None else reply_of(health)
        # PEP 3333: every answer has a type, and `connection` is the server's
        headers = {"content-type": TEXT} | {name: value for name, value in reply.headers.items() if name != "connection"}
        headers["content-length"] = str(len(reply.body))
        start_response(f"{reply.status} {HTTPStatus(reply.status).phrase}", list(headers.items()))
        return [reply.body]

    def receive(self, headers: Headers, body: bytes) -> Reply:
        """Process one delivery like :meth:`Receiver.receive`, from any thread. Raises what prevents the start."""
        return self._call(self._receiver.receive, headers, body) or UNAVAILABLE

    def start(self) -> None:
        """Start the receiver, unless it runs; then handlers run before the first request. Raises what prevents it.

        Call it in the process that serves, not before a server forks: in a fork of a started receiver, this and each request
        raise RuntimeError.
        """
        with self._lock:
            if self._running is not None:
                self._require_own_process()
                return
            with ExitStack() as entering:
                portal = entering.enter_context(start_blocking_portal())
                entering.enter_context(portal.wrap_async_context_manager(self._receiver))
                self._running = entering.pop_all()
            self._portal, self._pid = portal, os.getpid()
            Thread(target=self._stop_at_the_end, name="rbim-wsgi-end", daemon=False).start()

    def stop(self) -> None:
        """Leave the receiver; wait until running handlers have ended or their ``drain`` is over. Answers are 503 then."""
        if self._pid != os.getpid():  # it was not started, or in the process that forked
            return
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            with suppress(RuntimeError):  # the event loop has ended by itself
                running.close()

    def _stop_at_the_end(self) -> None:
        main_thread().join()
        self.stop()

    def _call(self, function: Callable[..., Awaitable[T]], *args: object) -> T | None:
        """Call a function in the receiver's thread; None if the receiver has stopped."""
        if self._portal is None:
            self.start()
        assert self._portal is not None  # noqa: S101  # started
        self._require_own_process()
        try:
            return self._portal.call(function, *args)
        except (RuntimeError, CancelledError):  # the portal is closed
            return None

    def _require_own_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                "the receiver was started before the server forked, and its thread is not in this process: call"
                " receiver.wsgi.start() in each worker (gunicorn: in post_fork), or leave it out, also with --preload"
            )

    def _body(self, environ: WSGIEnvironment) -> bytes | None:
        """Return the body, up to one byte more than the limit; None if it does not arrive whole."""
        most = sys.maxsize if self._max_body is None else self._max_body + 1
        declared = str(environ.get("CONTENT_LENGTH") or "").strip()
        if not declared and not environ.get("wsgi.input_terminated"):
            return b""
        if declared and not (declared.isascii() and declared.isdigit()):  # read(-1) would read without end
            return None
        try:
            expected = min(int(declared), most) if declared else None
            body: bytes = environ["wsgi.input"].read(most if expected is None else expected)
        except Exception:  # each server has its own errors for a client that has gone
            return None
        return body if expected is None or len(body) == expected else None


def _headers(environ: WSGIEnvironment) -> list[tuple[str, str]]:
    """Return the headers of a request. Servers join repeated ones, which makes a repeated CheckSum an invalid one."""
    found = [(name[5:].replace("_", "-"), str(value)) for name, value in environ.items() if name.startswith("HTTP_")]
    return [*found, ("content-type", str(environ.get("CONTENT_TYPE", "")))]
