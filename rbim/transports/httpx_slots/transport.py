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
from attrs import define, field, frozen

from rbim._support.event_loops import spawn
from rbim.errors import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.http import answered
from rbim.transports._shared.base import BaseTransport, Options
from rbim.transports._shared.connecting import no_answer, no_connection, too_late
from rbim.transports._shared.heads import HeadCache, HeaderNames, fault_of
from rbim.transports._shared.link import DeadlinePassed, Links, take
from rbim.transports._shared.redaction import redacted, sanitized
from rbim.transports.httpx_slots.asyncio_slot import AsyncioSlot
from rbim.transports.httpx_slots.slot import StaleConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import ModuleType
    from typing import Unpack

    from rbim.http import Request, Response
    from rbim.transports.httpx_slots.trio_slot import TrioSlot

    AnySlot = AsyncioSlot | TrioSlot

__all__ = ["PARTS", "PLAIN", "Body", "CoreRoute", "HttpxSlots", "read_body"]

PARTS = ("http11", "connection", "proxy", "socks")  # loggers of httpcore
PERIOD = 1.0  # seconds between two sweeps, at most
BODILESS = frozenset({204, 304})
FRAMING = frozenset({"content-length", "transfer-encoding"})  # the caller's own, if a request has one
READ_AHEAD = 256 * 1024  # bytes past the limit that may be read before the connection is closed; httpcore reads 64 KiB

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


