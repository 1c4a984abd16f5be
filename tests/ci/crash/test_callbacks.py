"""Servers are killed under load, by the test, by a message and by deploys: what was answered 200 is handled, in order.

Real processes, real clients over sockets, ``kill -9``. The client sends each conversation's messages one by one, the next
when the one before was answered 200, and sends one again for as long as it was not, as high-guarantee copy does.
"""

import http.client
import random
import signal
import threading
import time
from collections import Counter

from helpers_ci.copycrew import DEAD, DONE, Servers, signed

CONVERSATIONS = 8


class Conversation(threading.Thread):
    """Sends one conversation's messages in order, each until it is answered 200, to one server or another.

    ``texts`` has what the handlers of the messages do; without it, messages are sent until ``over`` is set.
    """

    def __init__(self, name, servers, over, seed, texts=None):
        super().__init__(daemon=True)
        self.conversation = name
        self.servers = servers
        self.over = over
        self.texts = texts
        self.chance = random.Random(seed)
        self.accepted = 0
        self.resent = 0
        self.failure = None
        self.not_accepted = {None, 503}
        self.patience = 30

    def run(self):
        try:
            while not self.over.is_set() and self.texts != []:
                self.send(self.accepted + 1, self.texts.pop(0) if self.texts else "")
                self.accepted += 1
        except Exception as error:
            self.failure = error

    def send(self, number, does):
        again = False
        until = time.monotonic() + self.patience
        while (status := self.post(number, does, again=again)) != 200:
            assert status in self.not_accepted, status
            assert time.monotonic() < until, "no server answers"
            again = True
            self.resent += 1
            threading.Event().wait(0.01)

    def post(self, number, does, *, again):
        headers, body = signed(self.conversation, number, does, again=again)
        port = self.chance.choice(self.servers.ports)
        if port is None:
            return None  # its process begins
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("POST", "/", body, headers)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None  # killed before, while or after it took it: unknown
        finally:
            connection.close()


def test_servers_that_are_ended_under_load_lose_nothing_and_handle_nothing_twice(tmp_path):
    chance, over, crew = random.Random(3), threading.Event(), Servers(tmp_path, 2, lease=5)
    senders = [Conversation(f"g{number}", crew, over, number) for number in range(CONVERSATIONS)]
    try:
        for sender in senders:
            sender.start()
        for _ in range(3):
            over.wait(0.15 + chance.random() * 0.5)
            index = chance.randrange(2)
            crew.processes[index].terminate()
            assert crew.processes[index].wait(timeout=30) in {0, -signal.SIGTERM}
            crew.replace(index)
        over.set()
        for sender in senders:
            sender.join(timeout=40)
        crew.wait_until_none_waits(60)
        done, dead = crew.keys(DONE), crew.keys(DEAD)
    finally:
        over.set()
        codes = crew.end()
    assert [sender.failure for sender in senders] == [None] * CONVERSATIONS
    assert set(codes) <= {0, -signal.SIGTERM}  # uvicorn ends with the signal that ended it, once all is in order
    assert dead == set()
    crew.check_order()
    handled = Counter((conversation, number) for what, _, conversation, number, _ in crew.written() if what == "handled")
    assert set(handled) == {(each.conversation, number) for each in senders for number in range(1, each.accepted + 1)}
    assert set(handled.values()) == {1}, "a handler that had its time was not recorded"
    assert len(done) == len(handled)


def test_deploys_bury_no_message(tmp_path):
    """A server is ended again and again while handlers run: by SIGTERM, and by ``kill -9`` before they have ended."""
    crew = Servers(tmp_path, 1, attempts=3)
    over = threading.Event()
    senders = [Conversation(f"g{each}", crew, over, each, ["waits 1.5", ""]) for each in range(4)]
    try:
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(timeout=40)
        assert [sender.failure for sender in senders] == [None] * len(senders)
        for number in range(4):
            crew.wait_until_begun(len(senders) * (number + 1))
            assert crew.keys(DEAD) == set(), f"buried after {number} deploys"
            (process,) = crew.processes
            process.send_signal(signal.SIGTERM)
            over.wait(0.5)
            assert process.poll() is None, "it did not wait for its handlers"
            process.kill()
            crew.replace(0)
        crew.wait_until_none_waits(60)
        dead, done = crew.keys(DEAD), crew.keys(DONE)
    finally:
        crew.end()
    assert dead == set()
    assert len(done) == 2 * len(senders)
    crew.check_order()
