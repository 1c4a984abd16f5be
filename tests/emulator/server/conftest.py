"""Fixtures of the tests of the emulator over HTTP."""

import pytest

from rbim.emulator import EmulatedClock, Emulator


@pytest.fixture
def emulator():
    return Emulator(clock=EmulatedClock())
