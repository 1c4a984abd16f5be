"""The asyncio transport, the fastest one: asyncio's protocols and TLS with the llhttp parser. Also for uvloop."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.transports.asyncio.transport import AsyncioTransport as AsyncioTransport
else:
    __getattr__, __dir__ = lazy_names(__name__)
