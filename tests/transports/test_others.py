"""What is special to the transports of aiohttp and httpx2: their libraries' habits, and what they do not do."""

import asyncio
import builtins
import functools
import importlib
import sys
import threading
import time
import traceback

import aiohttp
import anyio
import pytest
from anyio import to_thread

from helpers.exchanges import ENOUGH, failure, is_left, request
from rbim import InvalidRequest, NotSent, Unanswered
from rbim.testing.conformance.server import RawServer, closing, refusing_port, reply, silent
from rbim.transports.aiohttp import AiohttpTransport
from rbim.transports.httpx2 import Httpx2Transport

pytestmark = pytest.mark.usefixtures("no_proxy_of_this_machine")

SIG = "0A1B2C3D4E5F"
EACH = pytest.mark.parametrize("make", [AiohttpTransport, Httpx2Transport])


@pytest.fixture
def anyio_backend():
    """Most of these transports run on asyncio only."""
    return "asyncio"


async def test_aiohttp_does_not_choose_between_two_who_send():
    with RawServer() as server:
        async with AiohttpTransport() as transport:
            assert await failure(transport, request(server.url().replace("//", "//user:pass@"))) is NotSent
    assert not server.requests


async def test_aiohttp_closes_the_connection_of_a_cancelled_request_even_while_it_is_being_sent():
    with RawServer(lambda peer, _: time.sleep(0.1) or peer.wait_closed(), head_only=True) as server:
        async with AiohttpTransport() as transport:
            with anyio.move_on_after(0.05):
                await transport.send(request(server.url(), body=b" " * 16_000_000), timeout=ENOUGH)
            assert await is_left(server)


# Connections.


async def test_with_aiohttp_a_connection_closed_while_the_loop_was_held_up_is_noticed():
    with RawServer(closing(reply(b"{}")), reply(b"{}")) as server:
        async with AiohttpTransport() as transport:
            await transport.send(request(server.url()), timeout=ENOUGH)
            assert server.wait_until(lambda server: not server.open)  # holds the loop up
            await transport.send(request(server.url(), repeatable=False), timeout=ENOUGH)
    assert [seen.connection for seen in server.requests] == [0, 1]


async def test_aiohttp_that_is_left_ends_what_is_being_sent():
    over = threading.Event()
    with RawServer(lambda *_: over.wait(ENOUGH), head_only=True, receive_buffer=65536) as server:
        async with AiohttpTransport() as transport:
            sending = asyncio.create_task(transport.send(request(server.url(), body=b" " * 16_000_000), timeout=0.5))
            assert await to_thread.run_sync(server.wait_until, lambda server: server.requests)
        try:
            await asyncio.wait([sending], timeout=3.0)
            assert isinstance(sending.exception(), Unanswered)
        finally:
            over.set()
            sending.cancel()


# A session of the user's.


async def test_a_session_given_to_aiohttp_stays_open_with_its_headers_and_cookies():
    with RawServer(reply(b"1", "200 OK", "Set-Cookie: mine=1; Path=/")) as server:
        async with aiohttp.ClientSession(headers={"X-Mine": "yes"}, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            async with AiohttpTransport(session=session) as transport:
                for _ in range(2):
                    response = await transport.send(request(server.url()), timeout=ENOUGH)
                    assert (response.status, response.body) == (200, b"1")
            assert not session.closed
            with pytest.raises(NotSent, match="not open"):
                await transport.send(request(server.url()), timeout=ENOUGH)
            async with session.post(server.url()) as answer:
                assert await answer.read() == b"1"
    assert [(seen.header("X-Mine"), seen.header("Cookie")) for seen in server.requests] == [
        ("yes", ""),
        ("yes", "mine=1"),
        ("yes", "mine=1"),
    ]
    assert server.accepted == 1


async def test_a_request_that_a_session_queues_beyond_its_deadline_is_not_sent():
    with RawServer(silent) as server:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
            AiohttpTransport(session=session) as transport,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(functools.partial(failure, transport, request(server.url())))
            assert await to_thread.run_sync(server.wait_until, lambda server: server.requests)
            with pytest.raises(NotSent, match=r"no connection within 0\.05 s"):
                await transport.send(request(server.url()), timeout=0.05)
            tasks.cancel_scope.cancel()
    assert len(server.requests) == 1


async def test_a_session_that_was_closed_sends_nothing():
    async with aiohttp.ClientSession() as session:
        pass
    with RawServer() as server:
        async with AiohttpTransport(session=session) as transport:
            assert await failure(transport, request(server.url())) is NotSent
    assert not server.accepted


def test_aiohttp_refuses_a_unix_socket():
    with pytest.raises(InvalidRequest, match="uds: AiohttpTransport has no UNIX sockets"):
        AiohttpTransport(uds="/run/platform.sock")


# What a cancellation looks like from outside.


async def while_handling(error, send):
    try:
        raise error
    except type(error):
        return await send()


@EACH
async def test_what_the_caller_is_about_to_handle_is_left_alone(make):
    """Its traceback and its words; and a cancellation is the very one that was asked for."""
    mine = KeyError(SIG)
    with RawServer(silent) as server, refusing_port() as port:
        async with make() as transport:
            unreachable = functools.partial(transport.send, request(f"http://127.0.0.1:{port}"), timeout=ENOUGH)
            with pytest.raises(NotSent):
                await while_handling(mine, unreachable)
            assert (mine.args, len(traceback.extract_tb(mine.__traceback__))) == ((SIG,), 1)
            task = asyncio.current_task()
            asyncio.get_running_loop().call_later(0.05, task.cancel, "for this reason")
            waiting = functools.partial(transport.send, request(server.url()), timeout=1.0)
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await while_handling(mine, waiting)
            assert (task.uncancel(), cancelled.value.args) == (0, ("for this reason",))
            assert cancelled.value.__context__ in {None, mine}
            assert mine.args == (SIG,)
            assert mine.__traceback__ is not None


# Event loops and packages.


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_another_transport_is_named():
    with pytest.raises(RuntimeError, match="asyncio only: on trio, use HttpxTransport"):
        async with AiohttpTransport():
            pass


@pytest.mark.parametrize("extra", ["aiohttp", "httpx2"])
def test_a_missing_package_is_an_error_that_names_the_pip_command(extra, monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == extra:
            reason = f"No module named {extra!r}"
            raise ModuleNotFoundError(reason, name=extra)
        return original(name, *rest)

    for module in [name for name in sys.modules if f"{name}.".startswith(f"rbim.transports.{extra}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "rbim\[{extra}\]"'):
        getattr(importlib.import_module(f"rbim.transports.{extra}"), f"{extra.capitalize()}Transport")
