"""Transports: one module or folder per HTTP library.

Import a transport from its own module: ``from rbim.transports.asyncio import AsyncioTransport``.
"""

__all__ = ["TRANSPORTS"]

TRANSPORTS = ("auto", "httpx", "httpx2", "aiohttp", "asyncio")
"""The transports by name; httpx2 and aiohttp need an extra of that name."""
