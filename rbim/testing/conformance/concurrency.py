"""Conformance cases about cancellation, and about many concurrent requests that each get their own response."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from anyio import CancelScope, create_task_group, move_on_after

from rbim.errors import Unanswered
from rbim.http import Request
from rbim.testing.conformance.case import (
    BODY,
    LENIENCY,
    MOMENT,
    MOST_AWAITS,
    REQUEST_TIMEOUT,
    SIG,
    WHOLE,
    Cases,
    Conformance,
    Stepwise,
    check,
    check_closed,
    check_hidden,
    eventually,
    expect_response,
    recorded_text,
    request,
    served,
)
from rbim.testing.conformance.server import WAIT_TIMEOUT, Peer, RawServer, Received, chunked, full_port, reply, silent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from rbim.http import Response, Transport

__all__ = ["CASES", "SLOW_CASES"]

CASES = Cases()
SLOW_CASES = Cases()

MOST_OPEN = 2  # connections that may be idle after sequential requests: one, and one that was opened for a cancelled request


def _repeats(peer: Peer, received: Received) -> None:
    """Respond with the body of the request, in two writes."""
    answer = reply(received.body)
    peer.send(answer[:-1])
    peer.send(answer[-1:])


def _repeats_and_closes(peer: Peer, received: Received) -> None:
    peer.send(reply(received.body, "200 OK", "Connection: close"))
    peer.close()


async def _cancelled_at(transport: Transport, sent: Request, at: int) -> bool:
    """Cancel a request at its ``at``-th suspension; return whether there were so many."""
    response: Response | None = None
    scope = CancelScope()
    run = Stepwise(transport.send(sent, timeout=REQUEST_TIMEOUT), at, scope.cancel)
    with scope:
        response = await run
    check(
        response is None or response.body == sent.body,
        "a cancelled request got the response of another request; required: its own or none",
    )
    check(
        response is not None or scope.cancelled_caught,
        "a cancelled request ended without response and without cancellation; required: one of them",
    )
    return run.suspensions >= at


async def _every_await(subject: Conformance, script: Callable[[Peer, Received], None], *, secure: bool = False) -> None:
    async with served(subject, script, secure=secure) as (server, transport):
        origin = server.url()
        await expect_response(transport, request(origin), BODY)
        more, at = True, -1
        while more:
            at += 1
            check(at < MOST_AWAITS, f"a request was suspended {at} times; required: fewer than {MOST_AWAITS}")
            more = await _cancelled_at(transport, request(origin, body=b"cancelled %d" % at), at)
            body = b"after %d" % at
            await expect_response(transport, request(origin, body=body), body)
        few = not subject.cancels or await eventually(server, lambda server: len(server.open) <= MOST_OPEN, LENIENCY)
        check(few, f"{len(server.open)} connections stay open after sequential requests; required: at most {MOST_OPEN}")
    gc.collect()


CASES.add("cancelled: at every await of a request on a new connection")(partial(_every_await, script=_repeats_and_closes))
CASES.add("cancelled: at every await of a request on a kept connection")(partial(_every_await, script=_repeats))
CASES.add("cancelled: at every await of a request over TLS", "tls")(
    partial(_every_await, script=_repeats_and_closes, secure=True)
)


async def _sends(transport: Transport, sent: Request, recorded: list[str]) -> Response:
    """Send; add the text that an error tracker would record of an interruption, and raise it again."""
    try:
        return await transport.send(sent, timeout=REQUEST_TIMEOUT)
    except BaseException as error:
        recorded.append(recorded_text(error))
        raise


async def _cancelled(transport: Transport, sent: Request, reached: Callable[[], Awaitable[object]]) -> None:
    """Cancel a request by a scope, and on asyncio another one as a task, each after ``reached``.

    Only the same cancellation may come out, at once, with no secret in its traceback.
    """
    scope, recorded, began = CancelScope(), list[str](), 0.0

    async def in_scope() -> None:
        with scope:
            await _sends(transport, sent, recorded)

    async with create_task_group() as tasks:
        tasks.start_soon(in_scope)
        await reached()
        began = time.monotonic()
        scope.cancel()
    took = time.monotonic() - began
    check(scope.cancelled_caught, "a cancelled request did not raise the cancellation; required: the same cancellation")
    check(took < LENIENCY, f"a cancelled request ended after {took:.2f} s; required: within {LENIENCY:g} s")
    with suppress(RuntimeError):  # the event loop is not asyncio's
        task = asyncio.get_running_loop().create_task(_sends(transport, sent, recorded))
        await reached()
        task.cancel()
        await asyncio.wait([task])
        check(task.cancelled(), "a cancelled task did not end with its CancelledError; required: the same one")
        check(task.cancelling() == 1, f"task.cancelling() is {task.cancelling()}; required: 1")
    check_hidden("\n".join(recorded), "the traceback of a cancelled request")


def _one_more(server: RawServer, arrivals: Callable[[RawServer], int]) -> Callable[[], Awaitable[object]]:
    """Return a function that waits for one more request or connection than the last time."""
    before = arrivals(server)

    async def reached() -> None:
        nonlocal before
        before += 1
        await eventually(server, lambda server: arrivals(server) >= before)
        await anyio.sleep(MOMENT)

    return reached


async def _in_phase(subject: Conformance, half: bytes, body: bytes) -> None:
    over = threading.Event()

    def script(peer: Peer, received: Received) -> None:
        if received.header("Content-Length") == "1":
            peer.read_body(received.head)
            peer.send(reply(b"2"))
            return
        peer.send(half)
        over.wait(WAIT_TIMEOUT)  # reads no more: the rest of a long request stays unwritten
        peer.wait_closed()

    options: dict[str, Any] = {"closes": subject.cancels, "head_only": True, "receive_buffer": 65536}
    async with served(subject, script, **options) as (server, transport):
        try:
            arrivals = _one_more(server, lambda server: len(server.requests))
            await _cancelled(transport, request(server.url(), body=body), arrivals)
        finally:
            over.set()
        if subject.cancels:
            await check_closed(server)
        used = server.accepted
        await expect_response(transport, request(server.url(), body=b"2"), b"2")
    check(server.accepted == used + 1, "the connection of a cancelled request was used again; required: a new one")


PHASES: dict[str, tuple[bytes, bytes]] = {
    "while it is sent": (b"", b" " * 16_000_000),
    "before an answer": (b"", WHOLE),
    "in the middle of a head": (b"HTTP/1.1 200 OK\r\nX", WHOLE),
    "in the middle of a body": (reply(WHOLE)[:-1], WHOLE),
}
for _name, (_half, _body) in PHASES.items():
    CASES.add(f"cancelled: {_name}, at once, with no secret in its traceback, and the connection is closed")(
        partial(_in_phase, half=_half, body=_body)
    )


@CASES.add("cancelled: while connecting")
async def _connecting(subject: Conformance) -> None:
    with full_port() as port:
        async with subject.make() as transport:
            await _cancelled(transport, request(f"http://127.0.0.1:{port}"), partial(anyio.sleep, MOMENT))


@CASES.add("cancelled: while connecting, with TLS silent", "tls")
async def _handshake(subject: Conformance) -> None:
    async with served(subject, secure=True, greet=silent, closes=subject.cancels) as (server, transport):
        await _cancelled(transport, request(server.url()), _one_more(server, lambda server: server.accepted))
        if subject.cancels:
            await check_closed(server)


@CASES.add("cancelled: the late answer to a cancelled request is nobody's")
async def _late(subject: Conformance) -> None:
    may_answer = threading.Event()

    def script(peer: Peer, received: Received) -> None:
        if received.body == b"late":
            may_answer.wait(WAIT_TIMEOUT)
        peer.send(reply(received.body))

    async with served(subject, script) as (server, transport):
        await expect_response(transport, request(server.url(), body=b"1"), b"1")
        try:
            arrivals = _one_more(server, lambda server: len(server.requests))
            await _cancelled(transport, request(server.url(), body=b"late"), arrivals)
        finally:
            may_answer.set()
        for _ in range(3):
            await expect_response(transport, request(server.url(), body=b"2"), b"2")
        if subject.cancels:
            await check_closed(server, 0)


FIRST = b"the first"
BURST = 200  # the most requests of a burst: one starts at every turn of the event loop until a response has come
ENOUGH_BEGUN = 6  # requests of a burst that the server has read when it completes the first response
AFTERWARDS = 10  # requests of a burst that start after the server has completed the first response, while it is being read


@CASES.add("crowd: an answer nobody asked for behind the end of another one, while others begin, is nobody's")
async def _junk_in_a_crowd(subject: Conformance) -> None:
    """Only the end of the first response and the extra bytes come in one read, which may put the connection into the pool.

    A request that takes this connection before the first caller runs again must not read the extra bytes as its response.
    """
    for turn in range(3):
        await _burst(subject, turn)


async def _burst(subject: Conformance, turn: int) -> None:
    may_end, ended = threading.Semaphore(0), threading.Event()

    def first(peer: Peer, received: Received) -> None:
        answer = reply(received.body)
        peer.send(answer[: -len(received.body)])
        for _ in range(ENOUGH_BEGUN):
            may_end.acquire(timeout=WAIT_TIMEOUT)
        peer.send(received.body + reply(b"extra"))
        ended.set()

    def other(peer: Peer, received: Received) -> None:
        may_end.release()
        ended.wait(WAIT_TIMEOUT)
        time.sleep(0.005)  # the whole burst must start before other connections are free
        peer.send(reply(received.body))

    async def asks(transport: Transport, origin: str, body: bytes) -> None:
        try:
            await expect_response(transport, request(origin, body=body), body)
        except Unanswered:
            check(body == FIRST, f"request {body!r} got no response; required: its own body")  # the first one may have none

    async with served(subject, first, other) as (server, transport), create_task_group() as tasks:
        tasks.start_soon(asks, transport, server.url(), FIRST)
        await eventually(server, lambda server: server.requests)
        await anyio.sleep(0.01)  # the head comes meanwhile
        number = last = 0
        while number < (last or BURST):
            number += 1
            tasks.start_soon(asks, transport, server.url(), b"number %d of %d" % (number, turn))
            await anyio.lowlevel.checkpoint()
            if ended.is_set() and not last:
                last = number + AFTERWARDS


GIVE_UP = 0.3  # the share of requests that are cancelled
ENOUGH = 1000  # cancelled requests, of however many


def _at_random(latency: float, chance: random.Random) -> Callable[[Peer, Received], None]:
    """Return a script that repeats the body after up to ``latency`` seconds, whole or in chunks, in one or two writes.

    It closes one connection in twenty.
    """

    def script(peer: Peer, received: Received) -> None:
        body, last = received.body, chance.random() < 0.05  # noqa: PLR2004  # one in twenty
        half = chance.randrange(1, len(body))
        data = chunked(body[:half], body[half:]) if chance.random() < 0.3 else reply(body)  # noqa: PLR2004  # three in ten
        if last:
            data = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        time.sleep(chance.random() * latency)
        if chance.random() < 0.3:  # noqa: PLR2004  # three in ten come in two writes
            cut = chance.randrange(1, len(data))
            peer.send(data[:cut])
            time.sleep(chance.random() * latency / 4)
            data = data[cut:]
        peer.send(data)
        if last:
            peer.close()

    return script


async def _crowd(subject: Conformance, *, calls: int, in_flight: int, latency: float) -> None:
    """Check that every response reaches its own caller, while three in ten requests are cancelled at a random time."""
    chance = random.Random(7)  # noqa: S311  # no secret
    numbers = iter(range(calls))
    given_up = 0

    async def works(transport: Transport, origin: str) -> None:
        nonlocal given_up
        for number in numbers:
            body = b"number %d" % number
            sent = Request(origin=origin, path=f"/{number}", query={"sig": SIG}, body=body, repeatable=number % 2 == 0)
            response: Response | None = None
            patience = chance.random() * latency if chance.random() < GIVE_UP else REQUEST_TIMEOUT
            with move_on_after(patience):
                response = await transport.send(sent, timeout=3 * REQUEST_TIMEOUT)
            if response is None:
                check(patience < REQUEST_TIMEOUT, f"request {number} got no response; required: its own body")
                given_up += 1
            else:
                check(response.body == body, f"request {number} got the response {response.body!r}; required: {body!r}")

    with RawServer(_at_random(latency, random.Random(calls))) as server:  # noqa: S311  # no secret
        async with subject.make() as transport:
            async with create_task_group() as tasks:
                for _ in range(in_flight):
                    tasks.start_soon(works, transport, server.url())
            check(
                given_up > min(ENOUGH, calls * GIVE_UP / 6),
                f"only {given_up} of {calls} requests were cancelled: this machine answers too evenly for this case",
            )
            for number in range(10):
                body = b"afterwards %d" % number
                await expect_response(transport, request(server.url(), body=body), body)
            most = in_flight if subject.cancels else calls
            few = await eventually(server, lambda server: len(server.open) <= most, LENIENCY)
            check(few, f"{len(server.open)} connections are open; required: at most {most}")
        await check_closed(server)
    gc.collect()


CASES.add("crowd: 1,000 requests, random cancellations, each answer for its own caller")(
    partial(_crowd, calls=1_000, in_flight=100, latency=0.01)
)
SLOW_CASES.add("crowd: 100,000 requests, random cancellations, each answer for its own caller", seconds=1800.0)(
    partial(_crowd, calls=100_000, in_flight=200, latency=0.02)
)
