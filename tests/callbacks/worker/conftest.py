"""Workers run on either event loop."""

import pytest


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param
