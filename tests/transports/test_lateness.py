"""The work at a deadline: it must not grow with the number of deadlines that end together, or the last ones are late."""

import sys

import pytest
from anyio import create_task_group

from helpers.transports import ASYNCIO, TRIO
from rbim import NotSent, Unanswered
from rbim.http import Request
from rbim.testing.conformance.case import eventually
from rbim.testing.conformance.server import RawServer, silent
from rbim.transports.aiohttp.transport import AiohttpTransport
from rbim.transports.asyncio.transport import AsyncioTransport
from rbim.transports.httpx import HttpxTransport
from rbim.transports.httpx2 import Httpx2Transport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

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
