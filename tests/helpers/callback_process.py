"""``rbim callback serve`` in a process of its own."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from urllib.parse import urlsplit

import anyio

from rbim import Credentials
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.signature import sign

APP, TOKEN, OLD_TOKEN = "an-app", "the-very-token", "the-old-token"
MINE = Credentials(app_id=APP, app_token=TOKEN)
COMMAND = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()", "callback"]
PATIENCE = 60
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
FULL = sqlite3.OperationalError("database or disk is full")
KNOWN = {"RBIM_APP_ID": APP, "RBIM_APP_TOKEN": TOKEN}


class Process:
    """A receiver in a process of its own; ``url`` is the first line it writes."""

    def __init__(self, popen, url):
        self.popen = popen
        self.url = url
        self.host, self.port = urlsplit(url).hostname, urlsplit(url).port

    def post(self, body, headers=None, path="/", method="POST"):
        """Post a body, signed unless told otherwise, and return the status."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.request(
                method, path, body, sign(body, credentials=MINE, now=datetime.now(UTC)) if headers is None else headers
            )
            answer = connection.getresponse()
            answer.read()
            return answer.status, dict(answer.getheaders())
        finally:
            connection.close()

    def connect_forever(self):
        while True:
            socket.create_connection((self.host, self.port), timeout=PATIENCE).close()
            time.sleep(0.01)

    def line(self):
        return json.loads(self.popen.stdout.readline())

    def stop(self, number=signal.SIGTERM):
        self.popen.send_signal(number)
        out, err = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, out, err


@contextmanager
def serving(inbox, *flags, **environment):
    with subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--inbox", str(inbox), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=CLEAN | KNOWN | environment,
        encoding="utf-8",
    ) as popen:
        watchdog = threading.Timer(PATIENCE, popen.kill)  # a line that never comes must not be waited for
        watchdog.start()
        try:
            yield Process(popen, popen.stdout.readline().rstrip("\n"))
        finally:
            watchdog.cancel()
            popen.kill()


def event(**fields):
    given = {
        "eventType": "1",
        "convType": "TEAM",
        "to": "g1",
        "fromAccount": f"{APP}#1001",
        "msgType": "TEXT",
        "msgId": "m1",
    }
    return json.dumps(given | fields).encode()


def besides_deliveries(err):
    """The lines on standard error without those of accepted deliveries."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("rbim: accepted: "))


def counts(inbox):
    async def counted():
        async with SqliteInbox(inbox) as opened:
            return await opened.counts()

    return anyio.run(counted)
