"""Fixtures of the tests of jobs."""

import pytest


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "journal"
