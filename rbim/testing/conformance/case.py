"""The parts of the conformance suite: a case, the transport under test, and the checks that cases use."""

from __future__ import annotations

import os
import time
import traceback
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar, cast
from unittest import SkipTest

import anyio
from anyio import to_thread
from attrs import field, frozen

from rbim.errors import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.http import Request, Response, Transport
from rbim.testing.conformance.server import WAIT_TIMEOUT, RawServer, authority, handshaking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
    from threading import Event
    from typing import Any

__all__ = [
    "AUTHORIZATION",
    "BODY",
    "LENIENCY",
    "MOMENT",
    "MOST_AWAITS",
    "PATH",
    "REQUEST_TIMEOUT",
    "SIG",
    "WHOLE",
    "Case",
    "Cases",
    "Conformance",
    "NonConforming",
    "Stepwise",
    "check",
    "check_closed",
    "check_hidden",
    "check_used",
    "environment",
    "eventually",
    "expect_error",
    "expect_response",
    "expect_timeout",
    "recorded_text",
    "request",
    "served",
]

R = TypeVar("R")

REQUEST_TIMEOUT = WAIT_TIMEOUT
"""Seconds: the time-out of requests in cases that do not test time-outs."""

LENIENCY = 2.0
"""Seconds after its time-out within which a request must have ended, even on a busy machine."""

MOMENT = 0.02
"""Seconds within which data has reached another socket of this machine, and a transport can notice it."""

MOST_AWAITS = 1000
"""The most suspensions of one ``send``."""

SIG = "5EC2E7516D0A4B4FB0D9C0FFEE15DEAD"
AUTHORIZATION = "c2VjcmV0LWFwcGxpY2F0aW9uOjIwMjYxMTIxMTIwMDAw"
PATH = "/2013-12-26/Application/a1/IM/Group/QueryGroupDetail"
BODY = b'{"groupId":"g1"}'
WHOLE = b'{"statusCode":"000000"}'


class NonConforming(AssertionError):
    """A transport breaks the contract of :class:`rbim.http.Transport`; the message says case, cause and requirement."""


@frozen
class Conformance:
    """A transport under test: a function that makes one, and its features.

    ``make`` is called without arguments, or with the options that a case needs: ``answer_limit`` (bytes; all transports),
    ``verify`` (an ``ssl.SSLContext``; with ``tls``), ``proxy`` (``http://host:port``; with ``proxy``) and ``uds`` (the path
    of a UNIX socket; with ``unix``). A transport without proxies or UNIX sockets must refuse the option, with an exception
    when it is made or entered, or with NotSent.

    - ``tls`` (default: True): the transport supports ``https://`` origins.
    - ``lifo`` (default: True): the connection used last is the first to be used again.
    - ``proxy``, ``unix`` (default: False): it supports HTTP proxies, UNIX sockets.
    - ``bundle`` (default: False): ``verify`` is the path of a CA bundle instead of a context.
    - ``looks`` (default: True): it looks whether the server has closed a kept connection just before it writes a request.
      If False, such a request may be Unanswered.
    - ``cancels`` (default: True): if False, the connection of a cancelled request may stay open until its response comes,
      which is then discarded.
    - ``deviates`` (default: none): the cases that the transport does not promise to pass, by name, and a text of the
      failure. Such a case may pass, by chance of timing; it fails if the transport does something else.
    """

    make: Callable[..., Transport]
    tls: bool = field(default=True, kw_only=True)
    lifo: bool = field(default=True, kw_only=True)
    proxy: bool = field(default=False, kw_only=True)
    unix: bool = field(default=False, kw_only=True)
    bundle: bool = field(default=False, kw_only=True)
    looks: bool = field(default=True, kw_only=True)
    cancels: bool = field(default=True, kw_only=True)
    deviates: Mapping[str, str] = field(factory=dict[str, str], kw_only=True)


@frozen
class Case:
    """A test of one rule of the contract: ``await case(MyTransport)`` raises NonConforming if the transport breaks it.

    It raises ``unittest.SkipTest`` if the transport lacks a feature that the case ``needs``. A case takes at most
    ``seconds`` (default: 30). Proxies in the environment are hidden while it runs. A case marked ``alone`` uses state of
    the whole process, such as the environment or the log, so no other case may run at the same time.
    """

    name: str
    run: Callable[[Conformance], Awaitable[None]] = field(repr=False)
    needs: frozenset[str] = frozenset()
    seconds: float = 3 * WAIT_TIMEOUT
    alone: bool = False

    def __str__(self) -> str:
        return self.name

    async def __call__(self, subject: Conformance | Callable[..., Transport], /) -> None:
        """Test the transport. Raises NonConforming or SkipTest."""
        tested = subject if isinstance(subject, Conformance) else Conformance(subject)
        if missing := sorted(need for need in self.needs if not getattr(tested, need)):
            raise SkipTest(f"the transport lacks the features {', '.join(missing)} (fields of Conformance)")
        deviation = tested.deviates.get(self.name)
        try:
            with environment({}), anyio.fail_after(self.seconds):
                await self.run(tested)
        except SkipTest:
            raise
        except Exception as error:
            single = _single(error)
            cause = str(single) if isinstance(single, NonConforming) else f"unexpected {type(single).__name__}: {single}"
            if isinstance(single, TimeoutError):
                cause += f"; required: the case ends within {self.seconds:g} s"
            if deviation is None or deviation not in cause:
                raise NonConforming(f"{self.name}: {cause}") from error


