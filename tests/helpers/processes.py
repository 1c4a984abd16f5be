"""Processes: their environment, a command that runs to its end, and waiting for what others do."""

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager

PATIENCE = 60  # seconds
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
"""The environment without what rbim reads."""


def ran(*command, **options):
    """Run a command to its end; return it with its exit code and its output, as text."""
    usual = {"capture_output": True, "encoding": "utf-8", "timeout": PATIENCE, "check": False}
    return subprocess.run([*map(str, command)], **usual | options)  # noqa: PLW1510  # it is among them


@contextmanager
def running(*command, patience=PATIENCE, **options):
    """Give a process that ends with the block, at the latest after ``patience`` seconds: a line may never come."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen([*map(str, command)], **usual | options) as popen:
        watchdog = threading.Timer(patience, popen.kill)
        watchdog.start()
        try:
            yield popen
        finally:
            watchdog.cancel()
            popen.kill()


@contextmanager
def logged(*command, log, patience=10 * PATIENCE, **options):
    """Run a server that writes into a file, and end it by SIGTERM; give a function that returns what it has written."""
    with log.open("w") as said, running(*command, patience=patience, stdout=said, stderr=said, **options) as server:
        yield lambda: log.read_text(encoding="utf-8")
        server.terminate()
        assert server.wait(PATIENCE) in {0, -signal.SIGTERM}, log.read_text(encoding="utf-8")


def wait_until(true, seconds=PATIENCE, step=0.02):
    """Wait in this thread until something is true; return what ``true`` returned."""
    until = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < until, "it does not happen"
        time.sleep(step)
    return found
