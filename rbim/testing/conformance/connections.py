"""Conformance cases about connections: which one a request uses, and which ones must not be used again."""

from __future__ import annotations

import logging
import random
import select
import threading
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import create_task_group, to_thread

from rbim.errors import NotSent, Unanswered
from rbim.testing.conformance.case import (
    MOMENT,
    MOST_AWAITS,
    WHOLE,
    Cases,
    Conformance,
    Stepwise,
    check,
    check_closed,
    check_used,
    eventually,
    expect_error,
    expect_response,
    request,
    served,
)
from rbim.testing.conformance.server import WAIT_TIMEOUT, Peer, RawServer, Received, closing, head, reply, resetting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from rbim.http import Transport
    from rbim.testing.conformance.server import Script

__all__ = ["CASES"]

CASES = Cases()

LOG = logging.getLogger("rbim.testing.conformance")


@CASES.add("connection: kept and used again, for what must not be repeated too")
async def _kept(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE)) as (server, transport):
        for repeatable in (False, True, False):
            await expect_response(transport, request(server.url(), repeatable=repeatable), times=2)
    check_used(server, [0] * 6)


@CASES.add("connection: the one used last is the first to be used again", "lifo")
async def _last_first(subject: Conformance) -> None:
    may_answer = [threading.Event() for _ in range(3)]
    all_there = threading.Barrier(3)

    def in_turn(peer: Peer, received: Received) -> None:
        all_there.wait(WAIT_TIMEOUT)
        may_answer[int(received.body)].wait(WAIT_TIMEOUT)
        peer.send(reply(received.body))

    async def asks(transport: Transport, origin: str, number: int) -> None:
        body = b"%d" % number
        await expect_response(transport, request(origin, body=body), body)
        ended[number].set()

    async with served(subject, in_turn, in_turn, in_turn, reply(WHOLE)) as (server, transport):
        ended = [anyio.Event() for _ in range(3)]
        async with create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(asks, transport, server.url(), number)
            for number in (1, 2, 0):
                may_answer[number].set()
                await ended[number].wait()
        await expect_response(transport, request(server.url()), times=3)
        latest = next(each.connection for each in server.requests if each.body == b"0")
        check_used(server, [latest] * 3, since=3)


UNASKED: dict[str, bytes] = {
    "junk": b"junk\r\n\r\n",
    "one byte": b"x",
    "an empty line": b"\r\n",
    "an answer nobody asked for": reply(b'{"wrong":1}'),
    "an answer nobody asked for, in chunks": head("200 OK", "Transfer-Encoding: chunked") + b"5\r\nwrong\r\n0\r\n\r\n",
    "an interim answer nobody asked for": head("103 Early Hints"),
}


async def _together(subject: Conformance, extra: bytes, answer: bytes) -> None:
    """Bytes behind a response in the same read must be discarded; they are not the response to the next request.

    The transport may refuse the response before them too: Unanswered.
    """
    body = b"" if answer.startswith(b"HTTP/1.1 204") else WHOLE
    status = 200 if body else 204
    async with served(subject, answer + extra, reply(b"2"), reply(b"3")) as (server, transport):
        with suppress(Unanswered):
            await expect_response(transport, request(server.url()), body, status=status)
        await expect_response(transport, request(server.url()), b"2")
        await expect_response(transport, request(server.url()), b"3")
    check_used(server, [0, 1, 1])


ANSWERS = {
    "a length": reply(WHOLE),
    "chunks": head("200 OK", "Transfer-Encoding: chunked") + b"17\r\n%b\r\n0\r\n\r\n" % WHOLE,
    "204": head("204 No Content"),
}
for _extra, _bytes in UNASKED.items():
    if _extra != "an empty line":  # RFC 9112 allows a reader to skip it before a message
        for _framing, _answer in ANSWERS.items():
            CASES.add(f"discarded: {_extra} together with an answer ({_framing})")(
                partial(_together, extra=_bytes, answer=_answer)
            )


async def _while_idle(subject: Conformance, afterwards: Callable[[Peer], object], *, repeatable: bool) -> None:
    go, done = threading.Event(), threading.Event()

    def script(peer: Peer, _: Received) -> None:
        peer.send(reply(WHOLE))
        go.wait(WAIT_TIMEOUT)
        afterwards(peer)
        done.set()

    async with served(subject, script, reply(b"2"), reply(b"3")) as (server, transport):
        try:
            await expect_response(transport, request(server.url(), repeatable=repeatable))
        finally:
            go.set()
        await to_thread.run_sync(done.wait, WAIT_TIMEOUT)
        await anyio.sleep(MOMENT)
        await eventually(server, lambda server: 0 not in server.open, MOMENT)
        await expect_response(transport, request(server.url(), repeatable=repeatable), b"2")
        await expect_response(transport, request(server.url(), repeatable=repeatable), b"3")
    check_used(server, [0, 1, 1])


def _says_timeout(peer: Peer) -> None:
    peer.send(reply(b"", "408 Request Timeout", "Connection: close"))
    peer.close()


