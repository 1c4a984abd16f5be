"""What the conformance cases are made of: the case, the transport under trial, and what a case does with both."""

from __future__ import annotations

import os
import time
import traceback
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, cast
from unittest import SkipTest

import anyio
from anyio import to_thread
from attrs import field, frozen

from rbim.errors import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.http import Request, Response, Transport
from rbim.testing.conformance.server import PATIENCE, RawServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
    from threading import Event
    from typing import Any

__all__ = [
    "AUTHORIZATION",
    "BODY",
    "ENOUGH",
    "LENIENCY",
    "PATH",
    "SIG",
    "WHOLE",
    "Case",
    "Cases",
    "Conformance",
    "NonConforming",
    "answered",
    "became",
    "check",
    "environment",
    "failed",
    "in_time",
    "is_left",
    "request",
    "served",
    "shown",
]

ENOUGH = PATIENCE
"""Seconds: the time-out of requests whose time-out is not what a case is about."""

LENIENCY = 2.0
"""Seconds past its time-out in which a transport must have given up, even on a busy machine."""

SIG = "5EC2E7516D0A4B4FB0D9C0FFEE15DEAD"
AUTHORIZATION = "c2VjcmV0LWFwcGxpY2F0aW9uOjIwMjYxMTIxMTIwMDAw"
PATH = "/2013-12-26/Application/a1/IM/Group/QueryGroupDetail"
BODY = b'{"groupId":"g1"}'
WHOLE = b'{"statusCode":"000000"}'


class NonConforming(AssertionError):
    """A transport does not do what the contract of :class:`~rbim.Transport` asks for; the words say what."""


@frozen
class Conformance:
    """A transport under trial: what makes one, and which features it has.

    ``make`` is called with no arguments, or with those that a case needs: ``answer_limit`` (bytes; every transport takes
    it), ``verify`` (an ``ssl.SSLContext``) where it does ``tls``, ``proxy`` (``http://host:port``) and ``uds`` (a UNIX
    socket's path) where it has these. A transport without proxies or UNIX sockets must refuse the option: by an exception
    when it is made or entered, or by NotSent.

    ``lifo``: the connection used last is the first to be used again. Where a library cannot do better, less may be asked
    for: with ``bundle``, ``verify`` is the path of a CA bundle; without ``phases``, a time-out while connecting may be
    Unanswered; without ``cancels``, the connection of a cancelled request may live on until its answer is there, which
    nobody gets.
    """

    make: Callable[..., Transport]
    tls: bool = field(default=True, kw_only=True)
    lifo: bool = field(default=True, kw_only=True)
    proxy: bool = field(default=False, kw_only=True)
    unix: bool = field(default=False, kw_only=True)
    bundle: bool = field(default=False, kw_only=True)
    phases: bool = field(default=True, kw_only=True)
    cancels: bool = field(default=True, kw_only=True)

    def has(self, feature: str) -> bool:
        """Whether the transport has a feature, by its name here."""
        return bool(getattr(self, feature))

    @property
    def late(self) -> tuple[type[TransportError], ...]:
        """What a time-out while connecting may be."""
        return (NotSent,) if self.phases else (NotSent, Unanswered)


@frozen
class Case:
    """One thing that every transport must do: ``await case(MyTransport)`` raises NonConforming where it does not.

    Where the transport lacks a feature that the case ``needs``, it raises ``unittest.SkipTest``. A case takes at most
    ``seconds``. The environment's proxies are out of sight while it runs. One that has to run ``alone`` changes or watches
    what the whole process shares: its environment, its log.
    """

    name: str
    run: Callable[[Conformance], Awaitable[None]] = field(repr=False)
    needs: frozenset[str] = frozenset()
    seconds: float = 3 * PATIENCE
    alone: bool = False

    def __str__(self) -> str:
        return self.name

    async def __call__(self, subject: Conformance | Callable[..., Transport], /) -> None:
        """Try the transport. Raises NonConforming or SkipTest."""
        tried = subject if isinstance(subject, Conformance) else Conformance(subject)
        if missing := sorted(need for need in self.needs if not tried.has(need)):
            raise SkipTest(f"the transport has no {', '.join(missing)}")
        try:
            with environment({}), anyio.fail_after(self.seconds):
                await self.run(tried)
        except SkipTest:
            raise
        except Exception as error:
            plain = _alone(error)
            said = str(plain) if isinstance(plain, NonConforming) else f"{type(plain).__name__}: {plain}"
            raise NonConforming(f"{self.name}: {said}") from error


class Cases(list[Case]):
    """The cases of one subject, in order."""

    def add(
        self, name: str, *needs: str, seconds: float = 3 * PATIENCE, alone: bool = False
    ) -> Callable[[Callable[[Conformance], Awaitable[None]]], Callable[[Conformance], Awaitable[None]]]:
        """Add what a function tries, as a decorator."""

        def added(run: Callable[[Conformance], Awaitable[None]]) -> Callable[[Conformance], Awaitable[None]]:
            self.append(Case(name, run, frozenset(needs), seconds, alone))
            return run

        return added


def _alone(error: Exception) -> Exception:
    """Return the only exception in a group, if there is only one."""
    if not isinstance(error, ExceptionGroup):
        return error
    exceptions = cast("ExceptionGroup[Exception]", error).exceptions
    return _alone(exceptions[0]) if len(exceptions) == 1 else cast("Exception", error)


