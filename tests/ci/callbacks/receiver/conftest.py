"""Fixtures of the tests of receivers in real servers, frameworks and applications."""

import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving_asgi import Sink
from rbim.callbacks import Receiver


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def receiver(sink):
    return Receiver(credentials=CREDENTIALS, sink=sink)
