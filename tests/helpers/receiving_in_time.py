"""Deliveries to receivers with a short budget of real time, and sinks that do what a test wants."""

import asyncio
from collections import Counter

import anyio
import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import body as body_of
from helpers.receiving_asgi import Sink as Keeping, signed
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
    return body_of(to=group, body=str(number), msgId=f"{group}-{number}")


async def post(receiver, body):
    return (await receiver.receive(signed(body), body)).status


class Sink(Keeping):
    """A sink that does what a test wants."""

    def __init__(self, accept):
        super().__init__()
        self.began = Counter()
        self._accept = accept

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
