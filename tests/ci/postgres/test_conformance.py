"""The inbox in a database passes the conformance suite for inboxes, as the others do."""

import pytest

from helpers import inbox_places
from helpers.inbox_conformance import failures
from helpers.postgres import needs_postgres


@needs_postgres
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_conformance(own_server):
    assert await failures(inbox_places.database(own_server.address), at_once=6) == {}