class Body:
    """A request body. The library's own are generators: trio warns about those that a failure leaves unfinished."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._done = not body

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._done = not self._body
        return self

    async def __anext__(self) -> bytes:
        if self._done:
            raise StopAsyncIteration
        self._done = True
        return self._body


async def read_body(answer: Any, limit: int) -> bytes:
    """Return the whole body of a response of the library or of httpcore. Raises AnswerTooLarge.

    Then the connection is closed, but the bytes already read are consumed to their end:
    trio would warn about unfinished generators of httpcore.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async for part in answer.stream:
            before, size = size, size + len(part)
            if size <= limit:
                parts.append(part)
            elif before <= limit:
                parts.clear()
                await answer.aclose()
            elif size > limit + READ_AHEAD:
                break
    except Exception:
        if size <= limit:
            raise
    finally:
        await answer.aclose()
    if size > limit:
        part = b""  # no local of this frame holds a part of the response, which may repeat the request
        raise AnswerTooLarge(f"the response body is longer than {limit} bytes", limit=limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@frozen(repr=False)
class _Head:
    """URL and headers of similar requests, for httpcore; if ``counted``, the length of the body belongs behind them."""

    url: Any
    headers: list[tuple[bytes, bytes]]
    counted: bool


@define(eq=False)
class CoreRoute:
    """The route to an ``origin`` of httpcore, with its idle slots; ``proxy`` is a proxy of the library, or None."""

    origin: Any
    context: ssl.SSLContext
    proxy: Any
    heads: HeadCache[_Head] = field(factory=HeadCache[_Head], init=False)
    idle: dict[Any, None] = field(factory=dict[Any, None], init=False)


C = TypeVar("C")


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

    async def _send(self, request: Request, seconds: float) -> Response:  # noqa: C901, PLR0912  # the whole turn, in order
        if self._carrier is not None:
            return await self._carried(self._carrier, request, seconds)
        route: CoreRoute = self._routes.get(request.origin) or self._route_for(request)
        now = time.monotonic()
        oldest = -1.0 if request.repeatable else now - self.keepalive_expiry
        while True:
            used: AnySlot | None = take(route.idle, oldest, look=False)  # the slot looks, when it writes
            slot = used or self._new_slot(route)
            slot.begin_turn(now + seconds, kept=used is not None)
            try:
                if used is None and route.proxy is None:  # behind a proxy, httpcore connects the slot itself
                    host = route.origin.host.decode("ascii")
                    await slot.connect_tcp(host, route.origin.port, self._uds)
                    if route.origin.scheme == b"https":
                        await slot.start_tls(route.context, host, None)
                return await self._exchange(slot, route, request)
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
                if self._users and slot.rest():
                    route.idle[slot] = None
                    if self._links is None and self._sweeping is None:  # trio: a task closes idle slots
                        self._sweeping = anyio.CancelScope()
                        self._task = spawn(partial(self._sweep, self._sweeping), name="rbim-idle")
                else:
                    slot.abort()
            if slot.sent:
                raise Unanswered(f"no complete response within {seconds:g} s")
            raise NotSent(too_late(request, seconds, proxy=self._proxy_address(request.origin), uds=self._uds))

    def _new_slot(self, route: CoreRoute) -> AnySlot:
        core, proxy = self._core, route.proxy
        slot: AnySlot
        if self._links is not None:
            slot = AsyncioSlot(self._links, route.idle, core)
        else:
            from rbim.transports.httpx_slots.trio_slot import TrioSlot

            slot = TrioSlot(core)
        if proxy is None:
            slot.http = core.AsyncHTTP11Connection(origin=route.origin, stream=slot)
            return slot
        options: dict[str, Any] = {  # of httpcore's pool for one connection, made of this slot
            "proxy_url": self._core_url(proxy.url),
            "proxy_auth": proxy.raw_auth,
            "ssl_context": route.context,
            "max_connections": 1,
            "network_backend": slot,
        }
        if proxy.url.scheme.startswith("socks"):
            slot.http = core.AsyncSOCKSProxy(**options)
        else:
            options |= {"proxy_headers": proxy.headers.raw, "proxy_ssl_context": proxy.ssl_context}
            slot.http = core.AsyncHTTPProxy(**options)
        return slot

    async def _exchange(self, slot: AnySlot, route: CoreRoute, request: Request) -> Response:
        # No local holds the signed address: a traceback with locals must not show it.
        answer = await slot.http.handle_async_request(self._core_request(route, request))
        body = await read_body(answer, self.answer_limit)
        headers = self._names.joined(answer.headers)
        chunked, version = "transfer-encoding" in headers, answer.extensions["http_version"]
        if (chunked or version != b"HTTP/1.1") and (fault := fault_of(version.decode("ascii")[len("HTTP/") :], headers)):
            raise Unanswered(fault)
        slot.complete = slot.ends_with(body, chunked=chunked and answer.status not in BODILESS)
        return answered(answer.status, headers, body)

    def _core_request(self, route: CoreRoute, request: Request) -> Any:
        head = route.heads.get(request)
        if head is None:
            message, given = self._message(request), {name.lower() for name in request.headers}
            fixed = [
                each for each in message.headers.raw if each[0].lower() != b"content-length" or "content-length" in given
            ]
            head = _Head(self._core_url(message.url), fixed, given.isdisjoint(FRAMING))
            route.heads.keep(request, head)
        headers = [*head.headers, (b"Content-Length", b"%d" % len(request.body))] if head.counted else head.headers
        return self._core.Request(request.method, head.url, headers=headers, content=Body(request.body))

    def _core_url(self, url: Any) -> Any:
        return self._core.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)

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
        to = self._core_url(self.library.URL(origin)).origin
        if to.scheme not in {b"http", b"https"} or not to.host:
            raise ValueError("invalid address: use http://host:port or https://host:port")
        self._routes[origin] = route = CoreRoute(to, context, proxy)
        return route

    def _prepare(self, origins: Iterable[str], *, secure: bool) -> None:
        if self._carrier is None:
            if self._links is None:
                import_module("rbim.transports.httpx_slots.trio_slot")
            super()._prepare(origins, secure=secure)

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            if self._verify is True:
                self._verify = self.library.create_ssl_context(trust_env=self._trust_env)
            super()._secure_context().set_alpn_protocols(["http/1.1"])
        return super()._secure_context()

    # Over a carrier.

    def _message(self, request: Request) -> Any:
        """Return the request of the library. Raises the library's InvalidURL."""
        message = self.library.Request(
            request.method, request.origin + request.target, headers=[*request.headers.items()], content=request.body
        )
        message.stream = type("Body", (Body, self.library.AsyncByteStream), {})(request.body)
        return message

    async def _carried(self, carrier: Any, request: Request, seconds: float) -> Response:
        # No local holds the signed address: a traceback with locals must not show it.
        try:
            with anyio.move_on_after(seconds):
                answer = await carrier.handle_async_request(self._message(request))
                body = await read_body(answer, self.answer_limit)
                return answered(answer.status_code, self._names.joined(answer.headers.raw), body)
        except TransportError:
            raise
        except Exception as error:
            sent = not isinstance(error, tuple(getattr(self.library, name) for name in NOT_SENT))
            raise self._failure(error, request, sent=sent) from sanitized(error, request.secrets)
        raise Unanswered(f"no complete response within {seconds:g} s")
