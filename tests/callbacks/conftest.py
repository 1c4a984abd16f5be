"""The tests of callbacks run on asyncio; those of workers, and single ones of timers and tasks, on trio too."""

import pytest


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"
