"""The httpx transport: one connection of httpcore, the engine of httpx, per request in flight.

The pool of ``httpx.AsyncClient`` is not used: httpcore 1.0 scans its whole list of connections at the start and the end of
each request, which is quadratic in the requests in flight, and a queued request that is cancelled may leak its place. So
each request has its own slot: see :mod:`rbim.transports.httpx_slots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import httpx

from rbim.transports.httpx_slots.carrier import Body
from rbim.transports.httpx_slots.transport import HttpxSlots

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["HttpxTransport"]


class _Body(Body, httpx.AsyncByteStream):
    """A request body as httpx reads it."""


class HttpxTransport(HttpxSlots[httpx.AsyncBaseTransport]):
    """A transport that uses httpx: HTTP/1.1, on asyncio and trio.

    - ``verify``: an ``ssl.SSLContext``, the path of a CA bundle, or False for no verification. Default: verify against the
      certificates of the machine or of certifi.
    - ``cert``: the path of a client certificate with its key, or a pair of paths.
    - ``proxy``: the address of an HTTP proxy. Without it, ``trust_env`` (default: True) reads ``HTTP_PROXY``,
      ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``.
    - ``uds``: the path of a UNIX socket; all origins are reached through it, without a proxy.
    - ``keepalive_expiry``: seconds (default: 5). A connection that was idle for longer is not used for a request that must
      not be repeated, because the server may be closing it.
    - ``max_idle``: seconds (default: 60) after which an idle connection is closed.
    - ``answer_limit``: bytes (default: 8 MiB). A longer response body raises AnswerTooLarge.
    - ``carrier``: an ``httpx.AsyncBaseTransport``, such as a ``MockTransport``, to use in place of the slots.

    Raises InvalidRequest if both ``proxy`` and ``uds`` are given.
    """

    library: ClassVar[ModuleType] = httpx
    engine = "httpcore"
    body = _Body
