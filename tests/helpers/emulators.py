"""Emulators with the credentials of the tests, and clients of an emulator."""

from helpers.credentials import APP_ID, TOKEN
from rbim import AsyncClient, Credentials, Dialect
from rbim.emulator import EmulatedClock, Emulator, Rules

RULES = {gap.name for gap in Rules.gaps()}


def box(**options):
    return Emulator(**{"credentials": Credentials(app_id=APP_ID, app_token=TOKEN), "clock": EmulatedClock(), **options})


def choosing(**choices):
    rules = {name: value for name, value in choices.items() if name in RULES}
    dialect = {name: value for name, value in choices.items() if name not in RULES}
    return {"dialect": Dialect(**dialect), "rules": Rules(**rules)}


def client_of(emulator, **options):
    return AsyncClient(
        base_url="http://emulator",
        credentials=emulator.credentials,
        clock=emulator.clock,
        dialect=emulator.dialect,
        transport=emulator,
        **options,
    )
