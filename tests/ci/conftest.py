"""Fixtures of the tests that only CI runs."""

import pytest


@pytest.fixture(scope="module")
def anyio_backend():
    """Servers, browsers and processes are on asyncio; a test that is of trio too says so."""
    return "asyncio"
