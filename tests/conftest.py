"""What pytest has to know of the tests, and fixtures that several folders use."""

import os

import pytest

from rbim.emulator import EmulatedClock

pytest.register_assert_rewrite("helpers")  # before anybody imports one of them: they assert, too


@pytest.fixture
def clock():
    """Emulated time, which stands still until a test lets it pass."""
    return EmulatedClock()


@pytest.fixture
def no_proxy_of_this_machine(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def bare_environment(monkeypatch):
    """Monkeypatch, in an environment in which no variable of this machine sets rbim up."""
    for name in [name for name in os.environ if name.startswith("RBIM_")]:
        monkeypatch.delenv(name)
    return monkeypatch
