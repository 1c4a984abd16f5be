"""Conformance cases about errors: failures, time-outs in each phase, and secrets hidden from errors and logs."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import CancelScope, create_task_group

from rbim.errors import NotSent, TransportError, Unanswered
from rbim.testing.conformance.case import (
    AUTHORIZATION,
    LENIENCY,
    REQUEST_TIMEOUT,
    SIG,
    WHOLE,
    Cases,
    Conformance,
    check,
    eventually,
    expect_error,
    expect_response,
    expect_timeout,
    recorded_text,
    request,
    served,
)
from rbim.testing.conformance.server import (
    PATIENCE,
    Peer,
    Received,
    chunked,
    closing,
    head,
    refusing_port,
    reply,
    resetting,
    silent,
)
from rbim.testing.conformance.tls import authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from typing import Self

    from rbim.http import Request, Response, Transport
    from rbim.testing.conformance.server import Script

__all__ = ["CASES", "full_port"]

CASES = Cases()


@CASES.add("fails: a refused connection is not sent")
async def _refused(subject: Conformance) -> None:
    with refusing_port() as port:
        async with subject.make() as transport:
            for repeatable in (True, False):
                await expect_error(transport, request(f"http://127.0.0.1:{port}", repeatable=repeatable), NotSent)


@CASES.add("fails: a name that does not resolve is not sent")
async def _unknown_name(subject: Conformance) -> None:
    async with subject.make() as transport:
        for name in ("name.invalid", "x" * 70 + ".invalid"):
            await expect_error(transport, request(f"http://{name}"), NotSent)


@CASES.add("fails: a connection reset or closed before anything was read is never an answer")
async def _greeted_badly(subject: Conformance) -> None:
    greetings: list[Callable[[Peer], object]] = [resetting, Peer.close]
    for greet in greetings:
        async with served(subject, greet=greet) as (server, transport):
            await expect_error(transport, request(server.url()), NotSent, Unanswered)  # depends on which side is faster


@CASES.add("fails: a connection that ends while the request is being sent is unanswered")
async def _ends_while_sending(subject: Conformance) -> None:
    scripts: list[Script] = [resetting, closing()]
    for script in scripts:
        async with served(subject, script, head_only=True) as (server, transport):
            await expect_error(transport, request(server.url(), body=b" " * 8_000_000), Unanswered)
        check(len(server.requests) == 1, "the request was sent again; required: sent once")


@CASES.add("fails: a connection that ends after the request was read is unanswered")
async def _ends_after(subject: Conformance) -> None:
    scripts: list[Script] = [resetting, closing(), _reset_after(reply(WHOLE)[:-1]), _reset_after(head("200 OK") + WHOLE)]
    for script in scripts:
        async with served(subject, script) as (server, transport):
            await expect_error(transport, request(server.url()), Unanswered)
        check(len(server.requests) == 1, "the request was sent again; required: sent once")


def _reset_after(data: bytes) -> Script:
    def script(peer: Peer, _: Received) -> None:
        peer.send(data)
        time.sleep(0.01)  # a reset discards data that was not read yet
        peer.reset()

    return script


# Time-outs.


@contextmanager
def full_port() -> Generator[int]:
    """Give a port of 127.0.0.1 where connecting never succeeds: the system keeps connections waiting, or refuses them."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.settimeout(0)
                filler.connect_ex(listener.getsockname())
            yield listener.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


@CASES.add("time-out: no connection comes about")
async def _no_connection(subject: Conformance) -> None:
    with full_port() as port:
        async with subject.make() as transport:
            began = time.monotonic()
            await expect_error(transport, request(f"http://127.0.0.1:{port}"), NotSent, timeout=0.1)
            took = time.monotonic() - began
            check(
                took < LENIENCY,
                f"a request with a time-out of 0.1 s ended after {took:.2f} s; required: within {LENIENCY:g} s",
            )


MOMENT = 0.1  # seconds


@CASES.add("time-out: while the request is being sent")
async def _deaf(subject: Conformance) -> None:
    given_up = threading.Event()

    def deaf(peer: Peer, _: Received) -> None:
        given_up.wait(PATIENCE)
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


