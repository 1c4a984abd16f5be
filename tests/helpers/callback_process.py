"""``rbim callback serve`` in a process of its own."""

import http.client
import json
import signal
import socket
import sqlite3
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from urllib.parse import urlsplit

import anyio

from helpers.processes import CLEAN, PATIENCE, running
from rbim import Credentials
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.signature import sign

APP, TOKEN, OLD_TOKEN = "an-app", "the-very-token", "the-old-token"
MINE = Credentials(app_id=APP, app_token=TOKEN)
COMMAND = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()", "callback"]
FULL = sqlite3.OperationalError("database or disk is full")
KNOWN = {"RBIM_APP_ID": APP, "RBIM_APP_TOKEN": TOKEN}


class Process:
    """A receiver in a process of its own; ``url`` is the first line it writes."""

    def __init__(self, popen, url):
        self.popen = popen
        self.url = url
        self.host, self.port = urlsplit(url).hostname, urlsplit(url).port

    def post(self, body, headers=None, path="/", method="POST"):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            own = sign(body, credentials=MINE, now=datetime.now(UTC)) if headers is None else headers
            connection.request(method, path, body, own)
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
    command = [*COMMAND, "serve", "--port", "0", "--inbox", inbox, *flags]
    with running(*command, env=CLEAN | KNOWN | environment) as popen:
        yield Process(popen, popen.stdout.readline().rstrip("\n"))


def event(**fields):
    given = {"eventType": "1", "convType": "TEAM", "to": "g1", "fromAccount": f"{APP}#1001", "msgType": "TEXT"}
    return json.dumps(given | {"msgId": "m1"} | fields).encode()


def besides_deliveries(err):
    """The lines on standard error without those of accepted deliveries."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("rbim: accepted: "))


def counts(inbox):
    async def counted():
        async with SqliteInbox(inbox) as opened:
            return await opened.counts()

    return anyio.run(counted)
