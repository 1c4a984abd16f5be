"""Fixtures of the tests of jobs."""

import pytest


@pytest.fixture(scope="module")
def anyio_backend():
    """Asyncio: what a job needs of an event loop is tested with trio where it is made, in the client and in storage."""
    return "asyncio"


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "journal"