class Cases(list[Case]):
    """The cases of one module, in order."""

    def add(
        self, name: str, *needs: str, seconds: float = 3 * WAIT_TIMEOUT, alone: bool = False
    ) -> Callable[[Callable[[Conformance], Awaitable[None]]], Callable[[Conformance], Awaitable[None]]]:
        """Return a decorator that adds a function as a case."""

        def added(run: Callable[[Conformance], Awaitable[None]]) -> Callable[[Conformance], Awaitable[None]]:
            self.append(Case(name, run, frozenset(needs), seconds, alone))
            return run

        return added


def _single(error: Exception) -> Exception:
    """Return the exception inside a group, if the group has only one; else the error itself."""
    if not isinstance(error, ExceptionGroup):
        return error
    exceptions = cast("ExceptionGroup[Exception]", error).exceptions
    return _single(exceptions[0]) if len(exceptions) == 1 else cast("Exception", error)


@contextmanager
def environment(wanted: Mapping[str, str]) -> Generator[None]:
    """Hide proxies and NETRC from the environment, and set the wanted variables, inside the block."""
    hidden = {name for name in os.environ if name.lower().endswith("_proxy") or name == "NETRC"} | set(wanted)
    kept = {name: os.environ.pop(name) for name in hidden if name in os.environ}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        os.environ.update(kept)


def check(condition: object, message: str) -> None:
    """Raise NonConforming with this message unless the condition is true."""
    if not condition:
        raise NonConforming(message)


def check_hidden(text: str, where: str) -> None:
    """Check that a text, such as a log record or a traceback, shows no secret of a request."""
    shown = any(secret.lower() in text.lower() for secret in (SIG, AUTHORIZATION))
    check(not shown, f"{where} shows secrets of the request; required: none")


def request(
    origin: str,
    *,
    body: bytes = BODY,
    repeatable: bool = True,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> Request:
    """Return a request like the client's, with secrets that no error and no log may show."""
    default = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json;charset=utf-8",
        "Authorization": AUTHORIZATION,
    }
    return Request(
        method=method,
        origin=origin,
        path=PATH,
        query={"sig": SIG},
        headers=default if headers is None else headers,
        body=body,
        repeatable=repeatable,
    )


@asynccontextmanager
async def served(
    subject: Conformance,
    *scripts: Any,
    options: Mapping[str, Any] | None = None,
    secure: bool = False,
    closes: bool = True,
    **server: Any,
) -> AsyncGenerator[tuple[RawServer, Transport]]:
    """Give a scripted server and an open transport; with ``closes``, check that no connection stays open at the end.

    With ``secure`` both speak TLS, and the transport trusts the server; ``greet`` is to do the handshake, if it is given.
    """
    if secure:
        server = {"scheme": "https", "greet": handshaking()} | server
        options = authority().trusted(bundle=subject.bundle) | dict(options or {})
    with RawServer(*scripts, **server) as peer:
        async with subject.make(**options or {}) as transport:
            yield peer, transport
        if closes:
            await check_closed(peer)


async def eventually(server: RawServer, condition: Callable[[RawServer], object], seconds: float = WAIT_TIMEOUT) -> bool:
    """Wait, without blocking the event loop, until the condition is true; False if it is not within ``seconds``."""
    return await to_thread.run_sync(server.wait_until, condition, seconds)


async def check_closed(server: RawServer, *connections: int) -> None:
    """Check that the transport closes these connections, or all if none are named, within LENIENCY seconds."""
    wanted = set(connections)
    closed = await eventually(server, lambda server: not (server.open & wanted if wanted else server.open), LENIENCY)
    check(closed, f"the connections {sorted(server.open)} stay open; required: closed")


def check_used(server: RawServer, connections: list[int], *, since: int = 0) -> None:
    """Check which connections the requests used, by number, in order; the first ``since`` requests do not count."""
    used = [each.connection for each in server.requests[since:]]
    check(used == connections, f"the requests used the connections {used}; required: {connections}")


