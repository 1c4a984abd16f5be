"""Receivers and workers on one inbox, killed and frozen again and again, and the server restarted: nothing is lost.

One program for a file and for a database. As a test it is short; at full length:

    PYTHONPATH=tests:tests/ci python tests/ci/crash/test_machines.py postgres
    PYTHONPATH=tests:tests/ci python tests/ci/crash/test_machines.py sqlite
"""

import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

from attrs import frozen
from crash.test_callbacks import Conversation

from helpers.postgres import needs_postgres, server
from helpers_ci.copycrew import DEAD, DONE, Servers

ROLES = ["receives", "receives", "handles", "handles", "handles"]
LEASE = 6.0  # a process that is frozen in a transaction stops the others for two seconds
ATTEMPTS = 3
AROUND = 4.0  # seconds: a result is recorded within that time, or its process was killed, frozen or without its server


@frozen
class Plan:
    """How much: deliveries in conversations, deaths, freezes, restarts of the server, seconds between two of these."""

    deliveries: int
    conversations: int
    kills: int
    freezes: int
    restarts: int
    pause: float


SHORT = Plan(1500, 60, 6, 2, 1, 1.0)
FULL = Plan(20_000, 300, 60, 15, 5, 3.0)


def texts(plan, chance):
    """Return what each handler does, by conversation: 4 % fail once, 1 % always, two kill, one cancels all tasks."""
    each = plan.deliveries // plan.conversations
    found = {}
    for conversation in range(plan.conversations):
        does = [chance.choices(["", "fails 1", "fails 9"], [95, 4, 1])[0] for _ in range(each)]
        found[f"g{conversation}"] = does
    for conversation, what in (("g0", "dies 0.05"), ("g1", "dies 0.05"), ("g2", "cancels 0.05")):
        found[conversation][each // 2] = what
    return found


class Sender(Conversation):
    """Sends several conversations' messages in turn, evenly over the time."""

    def __init__(self, given, servers, over, seed, seconds):
        super().__init__("", servers, over, seed)
        self.given, self.seconds = given, seconds

    def run(self):
        try:
            steps = max(map(len, self.given.values()))
            began = time.monotonic()
            for step in range(steps):
                for place, (name, does) in enumerate(self.given.items()):
                    self.conversation = name
                    due = began + self.seconds * (step + place / len(self.given)) / steps
                    self.over.wait(max(0.0, due - time.monotonic()))
                    self.send(step + 1, does[step])
                    self.accepted += 1
        except Exception as error:
            self.failure = error


def disturb(crew, made, plan, chance):
    """Kill, freeze and restart; return when and whom: (from, to, process), the process None for the server."""
    found = []
    acts = ["kill"] * plan.kills + ["freeze"] * plan.freezes + ["restart"] * (plan.restarts if made else 0)
    chance.shuffle(acts)
    for act in acts:
        threading.Event().wait(plan.pause * (0.5 + chance.random()))
        index, began, process = chance.randrange(len(ROLES)), time.time(), None
        if act == "restart":
            made.stop(signal.SIGQUIT)
            made.start()
        else:
            process = crew.processes[index]
            process.send_signal(signal.SIGKILL if act == "kill" else signal.SIGSTOP)
            if act == "freeze":
                threading.Event().wait(1.2 * LEASE)
                process.send_signal(signal.SIGCONT)
        found.append((began, time.time(), process.pid if process else None))
    return found


def run(folder, plan, made=None, *, seed=1):
    chance = random.Random(seed)
    given = texts(plan, chance)
    crew = Servers(folder, 0, lease=LEASE, attempts=ATTEMPTS, roles=ROLES, database=made and made.address)
    over = threading.Event()
    names = [*given]
    disturbances = plan.kills + plan.freezes + plan.restarts
    seconds = plan.pause * disturbances + 1.2 * LEASE * plan.freezes
    senders = [Sender({name: given[name] for name in names[at::20]}, crew, over, at, seconds) for at in range(20)]
    try:
        with crew.supervised():
            for sender in senders:
                sender.start()
            deaths = disturb(crew, made, plan, chance)
            for sender in senders:
                sender.join(timeout=seconds + 120)
            crew.wait_until_none_waits(120)
        done, dead = crew.keys(DONE), crew.keys(DEAD)
    finally:
        over.set()
        crew.end()
    assert [sender.failure for sender in senders] == [None] * len(senders)

    handled, keys = defaultdict(list), {}
    for line in crew.log.read_text().splitlines():
        what, key, conversation, number, process, at = line.split()
        keys[conversation, int(number)] = key
        does = given[conversation][int(number) - 1]
        if what == "handled":
            handled[key].append((float(at), int(process)))
        elif does.startswith(("dies", "cancels")):
            deaths.append((float(at), float(at) + 0.05, int(process)))
    sent = {(name, number): what for name, each in given.items() for number, what in enumerate(each, 1)}
    must_die = {keys[place] for place, what in sent.items() if what not in {"", "fails 1"}}
    assert keys.keys() == sent.keys()
    assert (done | dead, dead, handled.keys()) == ({*keys.values()}, must_die, done), "lost, or dead for no reason"
    crew.check_order(dead=must_die)
    twice = [each for times in handled.values() for each in sorted(times)[:-1]]
    for at, process in twice:
        around = [begin - AROUND <= at <= end + AROUND for begin, end, who in deaths if who in {None, process}]
        nearest = sorted((abs(at - begin), str(who)) for begin, _, who in deaths)[:3]
        assert any(around), f"handled twice, and nothing had happened to {process}; nearest: {nearest}"
    dead = f"{len(dead)} dead letters, {len(twice)} handled twice around a death"
    return f"{len(keys)} deliveries, {len(deaths)} disturbances: 0 lost, 0 out of order, {dead}"


def test_nothing_is_lost_in_a_file(tmp_path, capsys):
    said = run(tmp_path, SHORT)
    with capsys.disabled():
        sys.stdout.write(f"\n{said}\n")


@needs_postgres
def test_nothing_is_lost_in_a_database(tmp_path, capsys):
    with server() as made:
        said = run(tmp_path, SHORT, made)
    with capsys.disabled():
        sys.stdout.write(f"\n{said}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, server() if "postgres" in sys.argv else nullcontext() as made:
        sys.stdout.write(f"{run(Path(folder), FULL, made)}\n")
