"""The httpx2 transport: one connection of httpcore2, the engine of httpx2, per request in flight.

httpx2 is the maintained continuation of httpx. Its pool no longer scans quadratically, but each request still begins and
ends with a scan of all connections. So each request has its own slot: see :mod:`rbim.transports.httpx_slots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rbim._support.text import missing_extra

try:
    import httpx2
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("Httpx2Transport", missing.name, "httpx2"), name=missing.name) from None

from rbim.transports.httpx_slots.carrier import Body
from rbim.transports.httpx_slots.transport import HttpxSlots

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Httpx2Transport"]


class _Body(Body, httpx2.AsyncByteStream):
    """A request body as httpx2 reads it."""


class Httpx2Transport(HttpxSlots[httpx2.AsyncBaseTransport]):
    """A transport that uses httpx2: HTTP/1.1, on asyncio and trio.

    The options are those of HttpxTransport; ``carrier`` is an ``httpx2.AsyncBaseTransport``. Importing this module raises
    ModuleNotFoundError if httpx2 is not installed.
    """

    library: ClassVar[ModuleType] = httpx2
    engine = "httpcore2"
    body = _Body