for _extra, _bytes in UNASKED.items():
    CASES.add(f"discarded: {_extra} while idle")(
        partial(_while_idle, afterwards=partial(Peer.send, data=_bytes), repeatable=True)
    )
CASES.add("discarded: 408 and the end while idle")(partial(_while_idle, afterwards=_says_timeout, repeatable=False))
for _repeatable in (True, False):
    _which = "may" if _repeatable else "must not"
    for _how, _ends in {"closed": Peer.close, "reset": Peer.reset}.items():
        CASES.add(f"stale: {_how} by the server while idle, for what {_which} be repeated")(
            partial(_while_idle, afterwards=_ends, repeatable=_repeatable)
        )


@CASES.add("stale: several connections closed by the server while idle")
async def _several(subject: Conformance) -> None:
    all_there = threading.Barrier(5)

    def together(peer: Peer, _: Received) -> None:
        all_there.wait(WAIT_TIMEOUT)
        peer.send(reply(WHOLE))
        peer.close()

    async with served(subject, *[together] * 5, reply(b"2")) as (server, transport):
        async with create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(expect_response, transport, request(server.url(), repeatable=False))
        await check_closed(server)
        await anyio.sleep(MOMENT)
        for _ in range(3):
            await expect_response(transport, request(server.url(), repeatable=False), b"2")
    check_used(server, [5, 5, 5], since=5)


async def _given_up(subject: Conformance, script: Script, method: str) -> None:
    """If a kept connection ends when it gets a request, the server may have read it, so it is sent only once."""
    async with served(subject, reply(WHOLE), script, reply(b"2")) as (server, transport):
        await expect_response(transport, request(server.url()))
        body = b"" if method == "GET" else WHOLE
        await expect_error(transport, request(server.url(), method=method, body=body, repeatable=False), Unanswered)
        await expect_response(transport, request(server.url()), b"2")
    check_used(server, [0, 0, 1])


for _how, _script in {"closed": closing(), "reset": resetting, "closed in half a head": closing(b"HTTP/1.1 2")}.items():
    for _method in ("POST", "GET"):
        CASES.add(f"once: a kept connection {_how} by the server when it got a {_method}")(
            partial(_given_up, script=_script, method=_method)
        )


@CASES.add("stale: a kept connection whose server is gone is not sent")
async def _server_gone(subject: Conformance) -> None:
    async with subject.make() as transport:
        with RawServer(reply(WHOLE)) as server:
            await expect_response(transport, request(server.url()))
        await anyio.sleep(MOMENT)
        await expect_error(transport, request(server.url()), NotSent)


# Conformance cases about a transport that several clients of one event loop enter.
#
# Either it stays open until the last of them has left, or it refuses the second one with a RuntimeError.


@asynccontextmanager
async def _entered_once_more(transport: Transport) -> AsyncGenerator[None]:
    """Enter an open transport, unless it refuses."""
    async with AsyncExitStack() as stack:
        with suppress(RuntimeError):
            await stack.enter_async_context(transport)
        yield


@CASES.add("shared: entered twice and left once, it keeps its connections open")
async def _left_once(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE)) as (server, transport):
        async with _entered_once_more(transport):
            await expect_response(transport, request(server.url()))
        await expect_response(transport, request(server.url()))
        check_used(server, [0, 0])


@CASES.add("shared: who leaves does not end the requests of others")
async def _others_go_on(subject: Conformance) -> None:
    may_answer = threading.Event()

    def answer(peer: Peer, _: Received) -> None:
        may_answer.wait(WAIT_TIMEOUT)
        peer.send(reply(WHOLE))

    async with served(subject, answer) as (server, transport), create_task_group() as tasks:
        async with _entered_once_more(transport):
            tasks.start_soon(expect_response, transport, request(server.url()))
            await eventually(server, lambda server: server.requests)
        may_answer.set()


@CASES.add("shared: after the last one has left nothing is sent, and no connection stays open")
async def _left_by_all(subject: Conformance) -> None:
    with RawServer(reply(WHOLE)) as server:
        async with subject.make() as transport, _entered_once_more(transport):
            await expect_response(transport, request(server.url()))
        await expect_error(transport, request(server.url()), NotSent)
        await check_closed(server)


@CASES.add("shared: left by all, it is entered again, or refuses that")
async def _again(subject: Conformance) -> None:
    with RawServer(reply(WHOLE)) as server:
        async with (transport := subject.make()):
            await expect_response(transport, request(server.url()))
        with suppress(RuntimeError):
            async with transport:
                await expect_response(transport, request(server.url()))
        await check_closed(server)


# A server that closes idle connections at any moment, as a reload of its configuration does.
#
# A transport looks whether the server has closed a kept connection, and then writes the request. If the server closes it in
# between, nothing shows whether the request was read: Unanswered. So nothing else may run in between.

ARRIVAL = 0.05  # seconds within which bytes that were written before have reached the server
STEP = 0.002  # seconds between two looks of the server


def _readable(peer: Peer, seconds: float) -> bool:
    return bool(select.select([peer.sock], [], [], seconds)[0])


