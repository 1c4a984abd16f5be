"""What the tests of this folder have in common."""

import pytest


@pytest.fixture
def anyio_backend():
    """Nothing here differs between asyncio and trio."""
    return "asyncio"
