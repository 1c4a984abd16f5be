"""Servers are killed under load, by the test, by a message and by deploys: what was answered 200 is handled, in order.

``PYTHONPATH=tests:tests/ci python -m crash.test_callbacks``: 60 kills and freezes over 20,000 deliveries.
Real processes, real clients over sockets, ``kill -9``. The client sends each conversation's messages one by one, the next
when the one before was answered 200, and sends one again for as long as it was not, as high-guarantee copy does.
"""

import http.client
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

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


def send_all(senders):
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(timeout=40)
    assert [sender.failure for sender in senders] == [None] * len(senders)


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


def deploy(folder, *, times, attempts):
    """End a server again and again while handlers run: by SIGTERM, and by ``kill -9`` before they have ended."""
    crew = Servers(folder, 1, attempts=attempts)
    over = threading.Event()
    senders = [Conversation(f"g{each}", crew, over, each, ["waits 1.5", ""]) for each in range(4)]
    try:
        send_all(senders)
        for number in range(times):
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


def test_deploys_bury_no_message(tmp_path):
    deploy(tmp_path, times=4, attempts=3)


def kill_and_freeze(folder, *, conversations, each, times, servers=3):  # noqa: C901  # the whole run, in order
    """Kill and freeze servers while one delivery in 20 fails first, one kills and one cancels; return the figures.

    ``each``: the number of deliveries of a conversation; ``times``: of kills and freezes in all.
    """
    chance = random.Random(times)
    crew = Servers(folder, servers, lease=2.0)
    over = threading.Event()
    senders = []
    for number in range(conversations):
        texts = ["fails 0" if chance.random() < 0.05 else "" for _ in range(each)]
        senders.append(Conversation(f"g{number}", crew, over, number, texts))
    senders += [Conversation(how, crew, over, how, ["", f"{how} 0.1", ""]) for how in ("dies", "cancels")]
    for sender in senders:
        sender.not_accepted |= {400, 500}  # its body was held up by a freeze; uvicorn's answer of a task that is cancelled
        sender.patience = 200  # hundreds of them share the machine
    hit, recorded = set(), []
    try:
        with crew.supervised():
            for sender in senders:
                sender.start()
            for number in range(times):
                over.wait(0.5 + chance.random())
                while not (serving := [each for each in crew.processes if each.port is not None]):
                    over.wait(0.05)
                process = chance.choice(serving)
                hit.add(process.pid)
                if number % 3:
                    process.kill()
                    process.wait(timeout=30)
                    recorded.append((crew.keys(DONE), len(crew.written())))  # in this order
                else:
                    process.send_signal(signal.SIGSTOP)
                    over.wait(3.0)  # longer than the lease
                    process.send_signal(signal.SIGCONT)
            for sender in senders:
                sender.join(timeout=600)
            crew.wait_until_none_waits(300)
        dead, done = crew.keys(DEAD), crew.keys(DONE)
    finally:
        over.set()
        crew.end()
    failures = {repr(sender.failure) for sender in senders}
    assert failures == {"None"}, failures
    lines = crew.written()
    killing = {key for _, key, name, number, _ in lines if name in {"dies", "cancels"} and number == 2}
    assert dead == killing, "a message that kills its process buries others"
    assert len(done) == conversations * each + 4, "lost"
    crew.check_order(dead=dead)
    handlers = {}
    for what, key, _, _, process in lines:
        if what == "handled":
            handlers.setdefault(key, []).append(process)
    assert done == set(handlers)
    for before, length in recorded:
        assert not before & {key for what, key, *_ in lines[length:] if what == "begun"}, "begun again after its record"
    twice = [processes for processes in handlers.values() if len(processes) > 1]
    assert {process for processes in twice for process in processes[:-1]} <= hit | set(crew.ended), "twice without a death"
    return (
        f"{times} kills and freezes of {servers} servers, {len(crew.ended)} processes ended, {len(done)} deliveries handled,"
        f" {len(twice)} of them twice, {sum(sender.resent for sender in senders)} sends without an answer"
    )


def test_killed_and_frozen_servers_lose_nothing_repeat_nothing_recorded_and_bury_only_what_kills(tmp_path, capsys):
    said = kill_and_freeze(tmp_path, conversations=20, each=40, times=6)
    with capsys.disabled():
        sys.stdout.write(f"\n{said}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        sys.stdout.write(f"{kill_and_freeze(Path(name), conversations=300, each=67, times=60)}\n")