class _Idle:
    """The server's end of an idle connection; it closes on request, unless a request has arrived."""

    def __init__(self) -> None:
        self._close = threading.Event()
        self._done = threading.Event()

    def script(self, peer: Peer, _: Received) -> None:
        """Respond, then wait for the next request, or for :meth:`close`."""
        peer.send(reply(WHOLE))
        arrived = False
        while not (arrived or self._close.is_set()):
            arrived = _readable(peer, STEP)
        if not arrived and not _readable(peer, ARRIVAL):
            peer.close()
        self._done.set()

    def close(self) -> None:
        """Close the connection now, and return when it is closed or has got a request; blocks the event loop."""
        self._close.set()
        self._done.wait(WAIT_TIMEOUT)


async def _every_await(subject: Conformance, *, secure: bool) -> None:
    """Send requests over a kept connection that the server closes at each suspension in turn, unless it has the request."""
    more, at = True, -1
    while more:
        at += 1
        check(at < MOST_AWAITS, f"a request was suspended {at} times; required: fewer than {MOST_AWAITS}")
        idle = _Idle()
        async with served(subject, idle.script, reply(b"2"), secure=secure) as (server, transport):
            await expect_response(transport, request(server.url()))
            sent = request(server.url(), body=b"%d" % at, repeatable=False)
            run = Stepwise(expect_response(transport, sent, b"2"), at, idle.close)
            try:
                await run
            finally:
                idle.close()
            more = run.suspensions >= at
        bodies = [each.body for each in server.requests[1:]]
        check(bodies == [b"%d" % at], f"the server has read the requests {bodies}; required: each request once")


CASES.add("reload: an idle connection is closed at any await of a request that is not written yet", "looks")(
    partial(_every_await, secure=False)
)
CASES.add("reload: an idle TLS connection is closed at any await of a request that is not written yet", "looks", "tls")(
    partial(_every_await, secure=True)
)


CALLS = 600
WORKERS = 20
DROPPED = 20  # one request in so many is read, and its connection closed without a response


class _Reloading:
    """A server under load; :meth:`reload` closes the connections that are idle at that moment.

    ``closed`` counts them; ``dropped`` are the requests that were read and got no response.
    """

    def __init__(self) -> None:
        self.closed = 0
        self.dropped: set[bytes] = set()
        self._idle: set[Peer] = set()
        self._lock = threading.Lock()

    def script(self, peer: Peer, received: Received) -> None:
        """Respond with the body of the request, then wait for the next one, as an idle connection; drop some requests."""
        if received.number % DROPPED == DROPPED - 1:
            self.dropped.add(received.body)
            peer.close()
            return
        peer.send(reply(received.body))
        with self._lock:
            self._idle.add(peer)
        _readable(peer, WAIT_TIMEOUT)
        with self._lock:
            self._idle.discard(peer)

    def reload(self) -> None:
        """Close the connections that have no request."""
        with self._lock:
            for peer in self._idle:
                if not _readable(peer, 0):
                    peer.interrupt()
                    self.closed += 1
            self._idle.clear()


@CASES.add("reload: a server under load closes its idle connections again and again, and no outcome is false")
async def _under_load(subject: Conformance) -> None:
    """Calls that are Unanswered are counted, and cannot be more than the closed connections: the log has both figures."""
    peers, chance, over = _Reloading(), random.Random(11), threading.Event()  # noqa: S311  # no secret
    numbers = iter(range(CALLS))
    answered: set[bytes] = set()
    unanswered: set[bytes] = set()
    unsent: set[bytes] = set()

    def reloads() -> None:
        while not over.wait(chance.random() * 0.01):
            peers.reload()

    async def works(transport: Transport, origin: str) -> None:
        for number in numbers:
            body = b"number %d" % number
            try:
                await expect_response(transport, request(origin, body=body, repeatable=False), body)
            except Unanswered:
                unanswered.add(body)
            except NotSent:
                unsent.add(body)
            else:
                answered.add(body)

    async with served(subject, peers.script) as (server, transport):
        reloader = threading.Thread(target=reloads, daemon=True)
        reloader.start()
        try:
            async with create_task_group() as tasks:
                for _ in range(WORKERS):
                    tasks.start_soon(works, transport, server.url())
        finally:
            over.set()
            await to_thread.run_sync(reloader.join)
    lost = len(unanswered - peers.dropped)
    LOG.info("reload: %d calls, %d idle connections closed, %d of their requests unanswered", CALLS, peers.closed, lost)
    read = [each.body for each in server.requests]
    check(peers.closed > WORKERS, f"only {peers.closed} connections were closed: the machine is too slow for this case")
    check(len(read) == len({*read}), "a request was sent more than once; required: each at most once")
    check(answered <= {*read}, "a response came to a request that the server has not read; required: none")
    check(not unsent, f"{len(unsent)} requests were not sent although the server accepts connections; required: none")
    check(peers.dropped <= unanswered, "a request got no response and is not Unanswered; required: Unanswered")
    check(
        lost <= peers.closed,
        f"{lost} requests are Unanswered; required: at most {peers.closed}, the number of closed connections",
    )
