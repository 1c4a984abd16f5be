"""Idle connections: closed by the transport without a call, and at once where the server has closed them."""

import gc
import sys
import threading
import time
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import create_task_group

from helpers.exchanges import ENOUGH, became, is_left, request
from helpers.transports import ASYNCIO, TRIO, class_of, each_transport
from rbim.testing.conformance.server import RawServer, authority, reply
from rbim.transports.httpx import HttpxTransport
from rbim.transports.httpx_slots import transport as slots

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

EACH = each_transport(among=(ASYNCIO, TRIO))
ON_TRIO = pytest.mark.parametrize("anyio_backend", [TRIO])
CLOSE_WAIT = "08"
AT_ONCE = 30


def in_close_wait(port):
    """Return how many sockets of this machine the server at a port has closed and its client has not, as the kernel says."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return sum(row[3] == CLOSE_WAIT and int(row[2].partition(":")[2], 16) == port for row in rows)


async def at_once(transport, origin, number=AT_ONCE):
    async with create_task_group() as tasks:
        for _ in range(number):
            tasks.start_soon(partial(transport.send, request(origin), timeout=ENOUGH))


@EACH
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.skipif(sys.platform != "linux", reason="the states of sockets are read from /proc")
async def test_no_socket_waits_for_its_end_after_the_server_has_closed(name, secure, monkeypatch):
    monkeypatch.setattr(slots, "PERIOD", 0.05)
    all_there, may_close = threading.Barrier(AT_ONCE), threading.Event()

    def script(peer, _):
        all_there.wait(ENOUGH)
        peer.send(reply(b"{}"))
        may_close.wait(ENOUGH)
        peer.close()

    context, kind = authority().of_a_server(), class_of(name)
    options = authority().trusted() if secure else {}
    server = RawServer(script, greet=(lambda peer: peer.start_tls(context)) if secure else None)
    with server:
        async with kind(**options) as transport:
            await at_once(transport, server.url("https" if secure else "http"))
            assert server.accepted == AT_ONCE
            may_close.set()
            assert await is_left(server)
            until = time.monotonic() + 5
            while (left := in_close_wait(server.port)) and time.monotonic() < until:
                await anyio.sleep(0.01)
            assert left == 0


@EACH
async def test_a_connection_idle_for_too_long_is_closed_without_a_call(name):
    with RawServer(reply(b"{}")) as server:
        async with class_of(name)(max_idle=0.2) as transport:
            for _ in range(3):
                await transport.send(request(server.url()), timeout=ENOUGH)  # its deadline comes later than the idle time
            assert server.accepted == 1
            assert server.open
            began = time.monotonic()
            assert await is_left(server)
            assert 0.1 < time.monotonic() - began < 2
            await transport.send(request(server.url()), timeout=ENOUGH)
            assert server.accepted == 2


@EACH
async def test_a_connection_idle_for_long_serves_only_what_may_be_repeated(name):
    again = [0, 1, 2] if name == "aiohttp" else [0, 0, 0]  # its pool does not know which requests may be repeated
    for repeatable, connections in ((True, again), (False, [0, 1, 2])):
        with RawServer() as server:
            async with class_of(name)(keepalive_expiry=0.0) as transport:
                for number in range(3):
                    await anyio.sleep(0.001)
                    await transport.send(request(server.url(), repeatable=repeatable), timeout=ENOUGH)
                    if not repeatable:  # those of too long ago do not pile up
                        assert await became(server, lambda server: len(server.open) <= 1), number
        assert [seen.connection for seen in server.requests] == connections


@EACH
async def test_a_connection_in_use_is_not_idle(name):
    may_answer = threading.Event()

    def slow(peer, _):
        may_answer.wait(ENOUGH)
        peer.send(reply(b"{}"))

    with RawServer(reply(b"{}"), slow) as server:
        async with class_of(name)(max_idle=0.05) as transport, create_task_group() as tasks:
            await transport.send(request(server.url()), timeout=ENOUGH)
            tasks.start_soon(partial(transport.send, request(server.url()), timeout=ENOUGH))
            await anyio.sleep(0.3)
            assert server.open
            may_answer.set()


@ON_TRIO
async def test_on_trio_one_task_sweeps_while_there_are_idle_connections(monkeypatch):
    import trio

    monkeypatch.setattr(slots, "PERIOD", 0.02)

    def tasks():
        return trio.lowlevel.current_statistics().tasks_living

    with RawServer(reply(b"{}")) as server:
        before = tasks()
        async with HttpxTransport(max_idle=0.2) as transport:
            assert tasks() == before
            await at_once(transport, server.url(), 5)
            assert tasks() == before + 1
            assert await became(server, lambda server: server.accepted and not server.open)
            await anyio.sleep(0.1)
            assert tasks() == before
            await transport.send(request(server.url()), timeout=ENOUGH)
            assert tasks() == before + 1
        await anyio.sleep(0.01)
        assert tasks() == before


def test_on_trio_the_sweeper_keeps_no_event_loop_running(monkeypatch):
    monkeypatch.setattr(slots, "PERIOD", 60)

    async def leave_it_open():
        transport = HttpxTransport()
        await transport.__aenter__()
        await transport.send(request(server.url()), timeout=ENOUGH)
        for route in transport._routes.values():
            for slot in route.idle:
                slot.abort()

    with RawServer(reply(b"{}")) as server:
        began = time.monotonic()
        anyio.run(leave_it_open, backend=TRIO)
        assert time.monotonic() - began < ENOUGH
    gc.collect()
