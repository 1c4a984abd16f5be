"""A PostgreSQL server of Debian's package, in a folder of its own and on a free port; it refuses to run as root."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from helpers.sockets import free_port


def _found(program):
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name), reverse=True)
    return shutil.which(program, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))


INITDB = _found("initdb")
"""The program that makes a database, or None if PostgreSQL is not installed."""

needs_postgres = pytest.mark.skipif(INITDB is None, reason="PostgreSQL is not installed")
"""The mark of tests that need a server. CI installs one, and they fail there without it (tests/conftest.py)."""


@cache
def _user():
    """Return the user to run as: the current one, or `nobody` instead of root."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}


@contextmanager
def postgres():
    """Give the address of a server, `postgresql://...`, that runs until the block ends."""
    assert INITDB is not None
    folder = Path(tempfile.mkdtemp(prefix="rbim-pg-"))
    if _user():
        os.chown(folder, _user()["user"], _user()["group"])
    port = free_port()
    options = {"cwd": folder, "stdin": subprocess.DEVNULL, "extra_groups": [] if _user() else None, **_user()}
    making = [INITDB, "-D", "data", "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8", "--locale=C"]
    settings = ("listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", "fsync=off", "max_connections=30")
    serving = [str(Path(INITDB).with_name("postgres")), "-D", "data", *(word for each in settings for word in ("-c", each))]
    log = (folder / "log").open("wb")
    server = None
    try:
        subprocess.run(making, check=True, capture_output=True, timeout=60, **options)
        server = subprocess.Popen(serving, stdout=log, stderr=log, **options)
        ready = [str(Path(INITDB).with_name("pg_isready")), "-q", "-h", "127.0.0.1", "-p", str(port), "-t", "1"]
        for _ in range(200):
            if server.poll() is not None:
                raise RuntimeError((folder / "log").read_text())
            if subprocess.run([*ready, "-U", "tester", "-d", "postgres"], check=False).returncode == 0:
                break
            with suppress(subprocess.TimeoutExpired):
                server.wait(0.05)
        else:
            raise TimeoutError((folder / "log").read_text())
        yield f"postgresql://tester@127.0.0.1:{port}/postgres"
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)  # fast: it closes connections
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
