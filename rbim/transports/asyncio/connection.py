"""One connection: an asyncio protocol that writes a request, and gives its answer to the future that waits for it."""

from __future__ import annotations

import asyncio
import select
import ssl
import time
from typing import TYPE_CHECKING, cast

from attrs import frozen

from rbim.errors import AnswerTooLarge, Unanswered
from rbim.transports._shared.redaction import redacted, untraced
from rbim.transports.asyncio.answer import AnswerReader, Known

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.errors import TransportError
    from rbim.http import Request, Response

__all__ = ["LONGEST_NAP", "Broken", "Connection", "Idle"]

SPARE = 60.0  # a connection that was idle for so many seconds is closed
LONGEST_NAP = 3600.0
"""Seconds at most for which a timer is set: a time-out may be endless, a timer of uvloop's may not."""


@frozen
class Broken:
    """Why no answer came: a ``reason`` of our own words, what was raised below (or None), or that the time was over."""

    reason: str = ""
    error: Exception | None = None
    late: bool = False
    limit: int | None = None

    def said(self, request: Request) -> TransportError:
        """Return the error to raise, without anything that signs the request."""
        if self.limit is not None:
            return AnswerTooLarge(self.reason, limit=self.limit)
        if self.error is None:
            return Unanswered(self.reason)
        cause = untraced(self.error, request.secrets)
        failure = Unanswered(f"{self.reason}: {type(cause).__name__}: {redacted(str(cause), request.secrets)}")
        failure.__cause__ = cause
        return failure


