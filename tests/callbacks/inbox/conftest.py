"""Fixtures of the tests of inboxes."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "inbox.db"
