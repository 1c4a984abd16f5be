"""The inbox on the servers passes the conformance suite for inboxes, as the others do."""

import pytest

from helpers import inbox_places
from helpers.inbox_conformance import CASES, failures

REPLICATED = ("sink: ", "claims: two workers", "deaths: ", "restart: ")
"""The beginnings of the cases in which it matters most that several servers answer."""


def shown(failing):
    return [str(failure) for failure in failing.values()]


async def test_conformance(nats):
    assert shown(await failures(inbox_places.stream(nats.urls), at_once=12)) == []


@pytest.mark.cluster
async def test_conformance_with_three_replicas(nats_cluster):
    subject = inbox_places.stream(nats_cluster.urls, replicas=3, delay=0.3)
    cases = [case for case in CASES if case.name.startswith(REPLICATED)]
    assert len(cases) > len(REPLICATED)
    assert shown(await failures(subject, cases, at_once=8)) == []


@pytest.mark.slow
@pytest.mark.cluster
async def test_the_whole_suite_with_three_replicas(nats_cluster):
    subject = inbox_places.stream(nats_cluster.urls, replicas=3, delay=0.3)
    assert shown(await failures(subject, at_once=8)) == []
