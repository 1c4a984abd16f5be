"""The aiohttp transport: one session whose pool has no limit, because rbim's client limits the requests in flight."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.transports.aiohttp.transport import AiohttpTransport as AiohttpTransport
else:
    __getattr__, __dir__ = lazy_names(__name__)
