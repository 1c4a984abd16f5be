"""Servers of ``copyserver.py`` on one inbox, and what they wrote down; for the tests that kill them.

What happened is read from the handlers' own log, and what was recorded from the file, with the standard library's sqlite3.
"""

import signal
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from helpers.processes import wait_until
from helpers.signatures import by_hand
from helpers_ci.copyserver import APP_ID

__all__ = ["DEAD", "DONE", "WAITING", "Servers", "signed"]

SERVER = Path(__file__).with_name("copyserver.py")
WAITING, DONE, DEAD = range(3)


def signed(conversation, number, does="", *, again=False):
    document = {"eventType": "1", "convType": "TEAM", "to": conversation, "fromAccount": f"{APP_ID}#1001", "msgType": "TEXT"}
    document |= {"body": f"{number} {does}".strip(), "msgId": f"{conversation}-{number}", "resendFlag": str(int(again))}
    return by_hand(document)


class Servers:
    """Servers on one inbox, each on a port of its own. One that has ended is replaced by :meth:`replace`.

    ``lease`` is in seconds, ``attempts`` the most that a handler has before its event is a dead letter. ``roles``: of each
    (default: all receive and handle). ``database``: the address of one in place of a file.
    """

    def __init__(self, folder, count, *, lease=0.5, attempts=8, roles=(), database=None):
        self.log = folder / "handled.log"
        self.inbox = database or folder / "events.db"
        self.database = database
        self.roles = roles
        self._arguments = [str(self.inbox), str(self.log), str(lease), str(attempts)]
        self._over = threading.Event()
        self.processes = [self.start(role) for role in roles or [""] * count]
        for process in self.processes:
            self.wait_until_it_serves(process)

    def start(self, role=""):
        """Start a process; its ``port`` is None until it is told."""
        command = [sys.executable, str(SERVER), *self._arguments, *([role] if role else [])]
        with self.log.with_name("errors.log").open("ab") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors if role else None, text=True)
        process.port = None
        return process

    @staticmethod
    def wait_until_it_serves(process):
        line = process.stdout.readline()  # none if it was killed before
        process.port = int(line) if line else None

    @property
    def ports(self):
        return [process.port for process in self.processes if process.port != 0]

    def replace(self, index):
        """Start another process in the place of one that has ended, or ends by itself soon."""
        process = self.processes[index]
        process.wait(timeout=60)
        process.stdout.close()
        self.processes[index] = new = self.start(self.roles[index] if self.roles else "")
        self.wait_until_it_serves(new)

    @contextmanager
    def supervised(self):
        threads = [threading.Thread(target=self._supervise, args=(index,)) for index in range(len(self.processes))]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _supervise(self, index):
        while not self._over.wait(0.02):
            if self.processes[index].poll() is not None:
                self.replace(index)

    def ask(self, statement):
        if self.database is not None:
            with psycopg.connect(self.database, autocommit=True) as connection:
                return connection.execute(statement.replace("event", "copies.event")).fetchall()
        with closing(sqlite3.connect(f"file:{self.inbox}?mode=ro", uri=True, timeout=20)) as file:
            return file.execute(statement).fetchall()

    def keys(self, state):
        return {key for (key,) in self.ask(f"SELECT key FROM event WHERE state = {state}")}

    def wait_until_none_waits(self, seconds):
        wait_until(lambda: self.ask(f"SELECT count(*) FROM event WHERE state = {WAITING}") == [(0,)], seconds)

    def written(self):
        """Return the lines of the log: what, key, conversation, number and process."""
        lines = self.log.read_bytes().decode().splitlines() if self.log.exists() else []
        return [
            (what, key, conversation, int(number), int(process))
            for what, key, conversation, number, process, _ in map(str.split, lines)
        ]

    def wait_until_begun(self, times, seconds=30):
        wait_until(lambda: sum(line[0] == "begun" for line in self.written()) >= times, seconds)

    def end(self):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=30) for process in self.processes]
        for process in self.processes:
            process.stdout.close()
        return codes

    def check_order(self, *, dead=frozenset()):
        """Check that no handler began before the ones of its conversation's earlier messages had ended.

        ``dead``: the keys of those that never end.
        """
        ended = defaultdict(set)
        for what, key, conversation, number, process in self.written():
            if what == "handled":
                ended[conversation].add(number)
                continue
            if key in dead:
                ended[conversation].add(number)  # the next may begin
            missing = set(range(1, number)) - ended[conversation]
            assert not missing, f"{conversation}: {number} begins in process {process}, {missing} were not handled"
