"""Fixtures of the tests of ``rbim callback``."""

import os

import pytest

from helpers.callback_process import CLEAN, KNOWN, OLD_TOKEN, TOKEN
from rbim.cli import run


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """An environment with credentials, and nothing of the machine's own."""
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    for name, value in KNOWN.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def anyio_backend():
    """What uvicorn runs on."""
    return "asyncio"


@pytest.fixture
def cli(capsys):
    """Run a command in this process; nothing that it writes has a token in it."""

    def call(*tokens):
        code = run(["callback", *map(str, tokens)])
        out, err = capsys.readouterr()
        for text in (out, err):
            assert "Traceback" not in text
            assert TOKEN not in text
            assert OLD_TOKEN not in text
        return code, out, err

    return call