class Connection(asyncio.BufferedProtocol):
    """One connection to one origin, idle or with one request under way.

    Idle, it is in the stack ``idle``; from its being opened to its end, in the set ``everyone``. It has one timer, which
    is not moved when a request begins: it looks for the deadline when it goes off, and is set anew if that was too early.
    """

    __slots__ = (
        "_buffer",
        "_deadline",
        "_everyone",
        "_idle",
        "_known",
        "_loop",
        "_poll",
        "_reader",
        "_rings",
        "_secure",
        "_timer",
        "_tunnel",
        "_waiter",
        "idle_since",
        "transport",
    )

    def __init__(  # what connections of one transport share
        self, loop: asyncio.AbstractEventLoop, buffer: memoryview, known: Known, idle: Idle, everyone: set[Connection]
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._known = known
        self._idle = idle
        self._everyone = everyone
        self._reader = AnswerReader(known)
        self._waiter: asyncio.Future[Response | Broken] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._rings = 0.0
        self._secure = self._tunnel = False
        self._poll: Callable[[], object] | None = None
        self.idle_since = 0.0
        self.transport: asyncio.Transport | None = None

    # For the transport.

    @property
    def closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self.transport is None or self.transport.is_closing()

    @property
    def stale(self) -> bool:
        """Whether the other end has closed the idle connection or said anything, even where the loop has not seen it yet."""
        if self.closing:
            return True
        if self._poll is None:
            self._poll = _poll(self._open_transport.get_extra_info("socket").fileno())
        return bool(self._poll())

    def expect(self, deadline: float, *, tunnel: bool = False) -> asyncio.Future[Response | Broken]:
        """Return the future of the answer to what is written next; ``deadline`` is of the monotonic clock."""
        self._reader.begin(tunnel=tunnel)
        self._waiter = waiter = self._loop.create_future()
        self._deadline = deadline
        self._tunnel = tunnel
        if self._timer is None or self._rings > deadline:
            self._set_timer(deadline)
        return waiter

    def write(self, message: bytes) -> None:
        """Write one whole request. What this raises has ``message`` in its frames."""
        self._open_transport.write(message)

    def forsake(self, waiter: asyncio.Future[Response | Broken]) -> None:
        """Close the connection, if it still has to do with this future, whose answer nobody waits for any more."""
        if self._waiter is waiter:
            self._waiter = None
            self.abort()

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Make the connection a secure one."""
        secure = None
        if not self.closing:
            secure = await self._loop.start_tls(self._open_transport, self, context, server_hostname=host)
        if secure is None:
            raise ConnectionResetError("the connection was closed before the TLS handshake was done")
        self.transport = secure
        self._secure = True
        self._reader = AnswerReader(self._known)  # the last one has read what a proxy answered

    def enlist(self) -> None:
        """Be among ``everyone``, until the connection is lost."""
        if not self.closing:
            self._everyone.add(self)

    def abort(self) -> None:
        """Close the connection at once."""
        self._retire()
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close the idle connection; say so to the other end of a secure one, but wait for no reply."""
        self._retire()
        if self.transport is not None:
            self.transport.close()
            if self._secure:
                self.transport.abort()

    def fail(self, reason: str) -> None:
        """End what is under way."""
        if self._waiter is not None:
            self._settle(Broken(reason))
        else:
            self.close()

    # For asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # its size is what it is
        """Return where to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take a part of the answer; what comes while nobody asked ends the connection."""
        if self._waiter is None:
            self.abort()
        elif self._reader.feed(self._buffer[:nbytes]):
            if nbytes == len(self._buffer):  # TLS may hold more, which nothing tells
                self._reader.reusable = False
            self._conclude()

    def eof_received(self) -> None:
        """Take the end of what the other end says."""
        if self._waiter is None:
            self.abort()
        elif self._secure and not self._took_leave():
            self._lose(None)
        else:
            self._reader.end()
            self._conclude()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._retire()
        self._everyone.discard(self)
        if self._waiter is not None:
            self._lose(exc)

    # Inside.

    def _took_leave(self) -> bool:
        """Whether the other end closed the secure connection by TLS: anybody can close the one below it.

        asyncio takes one for the other, as Python's contexts do unless told otherwise.
        """
        try:
            left = self._open_transport.get_extra_info("ssl_object").read(1)
        except ssl.SSLError:
            return False
        return not left

    @property
    def _open_transport(self) -> asyncio.Transport:
        assert self.transport is not None  # noqa: S101  # only a connection that was made gets so far
        return self.transport

    def _lose(self, error: Exception | None) -> None:
        where = "within" if self._reader.begun else "before"
        self._settle(Broken(f"the connection was lost {where} the answer", error))

    def _conclude(self) -> None:
        reader = self._reader
        if reader.whole:
            self._settle(reader.response(), reusable=reader.reusable)
        else:
            self._settle(Broken(reader.fault, limit=self._known.limit if reader.too_large else None))

    def _settle(self, outcome: Response | Broken, *, reusable: bool = False) -> None:
        """Give the future what it waited for, and put the connection on its stack, or close it."""
        waiter, self._waiter = self._waiter, None
        tunnelled, self._tunnel = self._tunnel, False
        assert waiter is not None  # noqa: S101  # only what is under way can be settled
        if waiter.done():  # cancelled
            reusable = False
        else:
            waiter.set_result(outcome)
        transport = self._open_transport
        if reusable and not transport.is_closing() and not transport.get_write_buffer_size():
            self.idle_since = time.monotonic()
            if not tunnelled:
                self._idle[self] = None
        else:  # also where the answer came before the request was written whole
            self.abort()

    def _retire(self) -> None:
        self._idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = when
        self._timer = self._loop.call_later(min(max(when - time.monotonic(), 0.0), LONGEST_NAP), self._ring)

    def _ring(self) -> None:
        self._timer = None
        due = self.idle_since + SPARE if self._waiter is None else self._deadline
        if due > time.monotonic():
            self._set_timer(due)
        elif self._waiter is None:
            self.close()
        else:
            self._settle(Broken(late=True))


Idle = dict[Connection, None]
"""A stack of idle connections, from the middle of which one can be taken: ``popitem`` gives the one put there last."""


def _poll(descriptor: int) -> Callable[[], object]:
    """Return a function that tells whether there is something to read, or the end."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return lambda: poll.poll(0)
    return lambda: select.select([descriptor], [], [], 0)[0]  # Windows
