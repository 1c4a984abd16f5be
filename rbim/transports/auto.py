"""The transport that chooses by itself, asyncio's where it can serve, otherwise httpx's; and transports by their names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rbim._support.text import quoted
from rbim.errors import InvalidRequest, NotSent
from rbim.transports import TRANSPORTS
from rbim.transports._shared.base import BaseTransport
from rbim.transports._shared.network import proxies_from_env

if TYPE_CHECKING:
    import ssl
    from typing import TypedDict

    from rbim.http import Request, Response, Transport
    from rbim.transports.asyncio.transport import AsyncioTransport
    from rbim.transports.httpx import HttpxTransport

    class _Options(TypedDict):
        verify: ssl.SSLContext | str | bool
        cert: str | tuple[str, str] | None
        proxy: str | None
        trust_env: bool
        uds: str | None
        keepalive_expiry: float
        max_idle: float
        answer_limit: int


__all__ = ["AutoTransport", "transport_named"]

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
MAX_IDLE = 60.0


class AutoTransport(BaseTransport):
    """AsyncioTransport on asyncio and uvloop, HttpxTransport on trio; also HttpxTransport if a proxy is not ``http://``.

    The choice is made when the transport is entered, from ``proxy``, or with ``trust_env`` from the proxies of the
    environment. The options are those of AsyncioTransport:

    - ``verify``: an ``ssl.SSLContext``, the path of a CA bundle, or False for no verification. Default: verify against the
      machine's certificates.
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
    ) -> None:
        if proxy is not None and uds is not None:
            raise InvalidRequest(
                "proxy: a proxy and a UNIX socket exclude each other: give proxy or uds, not both", field="proxy"
            )
        self._options: _Options = {
            "verify": verify,
            "cert": cert,
            "proxy": proxy,
            "trust_env": trust_env,
            "uds": uds,
            "keepalive_expiry": keepalive_expiry,
            "max_idle": max_idle,
            "answer_limit": answer_limit,
        }
        self.chosen: AsyncioTransport | HttpxTransport | None = None
        """The transport that was chosen, from when this one is entered."""

    async def _open(self) -> None:
        chosen: AsyncioTransport | HttpxTransport | None = self._asyncio_transport() if self._asyncio_can_serve() else None
        if chosen is None:
            from rbim.transports.httpx import HttpxTransport

            chosen = HttpxTransport(**self._options)
        await chosen.__aenter__()
        self.chosen = chosen

    async def _close(self) -> None:
        if self.chosen is not None:
            await self.chosen.__aexit__(None, None, None)

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced by the chosen one
        """Send one request and return its response; ``timeout`` is in seconds.

        Raises NotSent, Unanswered or AnswerTooLarge.
        """
        if self.chosen is None:
            raise NotSent("the transport is not open: use it inside 'async with'")
        return await self.chosen.send(request, timeout=timeout)

    async def warm_up(self, *origins: str) -> None:
        """Prepare the transport that was chosen (see its own ``warm_up``)."""
        if self.chosen is None:
            raise RuntimeError("the transport is not open: use it inside 'async with'")
        await self.chosen.warm_up(*origins)

    def _asyncio_can_serve(self) -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # trio
            return False
        options = self._options
        if options["proxy"] is not None:
            proxies = [options["proxy"]]
        elif options["trust_env"] and options["uds"] is None:
            proxies = proxies_from_env()
        else:
            proxies = []
        return all("://" not in each or each.startswith("http://") for each in proxies)

    def _asyncio_transport(self) -> AsyncioTransport | None:
        try:
            from rbim.transports.asyncio.transport import AsyncioTransport
        except ImportError:  # neither httptools nor h11
            return None
        return AsyncioTransport(**self._options)


def transport_named(name: str) -> Transport:
    """Return a new transport with this name.

    Raises InvalidRequest for an unknown name, and ModuleNotFoundError, with the pip command in its message, if the library
    is not installed.
    """
    match name:
        case "auto":
            return AutoTransport()
        case "httpx2":
            from rbim.transports.httpx2 import Httpx2Transport

            return Httpx2Transport()
        case "aiohttp":
            from rbim.transports.aiohttp.transport import AiohttpTransport

            return AiohttpTransport()
        case "asyncio":
            from rbim.transports.asyncio.transport import AsyncioTransport

            return AsyncioTransport()
        case "httpx":
            from rbim.transports.httpx import HttpxTransport

            return HttpxTransport()
        case _:
            raise InvalidRequest(
                f"transport: {quoted(name)} is not a transport; known are {', '.join(TRANSPORTS)}", field="transport"
            )
