"""Emulators with the credentials of the tests, and clients of an emulator."""

from helpers.credentials import APP_ID, TOKEN
from rbim import AsyncClient, Credentials
from rbim.emulator import EmulatedClock, Emulator


def box(**options):
    return Emulator(
        **{"credentials": Credentials(app_id=APP_ID, app_token=TOKEN), "clock": EmulatedClock(), **options},
    )


def client_of(emulator, **options):
    return AsyncClient(
        base_url="http://emulator",
        credentials=emulator.credentials,
        clock=emulator.clock,
        dialect=emulator.dialect,
        transport=emulator,
        **options,
    )
