"""The base of the httpx and httpx2 transports: one connection of httpcore, the engine of both, per request in flight.

rbim's client limits the number of requests in flight. Here each request has a slot: a connection of its own to its origin,
driven by httpcore. Idle slots wait on a stack; the one used last is used first. The modules of the two transports say why
the library's own pool is not used.

If the library brings no httpcore, each request has a transport of the library and a new connection: without httpcore,
nothing shows whether bytes came behind a response, and they would be read as the response to the next request.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import anyio

from rbim._support.event_loops import spawn
from rbim.errors import InvalidRequest, NotSent, TransportError, Unanswered
from rbim.transports._shared.base import BaseTransport
from rbim.transports._shared.connecting import too_late
from rbim.transports._shared.link import MAX_IDLE, Links, take
from rbim.transports._shared.network import proxy_for, tls_context
from rbim.transports._shared.redaction import LogRedactor, sanitized, strip_frames
from rbim.transports.httpx_slots.asyncio_slot import Late
from rbim.transports.httpx_slots.carrier import Carriage, failure
from rbim.transports.httpx_slots.exchange import Stale
from rbim.transports.httpx_slots.route import PLAIN, Route

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from rbim.http import Request, Response
    from rbim.transports.httpx_slots.carrier import Body
    from rbim.transports.httpx_slots.route import Slot

__all__ = ["HttpxSlots", "Sweeper"]

PERIOD = 1.0
"""Seconds between two sweeps, at most."""


class Sweeper:
    """Calls ``sweep`` every PERIOD seconds, or every ``max_idle`` seconds if that is less, as long as it returns True.

    Its task does not keep the event loop running, and no block has to be left in order.
    """

    def __init__(self, sweep: Callable[[], bool], max_idle: float) -> None:
        self._sweep = sweep
        self._max_idle = max_idle
        self._scope: anyio.CancelScope | None = None
        self._task: object = None

    def start(self) -> None:
        """Begin, if it does not run yet: there are idle connections."""
        if self._scope is None:
            self._scope = anyio.CancelScope()
            self._task = spawn(partial(self._run, self._scope), name="rbim-idle")

    def stop(self) -> None:
        """End: there are no idle connections any more."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None

    async def _run(self, scope: anyio.CancelScope) -> None:
        with scope:
            more = True
            while more:
                await anyio.sleep(min(PERIOD, self._max_idle))
                more = self._sweep()
        if self._scope is scope:
            self._scope = None


C = TypeVar("C")
T = TypeVar("T")

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0


