"""The route to an origin: its slots, how they are opened, and requests and responses in the terms of httpcore."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from rbim.http import answered
from rbim.transports._shared.head_cache import HeadCache
from rbim.transports.httpx_slots.asyncio_slot import AsyncioSlot
from rbim.transports.httpx_slots.carrier import Body, read_body, too_large
from rbim.transports.httpx_slots.exchange import Stale

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from rbim.http import Request, Response
    from rbim.transports._shared.link import Links
    from rbim.transports.httpx_slots.anyio_slot import AnyioSlot

    Slot = AsyncioSlot | AnyioSlot

__all__ = ["PLAIN", "Route"]

MAX_NAMES = 256  # cached header names
MAX_NAME = 64  # bytes

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A context for http:// origins, which need no certificates: loading them is slow."""


class _Head:
    """URL and headers of similar requests, as httpcore takes them. The repr shows no value (they are signed)."""

    __slots__ = ("_counted", "_headers", "url")

    def __init__(self, request: Request, message: Any, url: Any) -> None:
        self.url = url
        given = {name.lower() for name in request.headers}
        self._counted = bool(request.body) and "content-length" not in given and "content-length" in message.headers
        self._headers = [
            (name, value) for name, value in message.headers.raw if not (self._counted and name.lower() == b"content-length")
        ]

    def headers_for(self, body: bytes) -> list[tuple[bytes, bytes]]:
        """Return the headers for another body. Both bodies must be empty, or neither."""
        return [*self._headers, (b"Content-Length", b"%d" % len(body))] if self._counted else self._headers


class Route:
    """The route to one origin, with its idle slots; ``proxy`` is a proxy of the library, or None.

    ``library`` is httpx or httpx2, ``core`` is its httpcore. Raises ValueError for an invalid origin.
    """

    def __init__(  # noqa: PLR0913  # all by keyword
        self,
        origin: str,
        *,
        library: ModuleType,
        core: ModuleType,
        links: Links | None,
        context: ssl.SSLContext,
        proxy: Any,
        uds: str | None,
        message: Callable[[Request], Any],
    ) -> None:
        self._core = core
        self._links = links
        self._context = context
        self._proxy = proxy
        self._uds = uds
        self._message = message
        self._origin = self._url(library.URL(origin)).origin
        self._secure = self._origin.scheme == b"https"
        if self._origin.scheme not in {b"http", b"https"} or not self._origin.host:
            raise ValueError("invalid address: use http://host:port or https://host:port")
        self._heads: HeadCache[_Head] = HeadCache()
        self._names: dict[bytes, str] = {}
        self.idle: dict[Any, None] = {}

    def new_slot(self) -> Slot:
        """Return a slot that is not connected: :meth:`open` connects it."""
        slot: Slot
        if self._links is not None:
            slot = AsyncioSlot(self._links, self.idle, self._core)
        else:
            from rbim.transports.httpx_slots.anyio_slot import AnyioSlot

            slot = AnyioSlot(self._core)
        if self._proxy is None:
            slot.http = self._core.AsyncHTTP11Connection(origin=self._origin, stream=slot)
        else:
            slot.http = self._pool(slot)
        return slot

    async def open(self, slot: Slot) -> None:
        """Connect a slot; behind a proxy, httpcore does so in the first exchange. Raises httpcore's ConnectError."""
        if self._proxy is not None:
            return
        host = self._origin.host.decode("ascii")
        await slot.connect_to(host, self._origin.port, self._uds)
        if self._secure:
            await slot.start_tls(self._context, host)

    async def exchange(self, slot: Slot, request: Request, limit: int) -> Response:
        """Send a request over a slot, and read its response, with a body of at most ``limit`` bytes.

        Raises AnswerTooLarge, and the exceptions of httpcore.
        """
        # No local holds the signed address: a traceback with locals must not show it.
        answer = await slot.http.handle_async_request(self._core_request(request))
        body = await read_body(answer, limit)
        if body is None:
            raise too_large(limit)
        headers: dict[str, str] = {}
        names = self._names
        for raw_name, raw_value in answer.headers:
            name, value = names.get(raw_name) or self._name(raw_name), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        slot.exchange.complete = slot.exchange.ends_with(body, chunked="transfer-encoding" in headers)
        return answered(answer.status, headers, body)

    def _name(self, raw: bytes) -> str:
        """Return a header name in lower case, and keep it if it is short."""
        name = raw.decode("latin-1").lower()
        if len(raw) <= MAX_NAME and len(self._names) < MAX_NAMES:
            self._names[raw] = name
        return name

    def _core_request(self, request: Request) -> Any:
        head = self._heads.get(request, not request.body)
        if head is None:
            message = self._message(request)
            head = self._heads.keep(request, _Head(request, message, self._url(message.url)), not request.body)
        return self._core.Request(
            request.method, head.url, headers=head.headers_for(request.body), content=Body(request.body)
        )

    def _url(self, url: Any) -> Any:
        return self._core.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)

    def _pool(self, slot: Slot) -> Any:
        """Return httpcore's pool for one connection through the proxy, made of this slot."""
        core, proxy = self._core, self._proxy
        options: dict[str, Any] = {
            "proxy_url": self._url(proxy.url),
            "proxy_auth": proxy.raw_auth,
            "ssl_context": self._context,
            "max_connections": 1,
            "network_backend": _Dialer(core, slot),
        }
        if proxy.url.scheme.startswith("socks"):
            return core.AsyncSOCKSProxy(**options)
        return core.AsyncHTTPProxy(**options, proxy_headers=proxy.headers.raw, proxy_ssl_context=proxy.ssl_context)


class _Dialer:
    """The network backend of httpcore's pools: it connects the one slot of a pool, once."""

    def __init__(self, core: ModuleType, slot: Slot) -> None:
        self._core = core
        self._slot: Slot | None = slot

    async def connect_tcp(self, host: str, port: int, **_: object) -> Slot:
        """Connect the slot to the proxy. Raises httpcore's ConnectError, or Stale if the slot was connected before."""
        slot, self._slot = self._slot, None
        if slot is None:  # httpcore has looked itself, and closed it
            raise Stale
        await slot.connect_to(host, port, None)
        return slot
