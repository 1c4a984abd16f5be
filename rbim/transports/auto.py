"""The transport that chooses by itself, asyncio's where it can serve, otherwise httpx's; and transports by their names."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from rbim._support.text import quoted
from rbim.errors import InvalidRequest, NotSent
from rbim.transports import TRANSPORTS
from rbim.transports._shared.base import NOT_OPEN, BaseTransport, Options
from rbim.transports._shared.proxies import proxies_from_env, proxy_address

if TYPE_CHECKING:
    from typing import Unpack

    from rbim.http import Request, Response, Transport
    from rbim.transports.asyncio.transport import AsyncioTransport
    from rbim.transports.httpx import HttpxTransport

__all__ = ["AutoTransport", "transport_named"]


class AutoTransport(BaseTransport):
    """AsyncioTransport on asyncio and uvloop, HttpxTransport on trio; also HttpxTransport if a proxy is not ``http://``.

    The choice is made when the transport is entered, from ``proxy``, or with ``trust_env`` from the proxies of the
    environment. The options are those of all transports.
    """

    keeps_timeouts = True
    chosen: AsyncioTransport | HttpxTransport | None = None
    """The transport that was chosen, from when this one is entered."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._options = options

    async def _open(self) -> None:
        chosen = self._chosen()
        await chosen.__aenter__()
        self.chosen = chosen
        self.library_version = chosen.library_version

    def _chosen(self) -> AsyncioTransport | HttpxTransport:
        with suppress(RuntimeError, ImportError, ValueError):  # trio; neither httptools nor h11; an invalid proxy
            asyncio.get_running_loop()
            from_env = self._trust_env and self._proxy is None and self._uds is None
            proxies = [proxy_address(*each) for each in proxies_from_env().values()] if from_env else [self._proxy]
            if all(proxy is None or proxy.startswith("http://") for proxy in proxies):
                from rbim.transports.asyncio.transport import AsyncioTransport

                return AsyncioTransport(**self._options)
        from rbim.transports.httpx import HttpxTransport

        return HttpxTransport(**self._options)

    async def _close(self) -> None:
        if self.chosen is not None:
            await self.chosen.__aexit__(None, None, None)

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced by the chosen one
        """Send one request, as :meth:`rbim.Transport.send` says."""
        if self.chosen is None:
            raise NotSent(NOT_OPEN)
        return await self.chosen.send(request, timeout=timeout)

    async def warm_up(self, *origins: str) -> None:
        """Prepare the transport that was chosen (see its own ``warm_up``)."""
        if self.chosen is None:
            raise RuntimeError(NOT_OPEN)
        await self.chosen.warm_up(*origins)


def transport_named(name: str) -> Transport:
    """Return a new transport with this name.

    Raises InvalidRequest for an unknown name, and ModuleNotFoundError, with the pip command in its message, if the library
    is not installed.
    """
    if name not in TRANSPORTS:
        raise InvalidRequest(
            f"transport: {quoted(name)} is not a transport; known are {', '.join(TRANSPORTS)}", field="transport"
        )
    kind: type[Transport] = getattr(import_module(f"rbim.transports.{name}"), f"{name.capitalize()}Transport")
    return kind()
