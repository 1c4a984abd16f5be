"""Emulators with the credentials of the tests."""

from helpers.credentials import APP_ID, TOKEN
from rbim import Credentials
from rbim.emulator import EmulatedClock, Emulator


def box(**options):
    return Emulator(
        **{"credentials": Credentials(app_id=APP_ID, app_token=TOKEN), "clock": EmulatedClock(), **options},
    )
