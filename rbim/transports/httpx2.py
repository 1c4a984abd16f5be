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

from rbim.transports.httpx_slots.transport import PARTS, HttpxSlots

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Httpx2Transport"]


class Httpx2Transport(HttpxSlots[httpx2.AsyncBaseTransport]):
    """A transport that uses httpx2: HTTP/1.1, on asyncio and trio.

    The options are those of all transports, and ``carrier``: an ``httpx2.AsyncBaseTransport``, to use in place of the slots.
    Importing this module raises ModuleNotFoundError if httpx2 is not installed.
    """

    keeps_timeouts = True
    library: ClassVar[ModuleType] = httpx2
    library_version = f"httpx2/{httpx2.__version__}"
    engine = "httpcore2"
    loggers = tuple(f"httpcore2.{name}" for name in PARTS)
