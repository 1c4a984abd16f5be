"""A slot on asyncio: a protocol of the event loop, whose states are those of :mod:`rbim.transports._shared.link`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rbim.transports._shared.link import DeadlinePassed, Link
from rbim.transports.httpx_slots.slot import Slot, StaleConnection

if TYPE_CHECKING:
    import asyncio
    import ssl
    from types import ModuleType
    from typing import Self

    from rbim.transports._shared.link import Links

__all__ = ["AsyncioSlot"]


class AsyncioSlot(Link, Slot):
    """A slot on asyncio: the stream that httpcore reads is a protocol of the event loop."""

    def __init__(self, links: Links, idle: dict[Any, None], core: ModuleType) -> None:
        Link.__init__(self, links, idle)
        Slot.__init__(self, core)
        self._arrived: deque[bytes] = deque()
        self._end: Exception | None = None
        self._filled = False
        self._waiter: asyncio.Future[None] | None = None

    def rest(self) -> bool:
        """End the turn; return whether the slot can serve another request."""
        return not (self._arrived or self._filled or self._end) and self.complete and super().rest()

    # A network stream of httpcore.

    async def connect_tcp(self, host: str, port: int, uds: str | None = None, **_: object) -> Self:
        """Connect, but only once. Raises DeadlinePassed, StaleConnection, or httpcore's ConnectError."""
        if self.transport is not None:
            raise StaleConnection  # httpcore's pool has closed it
        with self.opening(OSError):
            await self.connect(host, port, uds)
        self.register()
        return self

    async def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None, timeout: object) -> Self:  # noqa: ARG002, ASYNC109  # httpcore's
        """Start TLS. Raises DeadlinePassed, or httpcore's ConnectError."""
        self._arrived.clear()  # a proxy's bytes must not pass for those of the origin
        with self.opening(OSError):
            await self.secure(ssl_context, server_hostname)
        return self

    async def read(self, max_bytes: int, timeout: object = None) -> bytes:  # noqa: ARG002, ASYNC109  # httpcore's signature
        """Return the next bytes; none at the end. Raises DeadlinePassed, StaleConnection, or httpcore's ReadError."""
        transport = self.transport
        if self.kept and self.stale:
            raise StaleConnection
        if self._unwritten:
            message = self.message()
            self.expect(self._deadline)
            if transport is not None and not transport.is_closing():
                transport.write(message)
        while not self._arrived:
            if isinstance(self._end, EOFError):
                return b""
            if self._end is not None:
                raise self._end
            if transport is None or transport.is_closing():
                raise self.core.ReadError("the connection is closed")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._arrived.popleft()
        self.read_bytes.append(data)
        return data

    async def aclose(self) -> None:
        """Close the connection at once."""
        self.abort()

    def get_extra_info(self, info: str) -> Any:
        """Return the TLS object (``ssl_object``), or whether the idle connection has ended (``is_readable``)."""
        if info == "is_readable":
            return self.stale
        return self.transport.get_extra_info(info) if info == "ssl_object" and self.transport is not None else None

    # Called by asyncio, and what ends a turn.

    def buffer_updated(self, nbytes: int) -> None:
        """Keep bytes of the response; without a request, close the connection."""
        if not self.busy:
            self.abort()
            return
        self._filled = nbytes == len(self._buffer)  # TLS may hold more bytes, and nothing shows it
        self._arrived.append(bytes(self._buffer[:nbytes]))
        self._wake()

    def late(self) -> None:
        """End the turn: its deadline has passed."""
        self._stop(DeadlinePassed())

    def lost(self, error: Exception | None, reason: str = "the connection was lost") -> None:
        """End the turn: the connection was lost, or is closed for this reason."""
        end = self.core.ReadError(f"{reason}: {error}" if error else reason)
        end.__cause__ = error
        self._stop(end)

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
