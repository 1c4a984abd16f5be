"""The event loops of the tests of the client: asyncio; and trio where a file asks for both, as those of its core do."""

import pytest


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"