async def expect_response(
    transport: Transport, sent: Request, body: bytes = WHOLE, *, status: int = 200, times: int = 1
) -> Response:
    """Send the request ``times`` times, and check that each gets this response. Return the last response."""
    for _ in range(times - 1):
        await expect_response(transport, sent, body, status=status)
    response = await transport.send(sent, timeout=REQUEST_TIMEOUT)
    check(response.status == status, f"got status {response.status}; required: {status}")
    check(type(response.body) is bytes, f"got a body of type {type(response.body).__name__}; required: bytes")
    check(response.body == body, f"got the body {response.body[:200]!r}; required: {body[:200]!r}")
    names = [*response.headers]
    check(all(name == name.lower() for name in names), f"got the header names {names}; required: lower case")
    return response


async def expect_error(
    transport: Transport,
    sent: Request,
    *kinds: type[TransportError],
    timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109  # the transport's own time-out is under test
) -> TransportError:
    """Send the request, and check that it raises one of these errors in time, with its outcome and without secrets."""
    wanted = " or ".join(kind.__name__ for kind in kinds)
    began = time.monotonic()
    try:
        response = await transport.send(sent, timeout=timeout)
    except Exception as error:
        recorded = recorded_text(error)  # before a local of this frame holds a secret
        if not isinstance(error, kinds) or type(error) not in {NotSent, Unanswered, AnswerTooLarge}:
            raise NonConforming(f"raised {type(error).__name__} ({error}); required: {wanted}") from error
        took = time.monotonic() - began
        check(took < max(timeout, 0) + LENIENCY, f"ended after {took:.2f} s; required: by the time-out of {timeout:g} s")
        outcome = type(error).outcome
        check(error.outcome is outcome, f"{type(error).__name__} has outcome {error.outcome}; required: {outcome}")
        check_hidden(recorded, f"{type(error).__name__}, in its message, args or frames,")
        return error
    raise NonConforming(f"got status {response.status} with the body {response.body[:100]!r}; required: {wanted}")


def recorded_text(error: BaseException) -> str:
    """Return the text that an error tracker may record: the exception, its causes and contexts, and all frames' locals."""
    parts: list[str] = []
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            waiting += (each.__cause__, each.__context__)
            frames = traceback.TracebackException(type(each), each, each.__traceback__, capture_locals=True)
            parts += (repr(each), repr(each.args), repr(vars(each)), *frames.format(chain=False))
    return "\n".join(parts)


async def expect_timeout(  # the parts of a case, most with a default
    subject: Conformance,
    expected: tuple[type[TransportError], ...],
    *scripts: Any,
    sent: Callable[[str], Request] = request,
    first: int = 0,
    given_up: Event | None = None,
    **server: Any,
) -> None:
    """Check that a request without a response in time raises an expected error, and that its connection is closed.

    ``first`` requests get a response before. Scripts may wait for ``given_up``. If the machine is too busy and the request
    does not get as far as the case needs, it is tried again with a longer time-out.
    """
    error: TransportError | None = None
    for timeout in (0.1, 0.5, 2.5):
        async with served(subject, *scripts, **server) as (peer, transport):
            for _ in range(first):
                await expect_response(transport, request(peer.url()))
            began = time.monotonic()
            error = await expect_error(transport, sent(peer.url()), NotSent, Unanswered, timeout=timeout)
            took = time.monotonic() - began
            reached = len(peer.requests) > first
            if given_up is not None:
                given_up.set()
            check(
                took >= timeout * 0.9,
                f"gave up after {took:.2f} s ({error}); required: not before the time-out of {timeout:g} s",
            )
            await check_closed(peer)
            if given_up is not None:
                given_up.clear()
        if type(error) in expected:
            return
        if NotSent in expected or reached:
            break
    wanted = " or ".join(kind.__name__ for kind in expected)
    raise NonConforming(f"raised {type(error).__name__} ({error}); required: {wanted}")


class Stepwise(Generic[R]):
    """An awaitable that calls ``do`` at the ``at``-th suspension of a coroutine (0: before it starts)."""

    def __init__(self, coroutine: Coroutine[Any, Any, R], at: int, do: Callable[[], object]) -> None:
        self.suspensions = 0
        self._coroutine = coroutine
        self._at = at
        self._do = do

    def __await__(self) -> Generator[Any, Any, R]:
        steps = self._coroutine.__await__()
        step: Callable[[Any], Any] = steps.send
        given: Any = None
        if self._at == 0:
            self._do()
        while True:
            try:
                yielded = step(given)
            except StopIteration as end:
                result: R = end.value
                return result
            self.suspensions += 1
            if self.suspensions == self._at:
                self._do()
            try:
                given = yield yielded
                step = steps.send
            except BaseException as error:  # any exception is passed into the coroutine
                given, step = error, steps.throw