@contextmanager
def environment(wanted: Mapping[str, str]) -> Generator[None]:
    """Hide what the environment says about proxies and passwords, and put in what is wanted."""
    hidden = {name for name in os.environ if name.lower().endswith("_proxy") or name == "NETRC"} | set(wanted)
    kept = {name: os.environ.pop(name) for name in hidden if name in os.environ}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        os.environ.update(kept)


def check(fits: object, otherwise: str) -> None:
    """Raise NonConforming, in these words, unless it fits."""
    if not fits:
        raise NonConforming(otherwise)


def request(
    origin: str,
    *,
    body: bytes = BODY,
    repeatable: bool = True,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> Request:
    """Return a request as the client makes them, signed with what no error and no log may show."""
    told = {
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
        headers=told if headers is None else headers,
        body=body,
        repeatable=repeatable,
    )


@asynccontextmanager
async def served(
    subject: Conformance, *scripts: Any, options: Mapping[str, Any] | None = None, leaves: bool = True, **server: Any
) -> AsyncGenerator[tuple[RawServer, Transport]]:
    """Give a scripted server and an open transport; when both are left, no connection of the transport's may be open.

    ``leaves`` is False where one may be.
    """
    with RawServer(*scripts, **server) as peer:
        async with subject.make(**options or {}) as transport:
            yield peer, transport
        check(not leaves or await is_left(peer), f"left open when the transport was left: connections {sorted(peer.open)}")


async def became(server: RawServer, fits: Callable[[RawServer], object], seconds: float = PATIENCE) -> bool:
    """Wait until the server is as wanted, without holding up the event loop; False where it never is."""
    return await to_thread.run_sync(server.wait_until, fits, seconds)


async def is_left(server: RawServer, *connections: int) -> bool:
    """Whether the transport's end of these connections, or of all, gets closed."""
    wanted = set(connections)
    return await became(server, lambda server: not (server.open & wanted if wanted else server.open), LENIENCY)


async def answered(
    transport: Transport, sent: Request, body: bytes = WHOLE, *, status: int = 200, times: int = 1
) -> Response:
    """Send, and check that this answer comes."""
    for _ in range(times - 1):
        await answered(transport, sent, body, status=status)
    response = await transport.send(sent, timeout=ENOUGH)
    check(response.status == status, f"status {response.status} in place of {status}")
    check(type(response.body) is bytes, f"a body of type {type(response.body).__name__}")
    check(response.body == body, f"the body is {response.body[:200]!r} in place of {body[:200]!r}")
    check(all(name == name.lower() for name in response.headers), f"header names not in lower case: {[*response.headers]}")
    return response


async def failed(
    transport: Transport,
    sent: Request,
    *kinds: type[TransportError],
    timeout: float = ENOUGH,  # noqa: ASYNC109  # what the transport keeps is tried here
) -> TransportError:
    """Send, and check that one of these errors comes, with its outcome, and that it shows nothing that signs requests."""
    wanted = " or ".join(kind.__name__ for kind in kinds)
    try:
        response = await transport.send(sent, timeout=timeout)
    except Exception as error:
        told = shown(error).lower()  # before a local of this frame holds a secret
        if not isinstance(error, kinds) or type(error) not in {NotSent, Unanswered, AnswerTooLarge}:
            raise NonConforming(f"{type(error).__name__} ({error}) in place of {wanted}") from error
        check(error.outcome is type(error).outcome, f"{wanted} with outcome {error.outcome}")
        check(not any(secret.lower() in told for secret in sent.secrets), f"{wanted} shows what signs requests")
        return error
    raise NonConforming(f"status {response.status}, {response.body[:100]!r}, in place of {wanted}")


def shown(error: BaseException) -> str:
    """Return all that an error tracker may record of an exception and what led to it, with the locals of every frame."""
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


async def in_time(  # noqa: PLR0913  # the parts of a case, most with a default
    subject: Conformance,
    expected: tuple[type[TransportError], ...],
    *scripts: Any,
    sent: Callable[[str], Request] = request,
    scheme: str = "http",
    first: int = 0,
    options: Mapping[str, Any] | None = None,
    given_up: Event | None = None,
    **server: Any,
) -> None:
    """Check that a request whose answer does not come in time raises what is expected, and that its connection is closed.

    ``first`` requests are answered before; scripts may wait for ``given_up``. Where the machine was so busy that the request
    did not get as far as the case wants, it is tried again with more time.
    """
    error: TransportError | None = None
    for timeout in (0.1, 0.5, 2.5):
        async with served(subject, *scripts, options=options, **server) as (peer, transport):
            for _ in range(first):
                await answered(transport, request(peer.url(scheme)))
            began = time.monotonic()
            error = None
            with anyio.move_on_after(timeout + LENIENCY):
                error = await failed(transport, sent(peer.url(scheme)), NotSent, Unanswered, timeout=timeout)
            took = time.monotonic() - began
            reached = len(peer.requests) > first
            if given_up is not None:
                given_up.set()
            if error is None:
                raise NonConforming(f"the time-out of {timeout:g} s has not ended the request after {took:.2f} s")
            check(took >= timeout * 0.9, f"gave up after {took:.2f} s of {timeout:g} s: {error}")
            check(await is_left(peer), "the connection of a request that took too long is not closed")
            if given_up is not None:
                given_up.clear()
        if type(error) in expected:
            return
        if NotSent in expected or reached:
            break
    raise NonConforming(f"{type(error).__name__} ({error}) in place of {expected[0].__name__}")
