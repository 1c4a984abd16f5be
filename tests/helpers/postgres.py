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

import psycopg
import pytest

from helpers.sockets import free_port


def _found(program):
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name), reverse=True)
    return shutil.which(program, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))


INITDB = _found("initdb")  # the program that makes a database, or None if PostgreSQL is not installed
needs_postgres = pytest.mark.skipif(INITDB is None, reason="PostgreSQL is not installed")
"""The mark of tests that need a server. CI installs one, and they fail there without it (tests/conftest.py)."""


@cache
def _user():
    """Return the user to run as: the current one, or `nobody` instead of root."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}


class Server:
    """A server with the ``address`` of a database, `postgresql://...`."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.address = f"postgresql://tester@127.0.0.1:{self.port}/postgres"
        self._options = {"cwd": folder, "stdin": subprocess.DEVNULL, "extra_groups": [] if _user() else None, **_user()}
        making = [INITDB, "-D", "data", "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(making, check=True, capture_output=True, timeout=60, **self._options)

    def start(self, *settings):
        """Start it, and wait until it answers; ``settings`` such as "max_connections=9" are for this time."""
        addresses = ("listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories=")
        given = (*addresses, "fsync=off", "max_connections=100", *settings)
        serving = [program("postgres"), "-D", "data", *(word for each in given for word in ("-c", each))]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(serving, stdout=log, stderr=log, **self._options)
        ready = [program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "1", "-U", "tester"]
        for _ in range(200):
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
            if subprocess.run([*ready, "-d", "postgres"], check=False).returncode == 0:
                return
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
        raise TimeoutError((self.folder / "log").read_text())

    def stop(self, how=signal.SIGINT):
        """End it: fast, which closes connections; SIGQUIT ends it at once, as a crash does."""
        self.process.send_signal(how)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def processes(self):
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [self.process.pid, *map(int, found.stdout.split())]


def program(name):
    return str(Path(INITDB).with_name(name))


def sql(address, *statements):
    """Run statements, each committed by itself; return the rows of the last one, if it has any."""
    with psycopg.connect(address, autocommit=True) as connection, connection.cursor() as cursor:
        for each in statements:
            cursor.execute(each)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def server(*settings):
    assert INITDB is not None
    folder = Path(tempfile.mkdtemp(prefix="rbim-pg-"))
    if _user():
        os.chown(folder, _user()["user"], _user()["group"])
    try:
        made = Server(folder)
        made.start(*settings)
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres():
    with server() as made:
        yield made.address
