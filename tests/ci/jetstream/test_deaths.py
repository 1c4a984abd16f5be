"""Receivers, workers and servers are killed and frozen, by a fixed seed: nothing is lost, conversations stay in order."""

import asyncio
import json
import logging
import random
import signal
import time
from collections import defaultdict

from helpers_ci.jetstream_crew import FAILS, inbox, lines, start

TAKEOVER = 2.0
DISTURBANCES = ("kill receiver", "kill worker", "stop worker", "freeze worker", "kill node", "freeze node")
PATIENCE = 30.0


class Crew:
    """Receivers and workers, and the servers under them; ``disturb`` does one thing to one of them."""

    def __init__(self, servers, folder, name, *, seed, receivers=2, workers=2, conversations=6):
        self.servers, self.folder = servers, folder
        self.random = random.Random(seed)
        self.options = {
            "urls": servers.urls,
            "name": name,
            "partitions": 8,
            "replicas": servers.nodes,
            "takeover": TAKEOVER,
            "pause": 0.03,
            "handled": str(folder / "handled"),
            "over": str(folder / "over"),
        }
        self.log = (folder / "errors").open("ab")
        self.receivers = [
            {
                **self.options,
                "spool": str(folder / f"spool{number}"),
                "answered": str(folder / f"answered{number}"),
                "conversations": [f"c{number}-{each}" for each in range(conversations)],
            }
            for number in range(receivers)
        ]
        self.processes = {f"receive {number}": None for number in range(receivers)}
        self.processes |= {f"work {number}": None for number in range(workers)}
        self.counts = defaultdict(int)
        self.plan = []

    def begin(self, who):
        part, number = who.split()
        options = self.receivers[int(number)] if part == "receive" else self.options
        self.processes[who] = start(part, options, self.log)

    def begin_all(self):
        for who in self.processes:
            self.begin(who)

    def disturb(self):
        if not self.plan:
            self.plan = self.random.sample(DISTURBANCES, len(DISTURBANCES))
        what = self.plan.pop()
        self.counts[what] += 1
        part = {"receiver": "receive", "worker": "work"}.get(what.split()[1])
        if part is None:
            self.disturb_node(what)
            return
        who = self.random.choice([each for each in self.processes if each.startswith(part)])
        process = self.processes[who]
        if what.startswith("freeze"):
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.5 * TAKEOVER)
            process.send_signal(signal.SIGCONT)
            return
        process.send_signal(signal.SIGTERM if what.startswith("stop") else signal.SIGKILL)
        process.wait(timeout=PATIENCE)
        self.begin(who)

    def disturb_node(self, what):
        node = self.random.randrange(self.servers.nodes)
        if what.startswith("freeze"):
            self.servers.freeze(node)
            time.sleep(self.random.uniform(0.5, 2))
            self.servers.thaw(node)
            return
        self.servers.kill(node)
        time.sleep(self.random.uniform(0.2, 1))
        self.servers.start(node)

    def stop_receivers(self):
        """Stop to send, and wait until the spools are empty."""
        receivers = [process for who, process in self.processes.items() if who.startswith("receive")]
        (self.folder / "over").touch()
        for process in receivers:
            assert process.wait(timeout=PATIENCE) == 0

    def end(self):
        for process in self.processes.values():
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self.log.close()

    def answered(self):
        """Return how many deliveries of each conversation were answered 200."""
        found = {}
        for receiver in self.receivers:
            for conversation, number in lines(receiver["answered"]):
                found[conversation] = int(number) + 1
        return found


async def settle(crew):
    """Wait until everything is handled, as long as there is progress."""
    async with inbox(crew.options) as copies:
        least, since = None, time.monotonic()
        while waiting := (await copies.counts()).waiting:
            if least is None or waiting < least:
                least, since = waiting, time.monotonic()
            assert time.monotonic() - since < PATIENCE, f"no progress for {PATIENCE} s: {await copies.counts()}"
            await asyncio.sleep(0.2)


async def disturbed(servers, folder, name, *, seed, rounds):
    """Do each disturbance so many times, in random order, and check what became of the deliveries."""
    crew = Crew(servers, folder, name, seed=seed)
    try:
        crew.begin_all()
        time.sleep(1)
        for _ in range(rounds * len(DISTURBANCES)):
            crew.disturb()
            time.sleep(crew.random.uniform(0.1, 0.8))
        await servers.ready()
        crew.stop_receivers()
        await settle(crew)
        async with inbox(crew.options) as copies:
            dead, after = [], 0
            while page := await copies.dead_letters(100, after):
                dead += page
                after = page[-1].number
    finally:
        crew.end()
    check(crew, dead)


def check(crew, dead):
    answered = crew.answered()
    assert sum(answered.values()) > 100, "hardly anything was sent: this shows nothing"
    begun, ended, first, times = defaultdict(list), defaultdict(set), set(), defaultdict(int)
    for word, conversation, number, _ in lines(crew.options["handled"]):
        if word == "end":
            ended[conversation].add(int(number))
            continue
        times[conversation, int(number)] += 1
        if (conversation, number) not in first:
            first.add((conversation, number))
            begun[conversation].append(int(number))
    for conversation, count in answered.items():
        fails = {number for number in range(count) if number % FAILS == FAILS - 1}
        assert {*range(count)} - ended[conversation] - fails == set(), "lost"
        assert begun[conversation] == sorted(begun[conversation]), "out of order"
    letters = sorted((letter.conversation.rpartition("/")[2], int(json.loads(letter.body)["msgId"])) for letter in dead)
    wanted = sorted(
        (conversation, number)
        for conversation, numbers in begun.items()
        for number in numbers
        if number % FAILS == FAILS - 1
    )
    assert letters == wanted
    again = sum(count - 1 for (_, number), count in times.items() if number % FAILS != FAILS - 1)
    summary = f"{sum(answered.values())} deliveries, {again} begun again, {len(dead)} dead letters, {dict(crew.counts)}"
    logging.getLogger("tests.deaths").warning(summary)
    assert again <= 2 * 8 * sum(crew.counts.values()), summary  # 2 x concurrency for each death


async def test_one_server(own_nats, tmp_path, name):
    await disturbed(own_nats, tmp_path, name, seed=1, rounds=1)
