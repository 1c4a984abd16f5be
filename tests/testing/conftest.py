"""What these tests try is the same on each of anyio's backends."""

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"
