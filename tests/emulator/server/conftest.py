"""Fixtures of the tests of the emulator over HTTP."""

import json

import pytest

from helpers.asgi_calls import asgi
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.server.control import Control


@pytest.fixture
def emulator():
    return Emulator(clock=EmulatedClock())


@pytest.fixture
def control_of():
    """A function that gives a function which carries out commands of an emulator and returns status and document."""

    def control_of(emulator, **options):
        app = Control(emulator, **options)

        async def call(method, path, document=None, *, raw=None):
            body = raw if raw is not None else b"" if document is None else json.dumps(document).encode()
            start, sent = await asgi(app, method, f"/_emulator/{path}", body)
            call.headers = {name.decode(): value.decode() for name, value in start["headers"]}
            assert call.headers["content-type"] == "application/json;charset=utf-8"
            return start["status"], json.loads(sent["body"])

        return call

    return control_of
