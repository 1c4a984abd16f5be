"""Fixtures of the tests of the documentation: the platform of a reader is an emulator over HTTP."""

import pytest

from helpers.serving import served
from rbim.emulator import Emulator


@pytest.fixture(scope="module")
def emulator():
    return Emulator()


@pytest.fixture(scope="module")
def platform(emulator):
    """The environment variables of a reader."""
    with served(emulator.asgi) as url:
        yield {
            "RBIM_BASE_URL": url,
            "RBIM_APP_ID": emulator.credentials.app_id,
            "RBIM_APP_TOKEN": emulator.credentials.app_token.reveal(),
        }
