"""Fixtures of the tests of ``rbim callback``."""

from helpers.callback_fixtures import anyio_backend, cli, environment, serve

__all__ = ["anyio_backend", "cli", "environment", "serve"]
