"""Deliveries to receivers with a short budget of real time, and sinks that do what a test wants."""

import asyncio
import hashlib
import json
import time
from collections import Counter

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS, TOKEN
from rbim.callbacks import Receiver

GIVES_UP = 5.0  # seconds in which the platform wants its answer
SOON = 0.03  # a budget, in seconds of real time
LITTLE = 1.0  # what may come on top of it on a machine that is busy

UVLOOP = pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop", marks=pytest.mark.ci)
ASYNCIO = pytest.param(("asyncio", {}), id="asyncio")
TRIO = pytest.param(("trio", {}), id="trio")
everywhere = pytest.mark.parametrize("anyio_backend", [ASYNCIO, UVLOOP, TRIO])
on_asyncio = pytest.mark.parametrize("anyio_backend", [ASYNCIO, UVLOOP])


def content(number, group="g1"):
    document = {"eventType": "1", "convType": "TEAM", "to": group, "fromAccount": f"{APP_ID}#1001", "msgType": "TEXT"}
    return json.dumps(document | {"body": str(number), "msgId": f"{group}-{number}"}).encode()


def signed(body):
    """Sign with the standard library."""
    digest, moment = hashlib.md5(body).hexdigest(), str(time.time_ns() // 1_000_000)
    checksum = hashlib.md5(f"{APP_ID}{TOKEN}{digest}{moment}".encode()).hexdigest()
    return {"MD5": digest, "CurTime": moment, "CheckSum": checksum}


async def post(receiver, body):
    return (await receiver.receive(signed(body), body)).status


class Sink:
    """A sink that does what a test wants."""

    durable = False
    retention = 0.0

    def __init__(self, accept):
        self.began = Counter()
        self._accept = accept

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def accept(self, delivery):
        self.began[delivery.key] += 1
        await self._accept(delivery)
        return True


async def never(_):
    await anyio.sleep(10 * GIVES_UP)  # so that a test fails where nobody ends it


async def at_once(_):
    pass


def impatient(sink, **options):
    return Receiver(credentials=CREDENTIALS, sink=sink, budget=SOON, **options)


def left_over(receiver):
    """What is in the table of the timer that deliveries share on asyncio."""
    return getattr(receiver._intake._scope.__self__, "scopes", {})


def cancels():
    """How many cancellations the task still owes."""
    try:
        return asyncio.current_task().cancelling()
    except RuntimeError:  # trio has no such thing
        return 0
