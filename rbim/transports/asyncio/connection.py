"""One connection: an asyncio protocol that writes a request and sets the result of a future to its response."""

# The states of :mod:`rbim.transports._shared.link` hold. ``_waiter`` is set exactly while the connection is busy, and its
# future gets at most one result. The response to CONNECT ends an exchange too, but puts the connection on no stack.

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from rbim.errors import AnswerTooLarge, Unanswered
from rbim.transports._shared.connecting import no_answer
from rbim.transports._shared.link import Link
from rbim.transports._shared.redaction import redacted, sanitized
from rbim.transports.asyncio.answer import AnswerReader, KnownHeads

if TYPE_CHECKING:
    import asyncio
    import ssl

    from rbim.errors import TransportError
    from rbim.http import Request, Response
    from rbim.transports._shared.link import Links

__all__ = ["Broken", "Connection", "Idle"]


@frozen
class Broken:
    """The reason why there is no response.

    ``reason`` is rbim's own text, ``error`` an exception from below (or None). ``late``: the deadline passed. ``limit``: the
    body was longer than this many bytes.
    """

    reason: str = ""
    error: Exception | None = None
    late: bool = False
    limit: int | None = None

    def to_error(self, request: Request, *, new: bool) -> TransportError:
        """Return the error to raise, without secrets of the request; ``new``: the connection was just opened."""
        if self.limit is not None:
            return AnswerTooLarge(self.reason, limit=self.limit)
        if self.error is None:
            return Unanswered(no_answer(request, self.reason, new=new))
        cause = sanitized(self.error, request.secrets)
        text = f"{self.reason}: {type(cause).__name__}: {redacted(str(cause), request.secrets)}"
        failure = Unanswered(no_answer(request, text, new=new))
        failure.__cause__ = cause
        return failure


class Connection(Link):
    """One connection to one origin, idle or with one request in flight."""

    __slots__ = ("_known", "_reader", "_tunnel", "_waiter")

    def __init__(self, links: Links, idle: Idle, known: KnownHeads) -> None:
        super().__init__(links, idle)
        self._known = known
        self._reader = AnswerReader(known)
        self._waiter: asyncio.Future[Response | Broken] | None = None
        self._tunnel = False

    # Called by the transport.

    def ask(self, message: bytes, deadline: float, *, tunnel: bool = False) -> asyncio.Future[Response | Broken]:
        """Write one complete request and return the future of its response.

        ``deadline`` is a time of the monotonic clock. The frames of an exception from here contain ``message``.
        """
        self._reader.begin(tunnel=tunnel)
        self._tunnel = tunnel
        self.expect(deadline)
        self._waiter = waiter = self._loop.create_future()
        self.open_transport.write(message)
        return waiter

    def abandon(self, waiter: asyncio.Future[Response | Broken]) -> None:
        """Close the connection if it still works for this future, whose caller has stopped waiting."""
        if self._waiter is waiter:
            self._waiter = None
            self.abort()

    async def secure(self, context: ssl.SSLContext, host: str | None) -> None:
        """Start TLS on the open connection. Raises ConnectionResetError if it is closed before the handshake ends."""
        await super().secure(context, host)
        self._reader = AnswerReader(self._known)  # the last one has read the response of a proxy

    def fail(self, reason: str) -> None:
        """Fail the current request with this reason, or close the connection if it is idle."""
        if self._waiter is not None:
            self._settle(Broken(reason))
        else:
            self.close()

    # Called by asyncio, and what ends an exchange.

    def buffer_updated(self, nbytes: int) -> None:
        """Read a part of the response; without a request, close the connection."""
        if self._waiter is None:
            self.abort()
        elif self._reader.feed(self._buffer[:nbytes]):
            if nbytes == len(self._buffer):  # TLS may hold more bytes, and nothing shows it
                self._reader.reusable = False
            self._conclude()

    def late(self) -> None:
        """Tell the caller that the deadline has passed."""
        self._settle(Broken(late=True))

    def lost(self, error: Exception | None) -> None:
        """Tell the caller that the connection was lost."""
        if self._waiter is not None:
            where = "within" if self._reader.begun else "before"
            self._settle(Broken(f"the connection was lost {where} the response", error))

    def ended(self) -> None:
        """Conclude: the end of the server's data may be the end of the response."""
        self._reader.end()
        self._conclude()

    def _conclude(self) -> None:
        reader = self._reader
        if reader.whole:
            self._settle(reader.response(), reusable=reader.reusable)
        else:
            self._settle(Broken(reader.fault, limit=self._known.limit if reader.too_large else None))

    def _settle(self, outcome: Response | Broken, *, reusable: bool = False) -> None:
        """Set the result of the future; then put the connection on its stack, or close it."""
        waiter, self._waiter = self._waiter, None
        tunnelled, self._tunnel = self._tunnel, False
        assert waiter is not None  # noqa: S101  # only a busy connection can be settled
        if waiter.done():  # cancelled
            reusable = False
        else:
            waiter.set_result(outcome)
        if not reusable:
            self.abort()
        elif self.rest() and not tunnelled:
            self._idle[self] = None


Idle = dict[Connection, None]
"""A stack of idle connections that can lose any of its items: ``popitem`` removes the one added last."""
