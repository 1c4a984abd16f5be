"""Fixtures of the tests of spans and metrics."""

import pytest

from helpers.telemetry import Telemetry


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture
def telemetry():
    return Telemetry()
