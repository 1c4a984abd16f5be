"""aiohttp, one session whose pool has no limits of its own, since rbim's client decides how many requests are in flight."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.transports.aiohttp.transport import AiohttpTransport as AiohttpTransport
else:
    __getattr__, __dir__ = lazy_names(__name__)
