"""Servers are killed at random moments under load: what was answered 200 is handled, in order, and not again once recorded.

Real processes, real clients over sockets, ``kill -9``. The client sends each conversation's messages one by one, the next
when the one before was answered 200, and sends one again for as long as it was not, as high-guarantee copy does. What
happened is read from the handlers' own log, and what was recorded from the file, with the standard library's sqlite3.
"""

import hashlib
import http.client
import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import closing
from itertools import pairwise

import pytest

from helpers.copyserver import APP_ID, TOKEN
from helpers.paths import HELPERS

SERVER = HELPERS / "copyserver.py"
CONVERSATIONS = 8
LEASE = "0.5"


def signed(conversation, number, *, again):
    """Return headers and body, by the description's words and the standard library."""
    document = {
        "eventType": "1",
        "convType": "TEAM",
        "to": conversation,
        "fromAccount": f"{APP_ID}#1001",
        "msgType": "TEXT",
        "body": str(number),
        "msgId": f"{conversation}-{number}",
        "resendFlag": "1" if again else "0",
    }
    body = json.dumps(document).encode()
    digest = hashlib.md5(body).hexdigest().upper()
    moment = str(int(time.time() * 1000))
    checksum = hashlib.md5(f"{APP_ID}{TOKEN}{digest}{moment}".encode()).hexdigest().upper()
    return {"Content-Type": "application/json", "MD5": digest, "CurTime": moment, "CheckSum": checksum}, body


class Servers:
    """Servers on one inbox, each on a port of its own. One that is killed is replaced."""

    def __init__(self, folder, count):
        self.log = folder / "handled.log"
        self.inbox = folder / "events.db"
        self.processes = [self.start() for _ in range(count)]

    def start(self):
        command = [sys.executable, str(SERVER), str(self.inbox), str(self.log), LEASE]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        process.port = int(process.stdout.readline())
        return process

    @property
    def ports(self):
        return [process.port for process in self.processes]

    def kill_one(self, chance):
        index = chance.randrange(len(self.processes))
        process = self.processes[index]
        process.kill()
        process.wait()
        process.stdout.close()
        # what is recorded now was handled before now: nobody may begin it again. First look, then measure the log
        recorded, handled = self.recorded(), self.log.stat().st_size if self.log.exists() else 0
        self.processes[index] = self.start()
        return recorded, handled

    def ask(self, statement):
        with closing(sqlite3.connect(f"file:{self.inbox}?mode=ro", uri=True, timeout=20)) as file:
            return file.execute(statement).fetchall()

    def recorded(self):
        return {key for (key,) in self.ask("SELECT key FROM event WHERE state = 1")}

    def wait_until_all_is_handled(self):
        until = time.monotonic() + 30
        while self.ask("SELECT count(*) FROM event WHERE state = 0") != [(0,)]:
            assert time.monotonic() < until, "events still wait"
            threading.Event().wait(0.02)

    def end(self):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=30) for process in self.processes]
        for process in self.processes:
            process.stdout.close()
        return codes


class Conversation(threading.Thread):
    """Sends one conversation's messages in order, each until it is answered 200, to one server or another."""

    def __init__(self, name, servers, over, seed):
        super().__init__(daemon=True)
        self.conversation = name
        self.servers = servers
        self.over = over
        self.chance = random.Random(seed)
        self.accepted = 0
        self.resent = 0
        self.failure = None

    def run(self):
        try:
            while not self.over.is_set():
                self.send(self.accepted + 1)
                self.accepted += 1
        except Exception as error:
            self.failure = error

    def send(self, number):
        again = False
        until = time.monotonic() + 30
        while (status := self.post(number, again=again)) != 200:
            assert status in {None, 503}, status
            assert time.monotonic() < until, "no server answers"
            again = True
            self.resent += 1
            threading.Event().wait(0.01)

    def post(self, number, *, again):
        headers, body = signed(self.conversation, number, again=again)
        connection = http.client.HTTPConnection("127.0.0.1", self.chance.choice(self.servers.ports), timeout=10)
        try:
            connection.request("POST", "/", body, headers)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None  # killed before, while or after it took it: nobody knows
        finally:
            connection.close()


def crash_again_and_again(folder, *, servers, rounds):
    """Return what is to be said of it, once everything was found in order."""
    chance = random.Random(rounds)
    crew = Servers(folder, servers)
    over = threading.Event()
    senders = [Conversation(f"g{number}", crew, over, number) for number in range(CONVERSATIONS)]
    kills = []
    try:
        for sender in senders:
            sender.start()
        for _ in range(rounds):
            over.wait(0.15 + chance.random() * 0.5)
            kills.append(crew.kill_one(chance))
        over.set()
        for sender in senders:
            sender.join(timeout=40)
        crew.wait_until_all_is_handled()
        recorded = crew.recorded()
    finally:
        over.set()
        codes = crew.end()
    assert [sender.failure for sender in senders] == [None] * CONVERSATIONS
    assert set(codes) <= {0, -signal.SIGTERM}  # uvicorn ends with the signal that ended it, once all is in order

    log = crew.log.read_bytes()
    lines = [line.split() for line in log.decode().splitlines()]
    handled = defaultdict(list)
    for _, conversation, number, _ in lines:
        handled[conversation].append(int(number))
    for sender in senders:
        numbers = handled[sender.conversation]
        in_order = list(dict.fromkeys(numbers))
        assert in_order == list(range(1, len(in_order) + 1)), "handled out of order, or not at all"
        assert len(in_order) >= sender.accepted, "answered 200 and not handled"
        # the one whose end was not recorded is the only one that can come again: the next had not begun
        assert all(later >= earlier for earlier, later in pairwise(numbers)), "an older event came again after a later one"
    for before, length in kills:
        again = {line.split()[0] for line in log[length:].decode().splitlines()}
        assert before & again == set(), "handled again after its handling was recorded"
    assert recorded == {key for key, *_ in lines}
    accepted = sum(sender.accepted for sender in senders)
    events = len({key for key, *_ in lines})
    return (
        f"{rounds} kills of {servers} server(s): {accepted} events answered 200, {events} handled, {len(lines) - events} of "
        f"them a second time before it was recorded, {sum(sender.resent for sender in senders)} sends without an answer"
    )


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_server_loses_nothing_and_handles_nothing_again_that_was_recorded(servers, tmp_path, capsys):
    said = crash_again_and_again(tmp_path, servers=servers, rounds=5)
    with capsys.disabled():
        sys.stdout.write(f"\n{said}\n")


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_servers_are_killed_twenty_times(servers, tmp_path, capsys):
    said = crash_again_and_again(tmp_path, servers=servers, rounds=20)
    with capsys.disabled():
        sys.stdout.write(f"\n{said}\n")
