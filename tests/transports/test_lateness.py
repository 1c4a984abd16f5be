"""Deadlines: what arrived before is read, and the work does not grow with the number of deadlines that end together."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from anyio import create_task_group

from helpers.exchanges import ENOUGH
from helpers.transports import ASYNCIO, TRIO, each_transport
from rbim import NotSent, Unanswered
from rbim.http import Request
from rbim.testing.conformance.case import eventually
from rbim.testing.conformance.server import RawServer, reply, silent
from rbim.transports.aiohttp import AiohttpTransport
from rbim.transports.asyncio.transport import AsyncioTransport
from rbim.transports.httpx import HttpxTransport
from rbim.transports.httpx2 import Httpx2Transport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

# A process that was stopped: its event loop may look at the clock before it looks at the sockets.

STOPPED = """
import json, sys
import anyio
from helpers.transports import class_of
from rbim import TransportError
from rbim.http import Request

name, backend, options, origin, timeout = json.loads(sys.argv[1])
outcomes = []

async def asks(transport, number):
    try:
        response = await transport.send(Request(origin=origin, path="/", body=b"{}"), timeout=timeout)
        outcomes.append(len(response.body))
    except TransportError as error:
        outcomes.append(type(error).__name__)

async def main():
    async with class_of(name)() as transport, anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(asks, transport, number)

anyio.run(main, backend=backend, backend_options=options)
print(outcomes)
"""


def outcomes_of_a_stopped_process(name, backend, timeout):
    """Return what a process prints that is stopped beyond its time-out, and whether its requests had arrived before."""
    may_answer = threading.Event()
    body = b"x" * 200_000
    loop, options = (backend, {}) if isinstance(backend, str) else backend

    def script(peer, _):
        may_answer.wait(ENOUGH)
        peer.send(reply(body))

    with RawServer(script) as server:
        told = json.dumps([name, loop, options, server.url(), timeout])
        with subprocess.Popen(
            [sys.executable, "-c", STOPPED, told], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
        ) as process:
            arrived = server.wait_until(lambda server: len(server.requests) == 5) and process.poll() is None
            process.send_signal(signal.SIGSTOP)
            may_answer.set()
            time.sleep(timeout + 0.1)
            process.send_signal(signal.SIGCONT)
            return process.communicate(timeout=ENOUGH)[0].strip(), arrived


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@each_transport()
def test_what_arrived_while_the_process_was_stopped_is_read(name, anyio_backend):
    for timeout in (0.3, 3.0):
        printed, arrived = outcomes_of_a_stopped_process(name, anyio_backend, timeout)
        if arrived and printed == str([200_000] * 5):
            break
    assert printed == str([200_000] * 5)


# A client, whose loop is blocked beyond its deadline.


# The work at a deadline.

TIMEOUTS = (0.5, 2.0, 8.0)  # seconds: the first one is taken within which all requests arrive
FEW, MANY = 10, 80


async def function_calls(make, count):
    """Return how many functions are called for each of so many requests that are silent until their deadline."""
    for timeout in TIMEOUTS:
        if called := await function_calls_within(make, count, timeout):
            return called / count
    return pytest.fail(f"{count} requests do not arrive within {TIMEOUTS[-1]} seconds")


async def function_calls_within(make, count, timeout):
    """Return how many functions are called from the last arrival on; 0 if a request ends before that."""
    called, ended = 0, []

    def profile(_frame, event, _argument):
        nonlocal called
        called += event in {"call", "c_call"}

    async def hangs(transport, origin):
        with pytest.raises((Unanswered, NotSent)) as raised:
            await transport.send(Request(origin=origin, path="/", body=b"{}"), timeout=timeout)
        ended.append(raised.type)

    with RawServer(silent) as server:
        async with make() as transport:
            try:
                async with create_task_group() as tasks:
                    for _ in range(count):
                        tasks.start_soon(hangs, transport, server.url())
                    arrived = await eventually(server, lambda server: len(server.requests) == count, timeout)
                    if not arrived or ended:
                        tasks.cancel_scope.cancel()
                        return 0
                    sys.setprofile(profile)
            finally:
                sys.setprofile(None)
    assert ended == [Unanswered] * count
    return called


@pytest.mark.parametrize(
    ("make", "anyio_backend"),
    [
        (HttpxTransport, ASYNCIO),
        (HttpxTransport, TRIO),
        (Httpx2Transport, ASYNCIO),
        (AiohttpTransport, ASYNCIO),
        (AsyncioTransport, ASYNCIO),
    ],
)
async def test_the_work_at_a_deadline_does_not_grow_with_their_number(make):
    few = await function_calls(make, FEW)
    many = await function_calls(make, MANY)
    assert many < 1.3 * few
