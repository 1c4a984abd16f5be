"""The inbox on the servers passes the conformance suite for inboxes, as the others do."""

from helpers import inbox_places
from helpers.inbox_conformance import failures


def shown(failing):
    return [str(failure) for failure in failing.values()]


async def test_conformance(nats):
    assert shown(await failures(inbox_places.stream(nats.urls), at_once=12)) == []
