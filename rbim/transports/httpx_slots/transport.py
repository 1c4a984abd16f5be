"""The base of the httpx and httpx2 transports: one connection of httpcore, the engine of both, per request in flight.

rbim's client limits the number of requests in flight. Here each request has a slot: a connection of its own to its origin,
driven by httpcore. Idle slots wait on a stack; the one used last is used first. The modules of the two transports say why
the library's own pool is not used.
"""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import anyio

from rbim._support.event_loops import spawn
from rbim.errors import NotSent, TransportError, Unanswered
from rbim.http import answered
from rbim.transports._shared.base import BaseTransport, Options
from rbim.transports._shared.connecting import no_answer, no_connection, too_late
from rbim.transports._shared.heads import HeaderNames
from rbim.transports._shared.link import DeadlinePassed, Links
from rbim.transports._shared.redaction import redacted, sanitized
from rbim.transports.httpx_slots.slot import (
    AsyncioSlot,
    CoreRoute,
    StaleConnection,
    TrioSlot,
    core_url,
    message_of,
    read_body,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType
    from typing import Unpack

    from rbim.http import Request, Response

__all__ = ["PARTS", "HttpxSlots"]

C = TypeVar("C")
PARTS = ("http11", "connection", "proxy", "socks")  # loggers of httpcore
PERIOD = 1.0  # seconds between two sweeps, at most
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A context for http:// origins, which need no certificates: loading them is slow."""

# Exceptions of the library that mean NotSent: from a carrier, nothing else shows it.
NOT_SENT = (
    "ConnectTimeout",
    "ConnectError",
    "PoolTimeout",
    "ProxyError",
    "UnsupportedProtocol",
    "LocalProtocolError",
    "InvalidURL",
)


class HttpxSlots(BaseTransport, Generic[C]):
    """The base of HttpxTransport and Httpx2Transport; ``C`` is the library's AsyncBaseTransport.

    The options are those of all transports, and ``carrier``: a transport of the library, such as a ``MockTransport``, to use
    in place of the slots.
    """

    library: ClassVar[ModuleType]
    engine: ClassVar[str]

    def __init__(self, *, carrier: C | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._carrier: Any = carrier
        self._core: Any = None  # the library's httpcore, when the transport is open
        self._names = HeaderNames()
        self._links: Links | None = None
        self._sweeping: anyio.CancelScope | None = None  # on trio, while there are idle slots

    async def _open(self) -> None:
        if self._carrier is not None:
            await self._carrier.__aenter__()
        else:
            self._core = import_module(self.engine)
            with suppress(RuntimeError):  # trio
                self._links = Links(self.max_idle)

    async def _close(self) -> None:
        if self._carrier is not None:
            await self._carrier.__aexit__(None, None, None)
        for route in self._routes.values():
            for slot in [*route.idle]:
                slot.close()
        self._routes.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
        links, self._links = self._links, None
        if links is not None:
            await links.close()

    async def _send(self, request: Request, seconds: float) -> Response:  # noqa: C901  # the whole turn, in order
        if self._carrier is not None:
            return await self._carried(self._carrier, request, seconds)
        route: CoreRoute = self._routes.get(request.origin) or self._route_for(request)
        now = time.monotonic()
        oldest = -1.0 if request.repeatable else now - self.keepalive_expiry
        while True:
            used: AsyncioSlot | TrioSlot | None = route.idle.popitem()[0] if route.idle else None
            if used is not None and used.idle_since <= oldest:  # the others were idle for even longer
                used.close()
                used = None
            slot = used or (TrioSlot(route) if self._links is None else AsyncioSlot(self._links, route))
            try:
                return await slot.exchange(request, now + seconds, kept=used is not None)
            except TransportError:
                raise
            except StaleConnection:
                continue
            except DeadlinePassed:
                pass
            except Exception as error:
                cause = error if slot.sent else slot.failed or error
                raise self._failure(cause, request, sent=slot.sent, new=used is None) from sanitized(error, request.secrets)
            finally:
                if self._users and slot.complete and slot.rest():
                    route.idle[slot] = None
                    if self._links is None and self._sweeping is None:  # trio: a task closes idle slots
                        self._sweeping = anyio.CancelScope()
                        self._task = spawn(partial(self._sweep, self._sweeping), name="rbim-idle")
                else:
                    slot.abort()
            if slot.sent:
                raise Unanswered(f"no complete response within {seconds:g} s")
            raise NotSent(too_late(request, seconds, proxy=self._proxy_address(request.origin), uds=self._uds))

    def _failure(self, error: Exception, request: Request, *, sent: bool, new: bool = False) -> TransportError:
        """Return the error to raise, without secrets of the request; ``new``: the connection was new."""
        if not sent:
            return NotSent(no_connection(request, error, proxy=self._proxy_address(request.origin), uds=self._uds))
        text, name = redacted(str(error), request.secrets), type(error).__name__
        return Unanswered(no_answer(request, f"{name}: {text}" if text else name, new=new))

    async def _sweep(self, scope: anyio.CancelScope) -> None:
        """Close the slots that were idle for too long, or whose server has closed, until there are no others.

        The task does not keep the event loop running, and no block has to be left in order.
        """
        with scope:
            while any(route.idle for route in self._routes.values()):
                await anyio.sleep(min(PERIOD, self.max_idle))
                latest = time.monotonic() - self.max_idle
                for route in self._routes.values():
                    for slot in [*route.idle]:
                        if slot.idle_since <= latest or slot.stale:
                            route.idle.pop(slot)
                            slot.close()
        if self._sweeping is scope:
            self._sweeping = None

    def _new_route(self, origin: str) -> CoreRoute:
        address = self._proxy_address(origin)
        secure_proxy = address is not None and address.startswith("https:")
        context = self._secure_context() if secure_proxy or origin.startswith("https:") else PLAIN
        proxy = address and self.library.Proxy(address, ssl_context=context if secure_proxy else None)
        to = core_url(self._core, self.library.URL(origin)).origin
        if to.scheme not in {b"http", b"https"} or not to.host:
            raise ValueError("invalid address: use http://host:port or https://host:port")
        route = CoreRoute(self.library, self._core, self._names, self.answer_limit, to, context, proxy, self._uds)
        self._routes[origin] = route
        return route

    def _prepare(self, origins: Iterable[str], *, secure: bool) -> None:
        if self._carrier is None:
            super()._prepare(origins, secure=secure)

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            if self._verify is True:
                self._verify = self.library.create_ssl_context(trust_env=self._trust_env)
            super()._secure_context().set_alpn_protocols(["http/1.1"])
        return super()._secure_context()

    async def _carried(self, carrier: Any, request: Request, seconds: float) -> Response:
        # No local holds the signed address: a traceback with locals must not show it.
        try:
            with anyio.move_on_after(seconds):
                answer = await carrier.handle_async_request(message_of(self.library, request))
                body = await read_body(answer, self.answer_limit)
                return answered(answer.status_code, self._names.joined(answer.headers.raw), body)
        except TransportError:
            raise
        except Exception as error:
            sent = not isinstance(error, tuple(getattr(self.library, name) for name in NOT_SENT))
            raise self._failure(error, request, sent=sent) from sanitized(error, request.secrets)
        raise Unanswered(f"no complete response within {seconds:g} s")
