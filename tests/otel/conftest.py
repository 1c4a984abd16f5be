"""Fixtures of the tests of spans and metrics."""

import pytest

from helpers.telemetry import Telemetry


@pytest.fixture
def telemetry():
    return Telemetry()
