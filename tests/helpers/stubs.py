"""A scripted transport on emulated time, and what the tests of the client share."""

import json
from collections import deque
from collections.abc import Awaitable, Callable

import httpx
import pytest
from anyio.lowlevel import checkpoint

from rbim import (
    AsyncClient,
    Credentials,
    DeleteGroup,
    InviteJoinGroup,
    JoinGroup,
    QueryGroupDetail,
    RbimError,
    Request,
    Response,
    Retry,
    Unanswered,
)
from rbim.client.observers import CallStarted
from rbim.emulator.clock import EmulatedClock

APP_ID = "0a1b2c3d4e5f"
TOKEN = "the-token-of-the-application"
CREDENTIALS = Credentials(app_id=APP_ID, app_token=TOKEN)
BASE_URL = "https://im.example:8883"

READ = QueryGroupDetail(group_id="g1")  # may be repeated freely
CONVERGING = DeleteGroup(group_id="g1")  # ends in the same state
NEVER = JoinGroup(group_id="g1")  # must not be repeated
INVITE = InviteJoinGroup(group_id="g1", members=["u1"])

FULL_PAUSES = Retry(random=lambda: 1.0)  # 0.2 s, then 0.4 s
ONCE = Retry(attempts=1)
NO_PAUSES = Retry(random=lambda: 0.0)

AGES = 1e6  # seconds that no call lasts


def answer(code: str = "000000", *, status: int = 200, retry_after: str | None = None, **fields: object) -> Response:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Response(status, headers, json.dumps({"statusCode": code, **fields}).encode())


OK = answer()
BUSY = answer("160016")
EXPIRED = answer("161106")
REFUSED = answer("999123")
ALREADY_MEMBER = answer("590017")
GARBAGE = Response(502, {}, b"<html>bad gateway")

Step = Response | Callable[[], Exception] | Callable[["Stub", float], Awaitable[Response]]


class waits:  # noqa: N801  # reads as a step of a script: Stub(waits(3, OK))
    """A step that takes so many seconds; it keeps its time-out unless it ``ignores`` it."""

    def __init__(self, seconds: float, then: Step = OK, *, ignores: bool = False) -> None:
        self.seconds = seconds
        self.then = then
        self.ignores = ignores

    def __repr__(self) -> str:
        return f"waits({self.seconds:g})"  # the same in every process: it names tests

    async def __call__(self, stub: "Stub", timeout: float) -> Response:
        if self.seconds >= timeout and not self.ignores:
            await stub.clock.sleep(timeout)
            reason = f"no whole answer within {timeout:g} s"
            raise Unanswered(reason)
        await stub.clock.sleep(self.seconds)
        return await stub.perform(self.then, timeout)


HANGS = waits(AGES, ignores=True)


class Stub:
    """A transport that does what its script says, one step for each request, and then its last step again and again.

    A step is a Response, an exception class, or :class:`waits`. What it was given is in ``requests`` and ``timeouts``, when
    in ``times``; ``most`` is the highest number in flight, ``entered`` and ``left`` count its own life.
    """

    def __init__(self, *script: Step, clock: EmulatedClock | None = None) -> None:
        self.clock = clock or EmulatedClock(auto=True)
        self.script = deque(script or (OK,))
        self.requests: list[Request] = []
        self.timeouts: list[float] = []
        self.times: list[float] = []
        self.in_flight = self.most = self.entered = self.left = 0

    async def __aenter__(self):
        await checkpoint()
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        await checkpoint()  # a cancellation that came through would keep the next line from happening
        self.left += 1

    async def send(self, request: Request, /, *, timeout: float) -> Response:
        self.requests.append(request)
        self.timeouts.append(timeout)
        self.times.append(self.clock.elapsed)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            return await self.respond(request, timeout)
        finally:
            self.in_flight -= 1

    async def respond(self, _: Request, timeout: float) -> Response:
        step = self.script.popleft() if len(self.script) > 1 else self.script[0]
        await checkpoint()
        return await self.perform(step, timeout)

    def then(self, *script: Step) -> None:
        self.script = deque(script)

    async def perform(self, step: Step, timeout: float) -> Response:
        if isinstance(step, Response):
            return step
        if isinstance(step, type) and issubclass(step, BaseException):
            reason = "as the script says"
            raise step(reason)
        return await step(self, timeout)

    @property
    def documents(self) -> list[dict[str, object]]:
        return [json.loads(request.body) for request in self.requests]


def client_over(stub: Stub | None, **options: object) -> AsyncClient:
    return AsyncClient(
        **{
            "base_url": BASE_URL,
            "credentials": None if "signer" in options else CREDENTIALS,
            "transport": stub,
            "clock": stub and stub.clock,
            "retry": FULL_PAUSES,
            **options,
        }
    )


async def ending(call: Awaitable[object]) -> object:
    """Return how a call ends: its answer, or its error."""
    try:
        return await call
    except RbimError as error:
        return error


class Background:
    """A call that runs beside the test: ``ended`` becomes its answer or its error."""

    def __init__(self, tasks, call: Awaitable[object]) -> None:
        self.ended: object = None
        self._call = call
        tasks.start_soon(self._run)

    async def _run(self) -> None:
        self.ended = await ending(self._call)


class Recorder:
    """An observer that keeps what it was told, in order, but for the starts of calls."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def observes(self, kind, /) -> bool:
        return kind is not CallStarted

    def __call__(self, observation, /) -> None:
        self.events.append(observation)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


async def failing(call) -> RbimError:
    with pytest.raises(RbimError) as caught:
        await call
    return caught.value


def echo(request: httpx.Request) -> httpx.Response:
    """Answer with a refusal that repeats what signed the request."""
    said = f"{request.url} {request.headers['Authorization']}"
    return httpx.Response(400, json={"statusCode": "999123", "statusMsg": said})
