"""The base of all transports: the first of its users opens it, and the last one closes it; a warm-up."""

# States of a transport, and what moves it between them:
#
#   closed -> opening -> open       ``__aenter__`` of the first user; back to closed if opening fails or is cancelled
#   open -> open                    ``__aenter__`` and ``__aexit__`` of the other users
#   open -> closing -> closed       ``__aexit__`` of the last user; closed also if closing fails or is cancelled
#
# Always true: ``_users`` is above 0 in open only. ``_loop`` is the event loop, and None in closed.
# A user who enters while it is opening or closing waits, and then begins anew.

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict

from rbim._support.event_loops import current_loop
from rbim._support.lazy_names import late_anyio
from rbim.errors import InvalidRequest, NotSent, RbimError
from rbim.transports._shared.connecting import too_late
from rbim.transports._shared.network import tls_context
from rbim.transports._shared.proxies import given_proxy, proxy_for
from rbim.transports._shared.redaction import LogRedactor, sanitized, strip_frames

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from anyio import Event

    from rbim.http import Request, Response

__all__ = ["NOT_OPEN", "OTHER_LOOP", "BaseTransport", "Options"]

NOT_OPEN = "the transport is not open: use it inside 'async with'"
OTHER_LOOP = "the transport is open in another event loop: use one transport per event loop"
CLAIM = threading.Lock()
"""Held while an event loop becomes that of a transport: two threads may enter one at the same moment."""

IMPORTED_LATE = ("concurrent.futures.thread", "encodings.idna")
"""Modules that the standard library imports when it looks a host up."""


class Options(TypedDict, total=False):
    """The options of BaseTransport."""

    verify: ssl.SSLContext | str | bool
    cert: str | tuple[str, str] | None
    proxy: str | None
    trust_env: bool
    uds: str | None
    keepalive_expiry: float
    max_idle: float
    answer_limit: int


class BaseTransport(ABC):
    """A transport that may be entered by many clients of one event loop.

    It is opened once, by the first client that enters it, and closed when the last client has left it; then it can be
    entered again. Entering raises RuntimeError in another event loop than that of the clients that have not left it.

    - ``verify``: an ``ssl.SSLContext``, the path of a CA bundle, or False for no verification. Default: verify against the
      certificates of the machine.
    - ``cert``: the path of a client certificate with its key, or a pair of paths.
    - ``proxy``: the address of a proxy. Without it, ``trust_env`` (default: True) reads ``HTTP_PROXY``, ``HTTPS_PROXY``,
      ``ALL_PROXY`` and ``NO_PROXY``.
    - ``uds``: the path of a UNIX socket; all origins are reached through it, without a proxy.
    - ``keepalive_expiry``: seconds (default: 5). A connection that was idle for longer is not used for a request that must
      not be repeated, because the server may be closing it.
    - ``max_idle``: seconds (default: 60) after which an idle connection is closed.
    - ``answer_limit``: bytes (default: 8 MiB). A longer response body raises AnswerTooLarge.

    Raises InvalidRequest if both ``proxy`` and ``uds`` are given.
    """

    library_version = ""
    """The HTTP library in the ``User-Agent`` of requests, such as ``httpx/0.28.1``."""

    loggers: tuple[str, ...] = ()
    """The loggers of the library, whose records show no secret while the transport is open."""

    _users = 0
    _loop: object = None
    _changing = False
    _changed: Event | None = None

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        uds: str | None = None,
        keepalive_expiry: float = 5.0,
        max_idle: float = 60.0,
        answer_limit: int = 8 * 1024 * 1024,
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
        self._proxy = given_proxy(proxy)
        self._trust_env = trust_env
        self._uds = uds
        self._routes: dict[str, Any] = {}
        self._context: ssl.SSLContext | None = None
        self._log = LogRedactor(*self.loggers)

    async def __aenter__(self) -> Self:
        while self._join():
            changed = self._changed = self._changed or late_anyio().Event()
            await changed.wait()
        if self._users:
            self._users += 1
            return self
        self._changing = True
        try:
            await self._open()
            self._log.attach()
            self._users = 1
        finally:
            self._end_of_change()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if not self._users:
            return
        self._users -= 1
        if self._users:
            return
        self._changing = True
        self._log.detach()
        try:
            await self._close()
        finally:
            self._end_of_change()

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced by each transport
        """Send one request and return its response; ``timeout`` is in seconds.

        Raises NotSent, Unanswered or AnswerTooLarge.
        """
        if not self._users:
            raise NotSent(NOT_OPEN)
        if timeout <= 0:
            raise NotSent(too_late(request, timeout))
        if self._log.loggers[0].isEnabledFor(logging.DEBUG):
            self._log.remember(request)
        try:
            return await self._send(request, timeout)
        except Exception:
            raise
        except BaseException as interruption:
            strip_frames(interruption)
            raise

    async def _send(self, request: Request, seconds: float, /) -> Response:
        """Send one request, with a time-out above 0."""
        raise NotImplementedError

    async def warm_up(self, *origins: str) -> None:
        """Import and prepare what a first request needs, so that it does not hold up the event loop; connect to nothing.

        ``origins``, such as ``https://host:8883``, are prepared, with TLS only if one of them needs it; without any, TLS is
        prepared. Raises RuntimeError if the transport is not open, and NotSent for an option or origin that cannot be used.
        """
        if not self._users:
            raise RuntimeError(NOT_OPEN)
        for module in IMPORTED_LATE:
            import_module(module)
        try:
            self._prepare(origins, secure=not origins or any(origin.startswith("https:") for origin in origins))
        except (OSError, ValueError) as error:
            raise NotSent(f"cannot connect: {error}") from sanitized(error)

    @abstractmethod
    async def _open(self) -> None:
        """Open the transport. It stays closed if this raises."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the transport. It is closed even if this raises."""

    def _prepare(self, origins: Iterable[str], *, secure: bool) -> None:
        """Prepare routes to these origins, and TLS if ``secure``. Raises OSError or ValueError if that is not possible."""
        for origin in origins:
            if origin not in self._routes:
                self._new_route(origin)
        if secure:
            self._secure_context()

    def _route_for(self, request: Request) -> Any:
        """Return a new route for a request. Raises NotSent if an option or the origin cannot be used."""
        try:
            return self._new_route(request.origin)
        except RbimError:
            raise
        except Exception as error:  # a missing CA bundle, an invalid address of the origin or the proxy
            raise NotSent(f"cannot connect: {error}") from sanitized(error, request.secrets)

    def _new_route(self, origin: str) -> Any:
        """Return the route to an origin, and add it to the routes. Raises OSError or ValueError if that is not possible."""
        raise NotImplementedError

    def _asyncio_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop. Raises RuntimeError on trio."""
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(f"{type(self).__name__} runs on asyncio only: on trio, use HttpxTransport") from None

    def _proxy_address(self, origin: str) -> str | None:
        return None if self._uds is not None else proxy_for(origin, self._proxy, trust_env=self._trust_env)

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = tls_context(self._verify, self._cert)
        return self._context

    def _join(self) -> bool:
        """Make the caller's event loop that of the transport; return whether it is opening or closing.

        Raises RuntimeError if the transport has another event loop.
        """
        loop = current_loop()
        with CLAIM:
            if self._loop is None:
                self._loop = loop
        if self._loop is not loop:
            raise RuntimeError(OTHER_LOOP)
        return self._changing

    def _end_of_change(self) -> None:
        self._changing = False
        if not self._users:
            self._loop = None
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
