"""Conformance cases about errors: failures, time-outs in each phase, and secrets hidden from errors and logs."""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from anyio import create_task_group

from rbim.errors import NotSent, TransportError, Unanswered
from rbim.testing.conformance.case import (
    MOMENT,
    REQUEST_TIMEOUT,
    WHOLE,
    Cases,
    Conformance,
    check,
    check_hidden,
    check_used,
    eventually,
    expect_error,
    expect_response,
    expect_timeout,
    request,
    served,
)
from rbim.testing.conformance.server import (
    CHUNKS,
    WAIT_TIMEOUT,
    Peer,
    Received,
    chunked,
    closing,
    dripping,
    full_port,
    halting,
    head,
    refusing_port,
    reply,
    resetting,
    silent,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from rbim.http import Request, Transport
    from rbim.testing.conformance.server import Script

__all__ = ["CASES"]

CASES = Cases()


@CASES.add("fails: a refused connection is not sent, and the error names the host and the port")
async def _refused(subject: Conformance) -> None:
    with refusing_port() as port:
        async with subject.make() as transport:
            for repeatable in (True, False):
                sent = request(f"http://127.0.0.1:{port}", repeatable=repeatable)
                error = str(await expect_error(transport, sent, NotSent))
                check(f"127.0.0.1:{port}" in error, f"the message is {error!r}; required: one with 127.0.0.1:{port}")


@CASES.add("fails: a name that does not resolve is not sent")
async def _unknown_name(subject: Conformance) -> None:
    async with subject.make() as transport:
        for name in ("name.invalid", "x" * 70 + ".invalid"):
            await expect_error(transport, request(f"http://{name}"), NotSent)


@CASES.add("fails: a connection reset or closed before anything was read is never an answer")
async def _greeted_badly(subject: Conformance) -> None:
    for greet in (resetting, Peer.close):
        async with served(subject, greet=greet) as (server, transport):
            await expect_error(transport, request(server.url()), NotSent, Unanswered)  # depends on which side is faster


@CASES.add("fails: a connection that ends while the request is being sent is unanswered")
async def _ends_while_sending(subject: Conformance) -> None:
    for script in (resetting, closing()):
        async with served(subject, script, head_only=True) as (server, transport):
            await expect_error(transport, request(server.url(), body=b" " * 8_000_000), Unanswered)
        check_used(server, [0])


@CASES.add("fails: a connection that ends after the request was read is unanswered")
async def _ends_after(subject: Conformance) -> None:
    for script in (resetting, closing(), _reset_after(reply(WHOLE)[:-1]), _reset_after(head("200 OK") + WHOLE)):
        async with served(subject, script) as (server, transport):
            await expect_error(transport, request(server.url()), Unanswered)
        check_used(server, [0])


def _reset_after(data: bytes) -> Script:
    def script(peer: Peer, _: Received) -> None:
        peer.send(data)
        time.sleep(0.01)  # a reset discards data that was not read yet
        peer.reset()

    return script


# Time-outs.


@CASES.add("time-out: no connection comes about")
async def _no_connection(subject: Conformance) -> None:
    with full_port() as port:
        async with subject.make() as transport:
            await expect_error(transport, request(f"http://127.0.0.1:{port}"), NotSent, timeout=0.1)


@CASES.add("time-out: while the request is being sent")
async def _deaf(subject: Conformance) -> None:
    given_up = threading.Event()

    def deaf(peer: Peer, _: Received) -> None:
        given_up.wait(WAIT_TIMEOUT)
        peer.wait_closed()

    await expect_timeout(
        subject,
        (Unanswered,),
        deaf,
        sent=lambda origin: request(origin, body=b" " * 16_000_000),
        given_up=given_up,
        head_only=True,
        receive_buffer=65536,
    )


LONG = b"x" * 200_000  # more than one read
ARRIVED: dict[str, bytes] = {
    "short": reply(WHOLE),
    "long": reply(LONG),
    "in chunks": chunked(*[LONG[:10_000]] * 20),
    "none": b"",
}
OUTCOMES = {"short": len(WHOLE), "long": len(LONG), "in chunks": len(LONG), "none": "Unanswered"}


async def _read_late(subject: Conformance, *, secure: bool) -> None:
    """Block the event loop until the time-out of requests on new and kept connections is over, and their answers are there.

    A request that has no answer then is Unanswered.
    """
    may_answer = threading.Event()

    def script(peer: Peer, received: Received) -> None:
        if received.body != WHOLE:
            may_answer.wait(WAIT_TIMEOUT)
        peer.send(reply(WHOLE) if received.body == WHOLE else ARRIVED[received.body.decode()])

    async def sends(transport: Transport, sent: Request, seconds: float, outcomes: list[object]) -> None:
        try:
            outcomes.append(len((await transport.send(sent, timeout=seconds)).body))
        except TransportError as error:
            outcomes.append(type(error).__name__)

    in_time = False
    for timeout in (0.3, 2.5):  # the longer one is for machines on which requests do not arrive in time
        found: dict[str, list[object]] = {name: [] for name in ARRIVED}
        async with served(subject, script, secure=secure) as (server, transport):
            origin, most = server.url(), 3 * len(ARRIVED)
            async with create_task_group() as tasks:
                for _ in ARRIVED:
                    tasks.start_soon(expect_response, transport, request(origin, body=WHOLE))
            until = time.monotonic() + timeout + 5 * MOMENT
            async with create_task_group() as tasks:
                for name, outcomes in found.items():
                    for _ in range(2):  # one over a connection that is kept, and one over a new one
                        tasks.start_soon(sends, transport, request(origin, body=name.encode()), timeout, outcomes)
                in_time = await eventually(server, lambda server: len(server.requests) == most, timeout)  # noqa: B023  # here
                may_answer.set()
                time.sleep(max(0.0, until - time.monotonic()))  # noqa: ASYNC251  # the block
            may_answer.clear()
        if in_time:
            break
    wanted = {name: [outcome] * 2 for name, outcome in OUTCOMES.items()}
    check(found == wanted, f"the requests ended with {found}; required: {wanted}")


CASES.add("time-out: an answer that arrived while the event loop was blocked is read", alone=True)(
    partial(_read_late, secure=False)
)
CASES.add("time-out: an answer that arrived over TLS while the event loop was blocked is read", "tls", alone=True)(
    partial(_read_late, secure=True)
)


@CASES.add("time-out: zero or below is not sent, at once")
async def _no_time(subject: Conformance) -> None:
    async with served(subject) as (server, transport):
        for timeout in (0, -1, -math.inf):
            await expect_error(transport, request(server.url()), NotSent, timeout=timeout)
        check(not server.accepted, "a connection was opened for a request without time; required: none")


@CASES.add("time-out: infinite, or very long")
async def _endless(subject: Conformance) -> None:
    for timeout in (math.inf, 1e12):
        async with served(subject, reply(WHOLE)) as (server, transport):
            for _ in range(2):
                response = await transport.send(request(server.url()), timeout=timeout)
                check(response.body == WHOLE, f"got the body {response.body!r}; required: {WHOLE!r}")
        check_used(server, [0, 0])


SLOW: dict[str, Script] = {
    "waiting for an answer": silent,
    "in the middle of a head": halting(b"HTTP/1.1 200 OK\r\nX"),
    "after an interim answer": halting(head("100 Continue")),
    "in the middle of a body with a length": halting(reply(WHOLE)[:-3]),
    "in the middle of a chunk": halting(CHUNKS + b"17\r\n{"),
    "before the last chunk": halting(CHUNKS + b"2\r\n{}\r\n"),
    "in the middle of a body until closed": halting(head("200 OK") + WHOLE),
    "a head drop by drop": dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "a body drop by drop": dripping(head("200 OK", "Content-Length: 10000"), b"x"),
    "one interim answer after the other": dripping(b"", head("103 Early Hints")),
}


async def _slow(subject: Conformance, script: Script) -> None:
    await expect_timeout(subject, (Unanswered,), script)


for _name, _script in SLOW.items():
    CASES.add(f"time-out: {_name}")(partial(_slow, script=_script))


@CASES.add("time-out: on a kept connection, which is closed")
async def _kept(subject: Conformance) -> None:
    await expect_timeout(subject, (Unanswered,), reply(WHOLE), silent, first=1)


# Secrets that no error and no log may show.


def _repeating(around: Callable[[str], bytes]) -> Script:
    """Return a script that responds with the secrets of the request, like servers that repeat the request."""

    def script(peer: Peer, received: Received) -> None:
        peer.send(around(f"{received.sig} {received.header('Authorization')} /{received.line.split()[1]}"))
        peer.close()

    return script


ECHOES: dict[str, Script] = {
    "a status line": _repeating(lambda text: f"HTTP/1.1 {text}\r\n\r\n".encode()),
    "no status line": _repeating(lambda text: f"{text}\r\n\r\n".encode()),
    "a header without colon": _repeating(lambda text: f"HTTP/1.1 200 OK\r\n{text}\r\n\r\n".encode()),
    "a length": _repeating(lambda text: f"HTTP/1.1 200 OK\r\nContent-Length: {text}\r\n\r\n".encode()),
    "a transfer encoding": _repeating(lambda text: f"HTTP/1.1 200 OK\r\nTransfer-Encoding: {text}\r\n\r\n".encode()),
    "a chunk size": _repeating(lambda text: CHUNKS + f"{text}\r\n".encode()),
    "half a body": _repeating(lambda text: head("200 OK", "Content-Length: 999") + text.encode()),
    "a redirect": _repeating(lambda text: reply(text.encode(), "302 Found", f"Location: http://x/?{text}", f"X: {text}")),
}


class _Records(logging.Handler):
    """A handler that collects all log records inside a ``with`` block, with the root logger at DEBUG."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{self.format(record)} {record.args!r}")

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._before = root.level
        root.setLevel(logging.DEBUG)
        root.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger()
        root.removeHandler(self)
        root.setLevel(self._before)


async def _hides(subject: Conformance, script: Script) -> None:
    with _Records() as records:
        async with served(subject, script) as (server, transport):
            try:  # some transports accept this response, others refuse it
                await transport.send(request(server.url()), timeout=REQUEST_TIMEOUT)
            except TransportError:
                await expect_error(transport, request(server.url()), Unanswered)
            check_hidden(repr(transport), "the transport's repr")
    check_hidden("\n".join(records.texts), "the log")


for _name, _script in ECHOES.items():
    CASES.add(f"secrets: hidden where {_name} of the answer repeats them", alone=True)(partial(_hides, script=_script))


@CASES.add("secrets: hidden in what is logged of requests that are answered, refused, too slow", alone=True)
async def _logs(subject: Conformance) -> None:
    with _Records() as records:
        async with served(subject, reply(WHOLE), reply(WHOLE), closing(), silent) as (server, transport):
            for _ in range(2):
                await transport.send(request(server.url()), timeout=REQUEST_TIMEOUT)
            await expect_error(transport, request(server.url()), Unanswered)
            await expect_error(transport, request(server.url()), NotSent, Unanswered, timeout=0.05)
        with refusing_port() as port:
            async with subject.make() as transport:
                await expect_error(transport, request(f"http://127.0.0.1:{port}"), NotSent)
    check_hidden("\n".join(records.texts), "the log")
