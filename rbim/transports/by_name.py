"""Make a transport from its name in a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim._support.text import quoted
from rbim.errors import InvalidRequest
from rbim.transports import TRANSPORTS

if TYPE_CHECKING:
    from rbim.http import Transport

__all__ = ["transport_named"]


def transport_named(name: str) -> Transport:
    """Return a new transport with this name.

    Raises InvalidRequest for an unknown name, and ModuleNotFoundError, with the pip command in its message, if the library
    is not installed.
    """
    match name:
        case "auto":
            from rbim.transports.auto import AutoTransport

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
