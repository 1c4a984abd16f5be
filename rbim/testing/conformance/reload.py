"""Conformance cases about a server that closes idle connections at any moment, as a reload of its configuration does.

A transport looks whether the server has closed a kept connection, and then writes the request. If the server closes it in
between, nothing shows whether the request was read: Unanswered. So nothing else may run in between.
"""

from __future__ import annotations

import logging
import random
import select
import threading
from typing import TYPE_CHECKING

from anyio import create_task_group, to_thread

from rbim.errors import NotSent, Unanswered
from rbim.testing.conformance.case import (
    REQUEST_TIMEOUT,
    WHOLE,
    Cases,
    Conformance,
    NonConforming,
    Stepwise,
    check,
    expect_response,
    request,
    served,
)
from rbim.testing.conformance.server import PATIENCE, Peer, Received, reply
from rbim.testing.conformance.tls import authority

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from rbim.http import Response, Transport

__all__ = ["CASES"]

CASES = Cases()
LOG = logging.getLogger("rbim.testing.conformance")

MOST_AWAITS = 1000  # the most suspensions of one ``send``
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
        self._done.wait(PATIENCE)


async def _closed_at(transport: Transport, origin: str, idle: _Idle, at: int) -> bool:
    """Send a request over a kept connection that the server closes at the ``at``-th suspension, unless it has the request.

    Return whether there were so many suspensions.
    """
    run = Stepwise(
        transport.send(request(origin, body=b"%d" % at, repeatable=False), timeout=REQUEST_TIMEOUT), at, idle.close
    )
    try:
        response = await run
    except (NotSent, Unanswered) as error:
        raise NonConforming(
            f"raised {type(error).__name__} ({error}) although the server closed the idle connection before the request was "
            f"written, at suspension {at}; required: a response over a new connection"
        ) from error
    finally:
        idle.close()
    check(response.body == b"2", f"got the body {response.body!r}; required: b'2'")
    return run.suspensions >= at


async def _every_await(subject: Conformance, scheme: str, options: Mapping[str, Any]) -> None:
    context = authority().of_a_server() if scheme == "https" else None
    greet: Callable[[Peer], object] | None = None if context is None else (lambda peer: peer.start_tls(context))
    more, at = True, -1
    while more:
        at += 1
        check(at < MOST_AWAITS, f"a request was suspended {at} times; required: fewer than {MOST_AWAITS}")
        idle = _Idle()
        async with served(subject, idle.script, reply(b"2"), greet=greet, options=options) as (server, transport):
            await expect_response(transport, request(server.url(scheme)))
            more = await _closed_at(transport, server.url(scheme), idle, at)
        bodies = [each.body for each in server.requests[1:]]
        check(bodies == [b"%d" % at], f"the server has read the requests {bodies}; required: each request once")


@CASES.add("reload: an idle connection is closed at any await of a request that is not written yet", "looks")
async def _plain(subject: Conformance) -> None:
    await _every_await(subject, "http", {})


@CASES.add("reload: an idle TLS connection is closed at any await of a request that is not written yet", "looks", "tls")
async def _secure(subject: Conformance) -> None:
    await _every_await(subject, "https", authority().trusted_by(subject))


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
        _readable(peer, PATIENCE)
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
                response: Response = await transport.send(
                    request(origin, body=body, repeatable=False), timeout=REQUEST_TIMEOUT
                )
            except Unanswered:
                unanswered.add(body)
            except NotSent:
                unsent.add(body)
            else:
                check(response.body == body, f"request {body!r} got the response {response.body!r}; required: its own body")
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
    check(
        not unsent & {*read}, f"{len(unsent & {*read})} requests are NotSent, and the server has read them; required: none"
    )
    check(not unsent, f"{len(unsent)} requests were not sent although the server accepts connections; required: none")
    check(peers.dropped <= unanswered, "a request got no response and is not Unanswered; required: Unanswered")
    check(
        lost <= peers.closed,
        f"{lost} requests are Unanswered; required: at most {peers.closed}, the number of closed connections",
    )
