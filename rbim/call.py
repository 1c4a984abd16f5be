"""One call from its operation to its answer: admission, attempts, pauses, and what is known when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from attrs import define, evolve, frozen

from rbim.codec import SUCCESS
from rbim.errors import (
    ApiError,
    ClientClosed,
    DeadlineExceeded,
    Outcome,
    ProtocolError,
    RbimError,
    Throttled,
    TransportError,
)
from rbim.message import Attempt
from rbim.observe import AttemptEnded, AttemptStarted, CallEnded, logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio import Event

    from rbim.codec import Codec
    from rbim.gate import Gate
    from rbim.message import Clock, Request, Response, Scope, Signer, Transport
    from rbim.observe import Observer
    from rbim.operation import Operation
    from rbim.pace import Pace
    from rbim.retry import Retry, RetryBudget

__all__ = ["Call", "Core", "Exchange", "Settings"]

R = TypeVar("R")

BACKSTOP = 0.01
"""Seconds past the deadline after which a transport that has not kept its time-out is cut off."""


@frozen(kw_only=True)
class Settings:
    """What views of a client may differ in: acting account, seconds per attempt, seconds per call, retrying."""

    user_name: str | None
    timeout: float
    deadline: float
    retry: Retry


@define(eq=False)
class Core:
    """What a client and all its views share."""

    transport: Transport
    signer: Signer
    codec: Codec
    clock: Clock
    gate: Gate
    pace: Pace
    budget: RetryBudget
    observers: tuple[Observer, ...]
    running: set[Scope]
    state: str = "new"  # then "open", "closing", "closed"
    calls: int = 0
    all_ended: Event | None = None

    def ended(self, scope: Scope) -> None:
        """Note that a call has ended; tell a client that waits for it."""
        self.running.discard(scope)
        if self.all_ended is not None and not self.running:
            self.all_ended.set()

    def tell(self, how: Callable[[Observer], None]) -> None:
        """Tell every observer; what one of them raises is logged and disturbs nobody."""
        for observer in self.observers:
            try:
                how(observer)
            except Exception:  # an observer must not fail the call it watches
                logger.exception("an observer failed")


@frozen(kw_only=True)
class Exchange(Generic[R]):
    """A call seen from outside: the answer with all that led to it.

    ``elapsed`` counts seconds from the call to the answer, ``waited`` those of them spent on rates, halts and the gate.
    ``confirmed_by_repeat`` is True where an attempt of unknown outcome was followed by the answer that it is so already.
    """

    operation: Operation[R]
    answer: R
    response: Response
    attempts: tuple[Attempt, ...]
    elapsed: float
    waited: float
    confirmed_by_repeat: bool


class Call(Generic[R]):
    """The state of one call while it runs. Sleeping holds no place at the gate; one deadline is over everything."""

    __slots__ = (
        "_began",
        "_core",
        "_handed_over",
        "_history",
        "_latest",
        "_number",
        "_op",
        "_path",
        "_settings",
        "_started",
        "_waited",
        "confirmed",
        "response",
    )

    def __init__(self, core: Core, settings: Settings, op: Operation[R]) -> None:
        self._core = core
        self._settings = settings
        self._op = op
        self._path = ""
        self._began = self._started = core.clock.monotonic()
        self._latest = self._began + settings.deadline
        self._handed_over = False
        self._history: list[Attempt] = []
        self._waited = 0.0
        core.calls += 1
        self._number = core.calls
        self.confirmed = False
        self.response: Response | None = None

    async def run(self) -> R:
        """Carry out the operation. Raises RbimError."""
        core = self._core
        failure: RbimError | None = None
        answered = False
        try:
            request = self._encode()
            core.budget.earn()
            with core.clock.scope(self._settings.deadline + BACKSTOP) as scope:
                core.running.add(scope)
                try:
                    answer = await self._attempts(request)
                    answered = True
                    return answer
                finally:
                    core.ended(scope)
            raise self._interrupted()
        except RbimError as error:
            failure = self._facts(error)
            raise
        finally:
            if core.observers:
                self._tell_ended(failure, cancelled=failure is None and not answered)

    def _encode(self) -> Request:
        core = self._core
        if core.state != "open":
            when = "entered: use it with `async with`" if core.state == "new" else "left"
            reason = f"the client was {'not yet ' if core.state == 'new' else 'already '}{when}"
            raise ClientClosed(reason)
        request = core.codec.encode(self._op, self._settings.user_name)
        self._path = request.path
        return request

    async def _attempts(self, request: Request) -> R:
        core, settings = self._core, self._settings
        while True:
            await self._admission()
            try:
                return await self._attempt(request)
            except (TransportError, ApiError, ProtocolError) as error:
                failure = error
            finally:
                core.gate.leave()
            uncertain = any(made.outcome is Outcome.UNKNOWN for made in self._history[:-1])
            if uncertain and (answer := core.codec.confirmed(self._op, failure)) is not None:
                self.confirmed = True
                return answer
            if isinstance(failure, Throttled) and failure.retry_after is not None:
                core.pace.halt(core.clock.monotonic() + failure.retry_after)
            if isinstance(failure, TransportError) and core.clock.monotonic() >= self._latest:
                raise self._late(failure.outcome) from failure
            failure.attempts = tuple(self._history)
            pause = settings.retry.pause(self._op, failure, len(self._history), core.codec.dialect.codes)
            if pause is None or core.clock.monotonic() + pause >= self._latest:
                raise failure
            if not core.budget.spend():
                failure.add_note("not tried again: the client's retry budget is spent")
                raise failure
            await core.clock.sleep(pause)

    async def _admission(self) -> None:
        """Wait for the rates, then for a place at the gate; leave the gate again where a halt came meanwhile."""
        core, clock = self._core, self._core.clock
        start = now = clock.monotonic()
        when = core.pace.reserve(self._op, now, self._latest)
        while True:
            if when is None or when > self._latest:
                reason = f"the limits let nothing go before the deadline of {self._settings.deadline:g} s"
                raise DeadlineExceeded(reason)
            if when > now:
                await clock.sleep(when - now)
            await core.gate.enter()
            now = clock.monotonic()
            if core.pace.halted_until <= now:
                break
            core.gate.leave()
            when = core.pace.halted_until
        self._waited += now - start

    async def _attempt(self, request: Request) -> R:
        core = self._core
        number = len(self._history) + 1
        if core.observers:
            event = AttemptStarted(
                call=self._number, operation=self._op.spec.name, path=self._path, number=number, waited=self._waited
            )
            core.tell(lambda observer: observer.attempt_started(event))
        self._started = core.clock.monotonic()
        timeout = min(self._settings.timeout, self._latest - self._started)
        signed = core.signer.sign(request)
        self._handed_over = True
        try:
            self.response = await core.transport.send(signed, timeout=timeout)
            answer = self._decode(signed, self.response)
        except RbimError as error:
            self._ended(error)
            raise
        self._ended(None)
        return answer

    def _decode(self, signed: Request, response: Response) -> R:
        """Decode; where the answer is an error that repeats what signed the request, blot that out first."""
        decode = self._core.codec.decode
        try:
            return decode(self._op, response)
        except RbimError:
            body = response.body
            for secret in signed.secrets:
                body = body.replace(secret.encode(), b"***")
            if body == response.body:
                raise
        self.response = evolve(response, body=body)
        return decode(self._op, self.response)

    def _ended(self, error: RbimError | None) -> None:
        """Write the attempt into the history and tell the observers."""
        core = self._core
        self._handed_over = False
        if error is None and not core.observers and not self._history:
            return  # the common case: nobody will ask; `exchange` makes up for it
        self._history.append(self._made(error))
        if core.observers:
            event = AttemptEnded(call=self._number, operation=self._op.spec.name, path=self._path, attempt=self._history[-1])
            core.tell(lambda observer: observer.attempt_ended(event))

    def _made(self, error: RbimError | None) -> Attempt:
        response = None if isinstance(error, TransportError) else self.response
        code = getattr(error, "code", None)
        return Attempt(
            number=len(self._history) + 1,
            elapsed=self._core.clock.monotonic() - self._started,
            status=response.status if response is not None else None,
            code=(SUCCESS if error is None else code) or None,
            outcome=error.outcome if error is not None else None,
            error=type(error).__name__ if error is not None else None,
        )

    def _interrupted(self) -> RbimError:
        """Return what the scope's end means: the client was closed, or the deadline passed."""
        # a request in the transport's hands may have left in part or whole
        outcome = Outcome.UNKNOWN if self._handed_over else Outcome.NOT_SENT
        closed = self._core.state != "open"
        failure = ClientClosed("the client was closed under this call", outcome=outcome) if closed else self._late(outcome)
        if self._handed_over:
            self.response = None
            self._ended(failure)
        return failure

    def _late(self, outcome: Outcome) -> DeadlineExceeded:
        reason = f"no answer within the deadline of {self._settings.deadline:g} s"
        return DeadlineExceeded(reason, outcome=outcome)

    def _facts(self, error: RbimError) -> RbimError:
        """Give the error its operation, its history and the outcome of the whole call."""
        error.operation = self._op.spec.name
        error.attempts = tuple(self._history)
        for made in self._history:
            if made.outcome is not None:
                error.outcome |= made.outcome
        return error

    def _tell_ended(self, failure: RbimError | None, *, cancelled: bool) -> None:
        event = CallEnded(
            call=self._number,
            operation=self._op.spec.name,
            path=self._path,
            attempts=tuple(self._history),
            elapsed=self._core.clock.monotonic() - self._began,
            waited=self._waited,
            error=failure,
            cancelled=cancelled,
            confirmed_by_repeat=self.confirmed,
        )
        self._core.tell(lambda observer: observer.call_ended(event))

    def exchange(self, answer: R) -> Exchange[R]:
        """Return the finished call as its caller may look at it."""
        if not self._history:
            self._history.append(self._made(None))
        assert self.response is not None  # noqa: S101  # an answer came, so there is a response
        return Exchange(
            operation=self._op,
            answer=answer,
            response=self.response,
            attempts=tuple(self._history),
            elapsed=self._core.clock.monotonic() - self._began,
            waited=self._waited,
            confirmed_by_repeat=self.confirmed,
        )
