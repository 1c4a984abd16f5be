"""Fixtures of the tests of the receiver."""

import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import results_for
from helpers.receiving_asgi import Sink
from rbim.callbacks import Receiver


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def facts():
    return []


@pytest.fixture
def receiver(sink, facts):
    return Receiver(credentials=CREDENTIALS, sink=sink, observers=[results_for(facts.append)])
