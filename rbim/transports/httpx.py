"""httpx, one single-connection transport per request in flight.

Why not one ``httpx.AsyncClient`` with its pool: httpcore 1.0 looks through its whole list of connections at the start and
the end of each request, which is quadratic in the requests in flight, and requests that queue inside it may leak their
place when they are cancelled. So each request has a slot of its own: see :mod:`rbim.transports.httpx_slots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import httpx

from rbim.transports.httpx_slots import Body, HttpxSlots

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["HttpxTransport"]


class _Body(Body, httpx.AsyncByteStream):
    """The bytes of a request."""


class HttpxTransport(HttpxSlots[httpx.AsyncBaseTransport]):
    """Carries requests with httpx over HTTP/1.1, on asyncio and trio.

    TLS is verified against the machine's or certifi's certificates; ``verify`` takes an ``ssl.SSLContext``, the path of a CA
    bundle, or False; ``cert`` the path of a client certificate with its key, or a pair of paths. ``proxy`` is the address
    of an HTTP proxy; without one, ``trust_env`` takes it from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and
    ``NO_PROXY``. ``uds`` is the path of a UNIX socket behind which every origin is, in the place of any proxy. A connection
    idle for more than ``keepalive_expiry`` seconds is not used for a request that must not be repeated, since the server
    may be closing it. An answer of more than ``answer_limit`` bytes is AnswerTooLarge.

    ``carrier`` is an ``httpx.AsyncBaseTransport`` of one's own, such as a ``MockTransport``, in place of the slots.

    Raises InvalidRequest for a ``proxy`` together with ``uds``.
    """

    library: ClassVar[ModuleType] = httpx
    core = "httpcore"
    body = _Body
