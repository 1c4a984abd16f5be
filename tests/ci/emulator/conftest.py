"""Fixtures of the tests of the emulator that only CI runs: uvicorn is asyncio's."""

import pytest

from rbim.emulator import EmulatedClock, Emulator


@pytest.fixture
def emulator():
    return Emulator(clock=EmulatedClock())
