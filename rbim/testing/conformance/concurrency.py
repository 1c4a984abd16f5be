"""Conformance cases about cancellation, and about many concurrent requests that each get their own response."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
from anyio import CancelScope, create_task_group, move_on_after

from rbim.errors import Unanswered
from rbim.http import Request
from rbim.testing.conformance.case import (
    BODY,
    LENIENCY,
    REQUEST_TIMEOUT,
    SIG,
    WHOLE,
    Cases,
    Conformance,
    Stepwise,
    all_closed,
    check,
    eventually,
    expect_response,
    request,
    served,
)
from rbim.testing.conformance.server import PATIENCE, Peer, RawServer, Received, chunked, reply, silent
from rbim.testing.conformance.tls import authority

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim.http import Response, Transport

__all__ = ["CASES", "SLOW_CASES"]

CASES = Cases()
SLOW_CASES = Cases()

MOST_OPEN = 2  # connections that may be idle after sequential requests: one, and one that was opened for a cancelled request
MOST_AWAITS = 1000  # the most suspensions of one ``send``


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


async def _every_await(
    subject: Conformance,
    script: Callable[[Peer, Received], None],
    scheme: str = "http",
    *,
    greet: Callable[[Peer], None] | None = None,
    **options: Any,
) -> None:
    async with served(subject, script, greet=greet, options=options) as (server, transport):
        origin = server.url(scheme)
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


@CASES.add("cancelled: at every await of a request on a new connection")
async def _new_connection(subject: Conformance) -> None:
    await _every_await(subject, _repeats_and_closes, "http")


@CASES.add("cancelled: at every await of a request on a kept connection")
async def _kept_connection(subject: Conformance) -> None:
    await _every_await(subject, _repeats, "http")


@CASES.add("cancelled: at every await of a request over TLS", "tls")
async def _over_tls(subject: Conformance) -> None:
    context = authority().of_a_server()
    await _every_await(
        subject,
        _repeats_and_closes,
        "https",
        greet=lambda peer: peer.start_tls(context),
        **authority().trusted_by(subject),
    )


def _half(peer: Peer, _: Received) -> None:
    peer.send(reply(WHOLE)[:-1])
    silent(peer)


async def _cancelled(transport: Transport, sent: Request, when: Callable[[], Awaitable[object]]) -> None:
    """Cancel a request by a scope after ``when``, and check that only the cancellation comes out."""
    scope, began = CancelScope(), 0.0

    async def sends() -> None:
        with scope:
            await transport.send(sent, timeout=REQUEST_TIMEOUT)

    async with create_task_group() as tasks:
        tasks.start_soon(sends)
        await when()
        began = time.monotonic()
        scope.cancel()
    check(scope.cancelled_caught, "a cancelled request did not raise the cancellation; required: the same cancellation")
    took = time.monotonic() - began
    check(took < LENIENCY, f"a cancelled request ended after {took:.2f} s; required: within {LENIENCY:g} s")


async def _in_silence(subject: Conformance, script: Callable[[Peer, Received], None]) -> None:
    async with served(subject, script, reply(WHOLE), closes=subject.cancels) as (server, transport):
        await _cancelled(transport, request(server.url()), partial(eventually, server, lambda server: server.requests))
        check(
            not subject.cancels or await all_closed(server, 0),
            "the connection stays open after a cancelled request; required: closed",
        )
        await expect_response(transport, request(server.url()))
    check(server.accepted == 2, "the connection of a cancelled request was used again; required: a new one")  # noqa: PLR2004  # one each


for _name, _script in {"before an answer": silent, "in the middle of an answer": _half}.items():
    CASES.add(f"cancelled: {_name}, at once, and the connection is closed")(partial(_in_silence, script=_script))


@CASES.add("cancelled: a task of asyncio, whose count of cancellations is left alone")
async def _task(subject: Conformance) -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return  # on other event loops, tasks are cancelled by scopes only
    async with served(subject, silent, reply(WHOLE), closes=subject.cancels) as (server, transport):
        task = loop.create_task(_sends(transport, request(server.url())))
        await eventually(server, lambda server: server.requests)
        task.cancel("why")
        (result,) = await asyncio.gather(task, return_exceptions=True)
        check(
            isinstance(result, asyncio.CancelledError), f"a cancelled task ended with {result!r}; required: CancelledError"
        )
        check(task.cancelling() == 1, f"task.cancelling() is {task.cancelling()}; required: 1")
        await expect_response(transport, request(server.url()))


async def _sends(transport: Transport, sent: Request) -> Response:
    return await transport.send(sent, timeout=REQUEST_TIMEOUT)


@CASES.add("cancelled: the late answer to a cancelled request is nobody's")
async def _late(subject: Conformance) -> None:
    may_answer = threading.Event()

    def late(peer: Peer, _: Received) -> None:
        may_answer.wait(PATIENCE)
        peer.send(reply(b"late"))

    async with served(subject, reply(WHOLE), late, reply(b"2")) as (server, transport):
        await expect_response(transport, request(server.url()))
        try:
            seen = partial(eventually, server, lambda server: len(server.requests) > 1)
            await _cancelled(transport, request(server.url()), seen)
        finally:
            may_answer.set()
        for _ in range(3):
            await expect_response(transport, request(server.url()), b"2")
        check(
            not subject.cancels or await all_closed(server, 0),
            "the connection stays open after a cancelled request; required: closed",
        )


@CASES.add("cancelled: while connecting, with TLS silent", "tls")
async def _handshake(subject: Conformance) -> None:
    options = authority().trusted_by(subject)
    async with served(subject, greet=silent, options=options, closes=subject.cancels) as (server, transport):
        await _cancelled(transport, request(server.url("https")), partial(eventually, server, lambda server: server.open))
        check(
            not subject.cancels or await all_closed(server),
            "the connection stays open after a cancelled handshake; required: closed",
        )


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
            may_end.acquire(timeout=PATIENCE)
        peer.send(received.body + reply(b"extra"))
        ended.set()

    def other(peer: Peer, received: Received) -> None:
        may_end.release()
        ended.wait(PATIENCE)
        time.sleep(0.005)  # the whole burst must start before other connections are free
        peer.send(reply(received.body))

    async def asks(transport: Transport, origin: str, body: bytes) -> None:
        try:
            response = await transport.send(request(origin, body=body), timeout=REQUEST_TIMEOUT)
        except Unanswered:
            check(
                body == FIRST, f"request {body!r} got no response; required: its own body"
            )  # the first one may be Unanswered
        else:
            check(response.body == body, f"request {body!r} got the response {response.body!r}; required: its own body")

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
    done = given_up = 0

    async def works(transport: Transport, origin: str) -> None:
        nonlocal done, given_up
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
                continue
            check(response.body == body, f"request {number} got the response {response.body!r}; required: {body!r}")
            done += 1

    with RawServer(_at_random(latency, random.Random(calls))) as server:  # noqa: S311  # no secret
        async with subject.make() as transport:
            async with create_task_group() as tasks:
                for _ in range(in_flight):
                    tasks.start_soon(works, transport, server.url())
            check(
                done + given_up == calls,
                f"{done} requests got a response and {given_up} were cancelled; required: {calls} in all",
            )
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
        check(
            await all_closed(server),
            f"{len(server.open)} connections stay open after the transport was closed; required: none",
        )
    gc.collect()


CASES.add("crowd: 1,000 requests, random cancellations, each answer for its own caller")(
    partial(_crowd, calls=1_000, in_flight=100, latency=0.01)
)
SLOW_CASES.add("crowd: 100,000 requests, random cancellations, each answer for its own caller", seconds=1800.0)(
    partial(_crowd, calls=100_000, in_flight=200, latency=0.02)
)
