"""The httpx transport: one connection of httpcore, the engine of httpx, per request in flight.

The pool of ``httpx.AsyncClient`` is not used: httpcore 1.0 scans its whole list of connections at the start and the end of
each request, which is quadratic in the requests in flight, and a queued request that is cancelled may leak its place. So
each request has its own slot: see :mod:`rbim.transports.httpx_slots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import httpx

from rbim.transports.httpx_slots.transport import PARTS, HttpxSlots

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["HttpxTransport"]


class HttpxTransport(HttpxSlots[httpx.AsyncBaseTransport]):
    """A transport that uses httpx: HTTP/1.1, on asyncio and trio.

    The options are those of all transports, and ``carrier``: an ``httpx.AsyncBaseTransport`` to use in place of the slots,
    such as a ``MockTransport``.
    """

    keeps_timeouts = True
    library: ClassVar[ModuleType] = httpx
    library_version = f"httpx/{httpx.__version__}"
    engine = "httpcore"
    loggers = tuple(f"httpcore.{name}" for name in PARTS)
