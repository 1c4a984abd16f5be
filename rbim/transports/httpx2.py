"""httpx2, the maintained continuation of httpx, one single-connection transport per request in flight.

Why not its pool, which no longer scans quadratically: each request still begins and ends with a look at every connection.
CPU time per 1000 requests with 10, 100 and 1000 in flight against a constant answer: its pool without limits 461, 724 and
4,099 ms, one slot per request 424, 468 and 538 ms (httpx2 2.16, Python 3.11, a machine of two cores). So each request has a
slot of its own: see :mod:`rbim.transports.httpx_slots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rbim._support.text import missing_extra

try:
    import httpx2
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("Httpx2Transport", missing.name, "httpx2"), name=missing.name) from None

from rbim.transports.httpx_slots import Body, HttpxSlots

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Httpx2Transport"]


class _Body(Body, httpx2.AsyncByteStream):
    """The bytes of a request."""


class Httpx2Transport(HttpxSlots[httpx2.AsyncBaseTransport]):
    """Carries requests with httpx2 over HTTP/1.1, on asyncio and trio; the options are those of HttpxTransport.

    ``carrier`` is an ``httpx2.AsyncBaseTransport`` of one's own, such as a ``MockTransport``, in place of the slots.
    Importing this module raises ModuleNotFoundError where httpx2 is not installed.
    """

    library: ClassVar[ModuleType] = httpx2
    core = "httpcore2"
    body = _Body
