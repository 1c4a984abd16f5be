"""Transports: one module or folder per HTTP library.

Import a transport from its own module: ``from rbim.transports.asyncio import AsyncioTransport``.
"""
