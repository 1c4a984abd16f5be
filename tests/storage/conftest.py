"""What reads and locks the files under test from outside: the standard library's sqlite3, here and in another process."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest

from helpers.processes import running

PLAIN = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
for line in sys.stdin:
    try:
        answer = connection.execute(line).fetchall()
    except sqlite3.Error as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
connection.close()
"""
LONG = 30.0  # seconds after which a process that hangs is killed, so that its test fails


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.db"


@pytest.fixture
def rows(path):
    """Executes a statement over a connection that has nothing to do with the code under test."""

    def execute(statement, *values):
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as plain:
            return plain.execute(statement, values).fetchall()

    return execute


@pytest.fixture
def start():
    """Starts a Python process that runs a script, with pipes; it is killed at the end."""

    @contextmanager
    def started(script, *arguments):
        command = [sys.executable, "-c", script, *map(str, arguments)]
        with running(*command, patience=LONG, stdin=subprocess.PIPE, stderr=None) as process:
            yield process

    return started


@pytest.fixture
def beside(start, path):
    """Gives a function that executes statements in another process, over one connection; an error comes as its text."""
    with start(PLAIN, path) as process:

        def execute(statement):
            process.stdin.write(f"{statement}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield execute
