"""A slot on asyncio: one connection that httpcore drives, over a network stream that is a protocol of the event loop.

httpcore writes a request and reads its response through the methods of a network stream. This one writes head and body at
once, keeps the deadline with one timer, and knows which bytes are pending, also over TLS. Its states are those of
:mod:`rbim.transports._shared.link`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rbim.transports._shared.link import Link
from rbim.transports.httpx_slots.exchange import Exchange, Stale

if TYPE_CHECKING:
    import asyncio
    import ssl
    from types import ModuleType
    from typing import Self

    from rbim.transports._shared.link import Links

__all__ = ["AsyncioSlot", "Late"]


class Late(Exception):
    """The deadline of the exchange has passed. Raised through httpcore, by the stream that it reads."""


class AsyncioSlot(Link):
    """A slot on asyncio: the stream that httpcore reads is a protocol of the event loop."""

    __slots__ = ("_arrived", "_core", "_end", "_filled", "_waiter", "exchange", "http")

    def __init__(self, links: Links, idle: dict[Any, None], core: ModuleType) -> None:
        super().__init__(links, idle)
        self._core = core
        self._arrived: deque[bytes] = deque()
        self._end: Any = None  # an exception
        self._filled = False
        self._waiter: asyncio.Future[None] | None = None
        self.busy = True
        self.exchange = Exchange()
        self.http: Any = None
        """The connection of httpcore, or a pool for this one connection."""

    def keeps_deadline(self, deadline: float) -> bool:
        """Set the deadline of the exchange, and return True: a timer keeps it."""
        self.expect(deadline)
        return True

    def rest(self) -> bool:
        """End the exchange; return whether the slot can serve another one."""
        return not (self._arrived or self._filled or self._end) and self.exchange.complete and super().rest()

    def fail(self, reason: str) -> None:
        """Fail the exchange for this reason, or close the connection if it is idle."""
        if self.busy:
            self._stop(self._core.ReadError(reason))
        else:
            self.close()

    # A network stream of httpcore.

    async def connect_to(self, host: str, port: int, uds: str | None) -> None:
        """Connect. Raises httpcore's ConnectError."""
        try:
            await self.connect(host, port, uds)
        except OSError as error:
            self.exchange.failed = error
            raise self._core.ConnectError(str(error)) from error
        self.register()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109  # httpcore's signature; the exchange has a deadline
    ) -> Self:
        """Start TLS. Raises httpcore's ConnectError."""
        self._arrived.clear()  # a proxy's bytes must not pass for those of the origin
        try:
            await self.secure(ssl_context, server_hostname)
        except OSError as error:
            self.exchange.failed = error
            raise self._core.ConnectError(str(error)) from error
        return self

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109  # as above
        """Keep the bytes: they leave with those that follow, before the next read."""
        self.exchange.add(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109  # as above
        """Return the next bytes, or none at the end of the server's data. Raises httpcore's ReadError, Late or Stale."""
        if self.exchange.kept and self.stale:
            raise Stale
        message = self.exchange.message()
        if message and not self.closing:
            self.open_transport.write(message)
        while not self._arrived:
            if isinstance(self._end, EOFError):
                return b""
            if self._end is not None:
                raise self._end
            if self.closing:
                raise self._core.ReadError("the connection is closed")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._arrived.popleft()
        self.exchange.read_bytes.append(data)
        return data

    async def aclose(self) -> None:
        """Close the connection at once."""
        self.abort()

    def get_extra_info(self, info: str) -> Any:
        """Return the TLS object (``ssl_object``), or whether the idle connection has ended (``is_readable``)."""
        if info == "is_readable":
            return self.stale
        return self.transport.get_extra_info(info) if info == "ssl_object" and self.transport is not None else None

    # Called by asyncio, and what ends an exchange.

    def buffer_updated(self, nbytes: int) -> None:
        """Keep bytes of the response; without an exchange, close the connection."""
        if not self.busy:
            self.abort()
            return
        self._filled = nbytes == len(self._buffer)  # TLS may hold more bytes, and nothing shows it
        self._arrived.append(bytes(self._buffer[:nbytes]))
        self._wake()

    def late(self) -> None:
        """End the exchange: its deadline has passed."""
        self._stop(Late())

    def lost(self, error: Exception | None) -> None:
        """End the exchange: the connection was lost."""
        self._end = end = self._core.ReadError(f"the connection was lost{f': {error}' if error else ''}")
        end.__cause__ = error
        self._wake()

    def ended(self) -> None:
        """Note the end of the server's data."""
        self._end = EOFError()
        self._wake()

    def _stop(self, error: Exception) -> None:
        self._end = error
        self.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
