"""Fixtures of the tests of the documentation: the platform of a reader is an emulator over HTTP."""

import pytest

from helpers.serving import served, variables_of
from rbim.emulator import Emulator


@pytest.fixture(scope="module")
def emulator():
    return Emulator()


@pytest.fixture(scope="module")
def platform(emulator):
    with served(emulator.asgi) as url:
        yield variables_of(emulator, url)