async def _read_late(
    subject: Conformance,
    scheme: str,
    *,
    greet: Callable[[Peer], object] | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Block the event loop until the time-out of requests on new and kept connections is over, and their answers are there.

    A request that has no answer then is Unanswered.
    """
    may_answer = threading.Event()

    def script(peer: Peer, received: Received) -> None:
        if received.body != WHOLE:
            may_answer.wait(PATIENCE)
        peer.send(reply(WHOLE) if received.body == WHOLE else ARRIVED[received.body.decode()])

    async def sends(transport: Transport, sent: Request, seconds: float, outcomes: list[object]) -> None:
        try:
            outcomes.append(len((await transport.send(sent, timeout=seconds)).body))
        except TransportError as error:
            outcomes.append(type(error).__name__)

    in_time = False
    for timeout in (0.3, 2.5):  # the longer one is for machines on which requests do not arrive in time
        found: dict[str, list[object]] = {name: [] for name in ARRIVED}
        async with served(subject, script, greet=greet, options=options) as (server, transport):
            origin, most = server.url(scheme), 3 * len(ARRIVED)
            async with create_task_group() as tasks:
                for _ in ARRIVED:
                    tasks.start_soon(expect_response, transport, request(origin, body=WHOLE))
            until = time.monotonic() + timeout + MOMENT
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


@CASES.add("time-out: an answer that arrived while the event loop was blocked is read", alone=True)
async def _blocked(subject: Conformance) -> None:
    await _read_late(subject, "http")


@CASES.add("time-out: an answer that arrived over TLS while the event loop was blocked is read", "tls", alone=True)
async def _blocked_over_tls(subject: Conformance) -> None:
    greet = partial(_start_tls, authority().of_a_server())
    await _read_late(subject, "https", greet=greet, options=authority().trusted_by(subject))


def _start_tls(context: ssl.SSLContext, peer: Peer) -> None:
    peer.start_tls(context)


@CASES.add("time-out: zero or below is not sent, at once")
async def _no_time(subject: Conformance) -> None:
    async with served(subject) as (server, transport):
        for timeout in (0, -1, -math.inf):
            with anyio.fail_after(LENIENCY):
                await expect_error(transport, request(server.url()), NotSent, timeout=timeout)
        check(not server.accepted, "a connection was opened for a request without time; required: none")


@CASES.add("time-out: infinite, or very long")
async def _endless(subject: Conformance) -> None:
    for timeout in (math.inf, 1e12):
        async with served(subject, reply(WHOLE)) as (server, transport):
            for _ in range(2):
                response = await transport.send(request(server.url()), timeout=timeout)
                check(response.body == WHOLE, f"got the body {response.body!r}; required: {WHOLE!r}")
        check(server.accepted == 1, f"2 requests used {server.accepted} connections; required: 1")


@CASES.add("fails: an error of connecting names the host and the port")
async def _named(subject: Conformance) -> None:
    with refusing_port() as port:
        async with subject.make() as transport:
            error = await expect_error(transport, request(f"http://127.0.0.1:{port}"), NotSent)
    check(
        f"127.0.0.1:{port}" in str(error), f"the message is {str(error)!r}; required: one with the address 127.0.0.1:{port}"
    )


def _drip(before: bytes, each: bytes) -> Script:
    """Return a script that sends bytes slowly, but often enough that a time-out between reads never ends."""

    def script(peer: Peer, _: Received) -> None:
        peer.send(before)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            time.sleep(0.02)
            peer.send(each)

    return script


def _halting(before: bytes) -> Script:
    def script(peer: Peer, _: Received) -> None:
        peer.send(before)
        peer.wait_closed()

    return script


CHUNKS = head("200 OK", "Transfer-Encoding: chunked")
SLOW: dict[str, Script] = {
    "waiting for an answer": silent,
    "in the middle of a head": _halting(b"HTTP/1.1 200 OK\r\nX"),
    "after an interim answer": _halting(head("100 Continue")),
    "in the middle of a body with a length": _halting(reply(WHOLE)[:-3]),
    "in the middle of a chunk": _halting(CHUNKS + b"17\r\n{"),
    "before the last chunk": _halting(CHUNKS + b"2\r\n{}\r\n"),
    "in the middle of a body until closed": _halting(head("200 OK") + WHOLE),
    "a head drop by drop": _drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "a body drop by drop": _drip(head("200 OK", "Content-Length: 10000"), b"x"),
    "one interim answer after the other": _drip(b"", head("103 Early Hints")),
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
        parts = [record.getMessage(), repr(record.args), str(record.exc_text or "")]
        if record.exc_info:
            parts.append(logging.Formatter().formatException(record.exc_info))
        self.texts.append(" ".join(parts).lower())

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


def _nothing_logged(records: _Records) -> None:
    for text in records.texts:
        check(SIG.lower() not in text, "a log record shows the sig; required: no secret in any log")
        check(AUTHORIZATION.lower() not in text, "a log record shows the Authorization; required: no secret in any log")


async def _hides(subject: Conformance, script: Script) -> None:
    with _Records() as records:
        async with served(subject, script) as (server, transport):
            try:  # some transports accept this response, others refuse it
                await transport.send(request(server.url()), timeout=REQUEST_TIMEOUT)
            except TransportError:
                await expect_error(transport, request(server.url()), Unanswered)
            check(SIG not in repr(transport), "the transport's repr shows the sig; required: no secret")
    _nothing_logged(records)


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
    _nothing_logged(records)


# Secrets in the traceback of a cancellation.


async def _sends(transport: Transport, sent: Request, recorded: list[str]) -> Response:
    """Send; add the text that an error tracker would record of an interruption, and raise it again."""
    try:
        return await transport.send(sent, timeout=REQUEST_TIMEOUT)
    except BaseException as error:
        recorded.append(recorded_text(error).lower())
        raise


async def _interrupted(
    transport: Transport, origin: str, reached: Callable[[], Awaitable[object]], *, body: bytes = WHOLE
) -> None:
    """Cancel a request by a scope, and on asyncio another one as a task, each after ``reached``."""
    recorded: list[str] = []
    sent = request(origin, body=body)
    scope = CancelScope()

    async def in_scope() -> None:
        with scope:
            await _sends(transport, sent, recorded)

    async with create_task_group() as tasks:
        tasks.start_soon(in_scope)
        await reached()
        scope.cancel()
    check(scope.cancelled_caught, "a cancelled request did not raise the cancellation; required: the same cancellation")
    with suppress(RuntimeError):  # the event loop is not asyncio's
        task = asyncio.get_running_loop().create_task(_sends(transport, sent, recorded))
        await reached()
        task.cancel()
        await asyncio.wait([task])
        check(task.cancelled(), "a cancelled request did not raise the cancellation; required: the same cancellation")
    for each in recorded:
        check(SIG.lower() not in each, "the traceback of a cancelled request shows the sig; required: no secret")
        check(
            AUTHORIZATION.lower() not in each,
            "the traceback of a cancelled request shows the Authorization; required: no secret",
        )


A_MOMENT = 0.02  # seconds after which data sent on this machine has certainly arrived


@CASES.add("secrets: hidden from the traceback of a request cancelled while connecting")
async def _cancelled_connecting(subject: Conformance) -> None:
    with full_port() as port:
        async with subject.make() as transport:
            await _interrupted(transport, f"http://127.0.0.1:{port}", partial(anyio.sleep, A_MOMENT))


async def _cancelled(subject: Conformance, script: Callable[[Peer], None], body: bytes) -> None:
    over = threading.Event()

    def once_more(peer: Peer, _: Received) -> None:
        script(peer)
        over.wait(PATIENCE)

    times = iter((1, 2))
    deaf = len(body) > len(WHOLE)
    room = 65536 if deaf else None
    async with served(subject, once_more, closes=subject.cancels, head_only=deaf, receive_buffer=room) as (
        server,
        transport,
    ):

        async def reached() -> None:
            wanted = next(times)
            await eventually(server, lambda server: len(server.requests) >= wanted)
            await anyio.sleep(A_MOMENT)

        try:
            await _interrupted(transport, server.url(), reached, body=body)
        finally:
            over.set()


PHASES: dict[str, tuple[Callable[[Peer], None], bytes]] = {
    "being sent": (lambda _: None, b" " * 16_000_000),
    "waiting for an answer": (lambda _: None, WHOLE),
    "in the middle of a head": (lambda peer: peer.send(b"HTTP/1.1 200 OK\r\nX"), WHOLE),
    "in the middle of a body": (lambda peer: peer.send(reply(WHOLE)[:-1]), WHOLE),
}
for _name, (_half, _body) in PHASES.items():
    CASES.add(f"secrets: hidden from the traceback of a request cancelled while {_name}")(
        partial(_cancelled, script=_half, body=_body)
    )
