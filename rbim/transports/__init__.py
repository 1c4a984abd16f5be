"""Transports: one module or folder for each HTTP library.

Import a transport from its own module: ``from rbim.transports.asyncio import AsyncioTransport``.
"""
