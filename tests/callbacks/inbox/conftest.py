"""Fixtures of the tests of inboxes."""

import sqlite3
from contextlib import closing

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "inbox.db"


@pytest.fixture
def rows(path):
    """Executes a statement over a connection that has nothing to do with the inbox."""

    def execute(statement, *values):
        with closing(sqlite3.connect(path, isolation_level=None)) as plain:
            return plain.execute(statement, values).fetchall()

    return execute
