"""Servers for the tests of this folder: all run on asyncio, the only event loop that nats-py knows.

``nats`` lasts for the session: tests use names of their own (``name``) and do not end it. A test that ends or freezes
servers has its own: ``own_nats``.
"""

from secrets import token_hex

import pytest

from helpers.nats_servers import own_servers


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def nats(tmp_path_factory):
    with own_servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@pytest.fixture
def own_nats(tmp_path):
    with own_servers(tmp_path / "nats") as servers:
        yield servers


@pytest.fixture
def name():
    """A name on the servers that no other test has."""
    return f"t{token_hex(6)}"