class HttpxSlots(BaseTransport, Generic[C]):
    """The base of HttpxTransport and Httpx2Transport; ``C`` is the library's AsyncBaseTransport.

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
    - ``carrier``: a transport of the library, such as a ``MockTransport``, to use in place of the slots.

    Raises InvalidRequest if both ``proxy`` and ``uds`` are given.
    """

    library: ClassVar[ModuleType]
    engine: ClassVar[str]
    body: ClassVar[type[Body]]

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        uds: str | None = None,
        keepalive_expiry: float = KEEPALIVE,
        max_idle: float = MAX_IDLE,
        answer_limit: int = ANSWER_LIMIT,
        carrier: C | None = None,
    ) -> None:
        if proxy is not None and uds is not None:
            raise InvalidRequest(
                "proxy: a proxy and a UNIX socket exclude each other: give proxy or uds, not both", field="proxy"
            )
        self.keepalive_expiry = keepalive_expiry
        self.max_idle = max_idle
        self.answer_limit = answer_limit
        self._verify = verify
        self._cert = cert
        self._proxy = proxy
        self._trust_env = trust_env
        self._uds = uds
        self._carrier: Any = carrier
        self._carriage = Carriage(self.library, self.body, answer_limit)
        self._context: ssl.SSLContext | None = None
        self._core: ModuleType | None = None
        self._links: Links | None = None
        self._sweeper: Sweeper | None = None  # on trio
        self._routes: dict[str, Route] = {}
        self._is_open = False
        self._log = LogRedactor(*(f"{self.engine}.{name}" for name in ("http11", "connection", "proxy", "socks")))

    async def _open(self) -> None:
        if self._carrier is not None:
            await self._carrier.__aenter__()
        else:
            with suppress(ImportError):
                self._core = import_module(self.engine)
            try:
                self._links = Links(self.max_idle)
            except RuntimeError:  # trio
                self._sweeper = Sweeper(self._sweep, self.max_idle)
        self._log.attach()
        self._is_open = True

    async def _close(self) -> None:
        self._is_open = False
        self._log.detach()
        if self._carrier is not None:
            await self._carrier.__aexit__(None, None, None)
        for route in self._routes.values():
            for slot in [*route.idle]:
                slot.close()
        self._routes.clear()
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.stop()
        links, self._links = self._links, None
        if links is not None:
            await links.close()

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced here
        """Send one request and return its response; ``timeout`` is in seconds.

        Raises NotSent, Unanswered or AnswerTooLarge.
        """
        try:
            return await self._exchange(request, timeout)
        except Exception:
            raise
        except BaseException as interruption:
            strip_frames(interruption)
            raise

    async def _exchange(self, request: Request, seconds: float) -> Response:
        if not self._is_open:
            raise NotSent("the transport is not open: use it inside 'async with'")
        if seconds <= 0:
            raise NotSent(too_late(request, seconds))
        self._log.remember(request)
        if self._carrier is not None:
            return await self._carriage.exchange(self._carrier, request, seconds)
        if self._core is None:
            return await self._over_library(request, seconds)
        route = self._routes.get(request.origin) or self._made(self._new_route, request)
        return await self._over_slot(route, request, seconds)

    @staticmethod
    def _made(make: Callable[[str], T], request: Request) -> T:
        try:
            return make(request.origin)
        except Exception as error:  # a missing CA bundle, an invalid address of the origin or the proxy
            raise NotSent(f"cannot connect: {error}") from sanitized(error, request.secrets)

    async def _over_library(self, request: Request, seconds: float) -> Response:
        carrier = self._made(self._library_transport, request)
        try:
            return await self._carriage.exchange(carrier, request, seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await carrier.aclose()

    async def _over_slot(self, route: Route, request: Request, seconds: float) -> Response:
        now = time.monotonic()
        deadline = now + seconds
        oldest = -1.0 if request.repeatable else now - self.keepalive_expiry
        while True:
            used: Slot | None = take(route.idle, oldest, look=False)  # the slot looks, when it writes
            slot = used or route.new_slot()
            slot.exchange.begin(request.method, kept=used is not None)
            try:
                if used is not None and slot.keeps_deadline(deadline):
                    return await route.exchange(slot, request, self.answer_limit)
                with anyio.move_on_after(deadline - time.monotonic()):
                    if used is None:
                        await route.open(slot)
                    return await route.exchange(slot, request, self.answer_limit)
            except TransportError:
                raise
            except Stale:
                continue
            except Late:
                pass
            except Exception as error:
                progress = slot.exchange
                made = failure(
                    error,
                    request,
                    sent=progress.sent,
                    new=used is None,
                    failed=progress.failed,
                    proxy=self._proxy_address(request.origin),
                    uds=self._uds,
                )
                raise made from sanitized(error, request.secrets)
            finally:
                self._release(route, slot)
            if slot.exchange.sent:
                raise Unanswered(f"no complete response within {seconds:g} s")
            raise NotSent(too_late(request, seconds, proxy=self._proxy_address(request.origin), uds=self._uds))

    def _release(self, route: Route, slot: Slot) -> None:
        """Put the slot on its stack, or close it."""
        if not self._is_open or not slot.rest():
            slot.abort()
            return
        route.idle[slot] = None
        if self._sweeper is not None:
            self._sweeper.start()

    def _sweep(self) -> bool:
        """Close the slots that were idle for too long, or whose server has closed; return whether there are others."""
        latest = time.monotonic() - self.max_idle
        for route in self._routes.values():
            for slot in [*route.idle]:
                if slot.idle_since <= latest or slot.stale:
                    route.idle.pop(slot)
                    slot.close()
        return any(route.idle for route in self._routes.values())

    def _new_route(self, origin: str) -> Route:
        proxy = self._proxy_for(origin)
        self._routes[origin] = route = Route(
            origin,
            library=self.library,
            core=cast("ModuleType", self._core),
            links=self._links,
            context=self._context_for(origin, proxy),
            proxy=proxy,
            uds=self._uds,
            message=self._carriage.message,
        )
        return route

    def _library_transport(self, origin: str) -> Any:
        proxy = self._proxy_for(origin)
        return self.library.AsyncHTTPTransport(
            verify=self._context_for(origin, proxy), trust_env=False, uds=self._uds, proxy=proxy
        )

    def _proxy_for(self, origin: str) -> Any:
        address = self._proxy_address(origin)
        if address is None:
            return None
        return self.library.Proxy(address, ssl_context=self._secure_context() if address.startswith("https:") else None)

    def _proxy_address(self, origin: str) -> str | None:
        return None if self._uds is not None else proxy_for(origin, self._proxy, trust_env=self._trust_env)

    def _context_for(self, origin: str, proxy: Any) -> ssl.SSLContext:
        secure = origin.startswith("https:") or (proxy is not None and proxy.url.scheme == "https")
        return self._secure_context() if secure else PLAIN

    def _prepare(self, origins: Iterable[str], *, secure: bool) -> None:
        if self._carrier is not None:
            return
        if self._sweeper is not None:
            import_module("rbim.transports.httpx_slots.anyio_slot")
        for origin in origins:
            if self._core is not None and origin not in self._routes:
                self._new_route(origin)
        if secure:
            self._secure_context()

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            default = self._verify is True
            verify = self.library.create_ssl_context(trust_env=self._trust_env) if default else self._verify
            context = tls_context(verify, self._cert)
            context.set_alpn_protocols(["http/1.1"])
            self._context = context
        return self._context
