"""Receivers and workers on NATS servers as processes of their own, to be killed and frozen; each writes down what it does.

``python -m helpers_ci.jetstream_crew receive|work OPTIONS``, with the options as a JSON document. A receiver sends itself
the deliveries of its conversations: each when the one before was answered 200, until the file ``over`` exists. A worker
writes a line when it begins an event and when it has handled it; events with the text ``fails`` always fail.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from helpers.paths import TESTS
from rbim import Credentials
from rbim.callbacks import Backoff, Receiver, Router, Worker, sign
from rbim.jetstream import JetStreamInbox

CREDENTIALS = Credentials(app_id="an-app", app_token="the-very-token")
FAILS = 37
"""Every so-many-th event of a conversation fails."""


def inbox(options):
    return JetStreamInbox(
        options["urls"],
        name=options["name"],
        partitions=options["partitions"],
        replicas=options["replicas"],
        takeover=options["takeover"],
        retention=3600,
    )


def body_of(conversation, number):
    text = "fails" if number % FAILS == FAILS - 1 else "works"
    return json.dumps(
        {
            "eventType": "1",
            "convType": "TEAM",
            "to": conversation,
            "fromAccount": f"{CREDENTIALS.app_id}#1",
            "msgType": "TEXT",
            "msgId": str(number),
            "body": text,
        }
    ).encode()


class Lines:
    """A file to which several processes append lines: one write for each, which the kernel does not mix with others."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words):
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def lines(path):
    """Return the whole lines of a file, split."""
    if not Path(path).exists():
        return []
    return [line.split() for line in Path(path).read_text().splitlines(keepends=True) if line.endswith("\n")]


async def receive(options):
    answered = Lines(options["answered"])
    done = {}
    for conversation, number in lines(options["answered"]):
        done[conversation] = int(number)
    over = Path(options["over"])

    async def send(receiver, conversation):
        number = done.get(conversation, -1) + 1
        while not over.exists():
            body = body_of(conversation, number)
            reply = await receiver.receive(sign(body, credentials=CREDENTIALS, now=datetime.now(UTC)), body)
            if reply.status == 200:
                answered.write(conversation, number)
                number += 1
            await asyncio.sleep(random.uniform(0, 2 * options["pause"]))

    spool = options["spool"]
    async with Receiver(credentials=CREDENTIALS, sink=inbox(options), spool=spool) as receiver:
        async with asyncio.TaskGroup() as tasks:
            for conversation in options["conversations"]:
                tasks.create_task(send(receiver, conversation))
        while receiver._spool.holds:  # what is in the spool goes to the sink before the end
            await asyncio.sleep(0.05)


async def work(options):
    handled = Lines(options["handled"])
    router = Router()

    @router.fallback
    async def handle(event):
        handled.write("begin", event.to, event.msg_id, os.getpid())
        await asyncio.sleep(random.uniform(0, options["pause"] / 2))  # a quarter of the time between two deliveries
        if event.body == "fails":
            raise ValueError("as it has to")
        handled.write("end", event.to, event.msg_id, os.getpid())

    backoff = Backoff(attempts=2, first=0.05, factor=1.0, most=0.05, crashes=1000)
    worker = Worker(inbox(options), router, concurrency=8, backoff=backoff, drain=2)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


def start(part, options, log):
    """Start a process; its errors go to a file."""
    return subprocess.Popen(
        [sys.executable, "-m", "helpers_ci.jetstream_crew", part, json.dumps(options)],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS / "ci"), str(TESTS)])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
    )


if __name__ == "__main__":
    asyncio.run({"receive": receive, "work": work}[sys.argv[1]](json.loads(sys.argv[2])))
