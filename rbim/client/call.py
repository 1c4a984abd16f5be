"""One call, from its operation to its answer: admission, attempts, pauses, and the outcome if it fails."""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import evolve, frozen

from rbim.client.admission import NotAdmitted
from rbim.errors import (
    ApiError,
    Attempt,
    AuthenticationError,
    ClientClosed,
    DeadlineExceeded,
    NotSent,
    Outcome,
    ProtocolError,
    RbimError,
    Throttled,
    TimestampExpired,
    TransportError,
)
from rbim.wire.codec import SUCCESS
from rbim.wire.intermediaries import ANSWER_LIMIT, decompressed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim.client.shared import CallSettings, SharedState
    from rbim.http import Request, Response, Signer
    from rbim.operations.base import Operation

__all__ = ["Call", "Exchange"]

R = TypeVar("R")


@frozen(kw_only=True)
class Exchange(Generic[R]):
    """A finished call: the answer with the response, the attempts and the timings.

    ``elapsed`` is in seconds from the call to the answer; ``waited`` is the part of it spent waiting for rates,
    congestion and a place in flight. ``confirmed_by_repeat`` is True if an attempt of unknown outcome was followed by an
    answer that means "already in the wanted state".
    """

    operation: Operation[R]
    answer: R
    response: Response
    attempts: tuple[Attempt, ...]
    elapsed: float
    waited: float
    confirmed_by_repeat: bool


class Call(Generic[R]):
    """A call, which :meth:`send` runs, once; with ``leaves`` it is a prepared request (:meth:`rbim.View.prepare`).

    A pause holds no place in the concurrency limiter; one deadline covers the whole call.
    """

    __slots__ = (
        "_answered",
        "_began",
        "_failure",
        "_handed_over",
        "_history",
        "_latest",
        "_leaves",
        "_number",
        "_op",
        "_path",
        "_patient",
        "_renewal",
        "_settings",
        "_shared",
        "_started",
        "_waited",
        "confirmed",
        "response",
    )

    def __init__(
        self,
        shared: SharedState,
        settings: CallSettings,
        op: Operation[R],
        leaves: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._shared = shared
        self._leaves = leaves  # awaited before the first attempt leaves; until then there is no deadline
        self._patient = leaves is not None
        self._settings = settings
        self._op = op
        self._path = ""
        self._number = 0  # from 1, when it begins
        self._answered = False
        self._handed_over = False
        self._renewal = False
        self._history: list[Attempt] = []
        self._failure: RbimError | None = None
        self._waited = 0.0
        self.confirmed = False
        self.response: Response | None = None

    async def send(self) -> R:  # noqa: C901  # the life of a call, in order
        """Run the operation and return its answer. Raises what :meth:`rbim.View.send` does; RuntimeError the second time."""
        if self._number:
            raise RuntimeError("a prepared request is sent once: prepare another one")
        shared = self._shared
        shared.calls += 1
        self._number = shared.calls
        self._began = self._started = shared.monotonic()
        self._latest = inf if self._patient else self._began + self._settings.deadline
        failure: Exception | None = None
        shared.running += 1
        try:
            if shared.observers is not None:
                shared.observers.call_started(client=shared.name, call=self._number, operation=self._operation)
            if shared.state != "open":
                early = shared.state in {"new", "opening"}
                cause = "is not open yet: use it with `async with`" if early else "is already closed"
                raise ClientClosed(f"the client {cause}")  # noqa: TRY301  # it is noted below, as any other error
            request = shared.codec.encode(self._op, self._settings.user_name)
            self._path = request.path
            shared.budget.calls += 1
            answer = await self._attempts(request)
        except RbimError as error:
            failure = self._completed(error)
            raise
        except BaseException as error:  # the caller's cancellation, or a transport or signer that violates its protocol
            failure = error if isinstance(error, Exception) else None
            if self._handed_over:
                self._ended(error)
            if failure is None and self._waited and not (self._settings.level or self._patient):
                shared.admission.gave_up(self._began, self._started)
            raise
        else:
            self._answered = True
            return answer
        finally:
            shared.running -= 1
            if shared.all_ended is not None and not shared.running:
                shared.all_ended.set()
            if shared.observers is not None:
                shared.observers.call_ended(
                    **self._event_fields(),
                    attempts=tuple(self._history),
                    elapsed=shared.monotonic() - self._began,
                    waited=self._waited,
                    error=failure,
                    cancelled=failure is None and not self._answered,
                    confirmed_by_repeat=self.confirmed,
                )

    async def _attempts(self, request: Request) -> R:  # noqa: C901  # the whole way, in order
        """Admit, sign, send and decode, until an attempt is the last one. Raises RbimError."""
        shared = self._shared
        while True:
            asked: float | None = None
            now = shared.admission.enter_at_once(self._op, self._latest)
            self._started = await self._wait_for_admission() if now is None else now
            try:
                signer = shared.signer
                signed = signer.sign(request)
                if self._leaves is not None:
                    await self._leave(self._leaves)
                if shared.state != "open":  # it was closed when the call was admitted, or while its sender recorded it
                    raise self._client_closed(Outcome.NOT_SENT)
                if shared.observers is not None:
                    shared.observers.attempt_started(
                        **self._event_fields(),
                        number=len(self._history) + 1,
                        waited=self._waited,
                        method=signed.method,
                        origin=signed.origin,
                        template=self._op.path(shared.codec.dialect),
                    )
                timeout = min(self._settings.timeout, self._latest - self._started)
                self.response = None
                self._handed_over = True
                try:
                    sending = shared.transport.send(signed, timeout=timeout)
                    self.response = await shared.wait(sending, self._latest + shared.backstop, self._interrupted)
                    answer = self._decode(signed, self.response)
                except RbimError as error:
                    asked = self._ended(error)
                    if not isinstance(error, (TransportError, ApiError, ProtocolError)):
                        raise
                    failure = error
                else:
                    self._handed_over = False
                    if self._history or shared.observers is not None:
                        self._ended(None)  # else no history is needed: `exchange` adds the attempt
                    return answer
            finally:
                shared.admission.leave(self._op, self._started, answered=self.response is not None, asked=asked)
            if any(made.outcome is Outcome.UNKNOWN for made in self._history[:-1]):
                confirmed = shared.codec.confirmed(self._op, failure)
                if confirmed is not None:
                    self.confirmed = True
                    return confirmed
            self._failure = failure
            if not await self._renewed(failure, signer):
                pause = self._pause_after(failure)
                await shared.wait(shared.clock.sleep(pause), self._latest, self._interrupted)

    async def _renewed(self, failure: RbimError, refused: Signer) -> bool:
        """Return whether the credentials were refused and there are other ones now; once in a call."""
        renewed = self._shared.renewed
        if renewed is None or self._renewal or not isinstance(failure, AuthenticationError):
            return False
        if isinstance(failure, TimestampExpired) or failure.outcome is not Outcome.REFUSED:
            return False
        self._renewal = True
        if self._shared.monotonic() >= self._latest - self._need():
            return False
        try:
            return await self._shared.wait(renewed(refused), self._latest, self._interrupted)
        except DeadlineExceeded:
            failure.add_note("the provider of credentials has not answered in time")
            return False

    def _pause_after(self, failure: TransportError | ApiError | ProtocolError) -> float:
        """Return the seconds until the next attempt. Raises an error if there is none."""
        shared, settings = self._shared, self._settings
        if shared.state != "open":  # the transport turned the cancellation into an error
            raise self._client_closed(failure.outcome) from failure
        if isinstance(failure, TransportError) and shared.monotonic() >= self._latest:
            raise self._deadline_exceeded(failure.outcome) from failure
        failure.attempts = tuple(self._history)
        pause = settings.retry.pause(self._op, failure, len(self._history), shared.codec.dialect.codes)
        if pause is None or shared.monotonic() + pause >= self._latest - self._need():
            raise failure
        if not shared.budget.spend():
            failure.add_note("not retried: the client's retry budget is spent")
            raise failure
        return pause

    async def _wait_for_admission(self) -> float:
        """Wait until the client's limits let the request leave; return the time."""
        shared, settings = self._shared, self._settings
        start, end = shared.monotonic(), None
        try:
            end = await shared.admission.enter(
                self._op,
                latest=self._latest,
                deadline=settings.deadline if self._leaves is None else inf,
                attempt=settings.timeout,
                level=settings.level,
                now=start,
            )
        except NotAdmitted:
            if shared.state != "open":
                raise self._client_closed(Outcome.NOT_SENT) from None
            raise self._not_admitted() from self._failure
        else:
            return end
        finally:
            self._waited += (shared.monotonic() if end is None else end) - start  # exactly 0 if it did not wait

    async def _leave(self, leaves: Callable[[], Awaitable[object]]) -> None:
        """Let the sender record the first attempt, which has its place and tokens; then begin its deadline.

        If ``leaves`` raises, or the client was closed at this moment, the tokens are given back: nothing leaves.
        """
        shared = self._shared
        try:
            if shared.state == "open":  # else the attempt does not begin
                await leaves()
                self._leaves = None
                self._started = shared.monotonic()
                self._latest = self._started + self._settings.deadline
        finally:
            if self._leaves is not None:
                shared.admission.give_back(self._op)

    def _decode(self, signed: Request, response: Response) -> R:
        """Return the decoded answer; in an error answer, redact the request's signature first if it is repeated."""
        decode = self._shared.codec.decode
        if "content-encoding" in response.headers:
            limit: int = getattr(self._shared.transport, "answer_limit", ANSWER_LIMIT)
            self.response = response = decompressed(response, limit)
        try:
            return decode(self._op, response)
        except RbimError:
            redacted = _redacted(response, signed.secrets)
            if redacted is response:
                raise
        self.response = response = redacted  # no local variable keeps the original body: tracebacks may show locals
        return decode(self._op, response)

    def _ended(self, error: BaseException | None) -> float | None:
        """Add the attempt to the history and notify the observers; if it was throttled, return for how many seconds."""
        shared = self._shared
        self._handed_over = False
        self._history.append(self._attempt_made(error))
        if shared.observers is not None:
            shared.observers.attempt_ended(**self._event_fields(), attempt=self._history[-1])
        return (error.retry_after or 0.0) if isinstance(error, Throttled) else None

    def _attempt_made(self, error: BaseException | None) -> Attempt:
        known = error.outcome if isinstance(error, RbimError) else Outcome.UNKNOWN
        code = error.code if isinstance(error, ApiError) else None
        return Attempt(
            number=len(self._history) + 1,
            elapsed=self._shared.monotonic() - self._started,
            status=self.response.status if self.response is not None else None,
            code=(SUCCESS if error is None else code) or None,
            outcome=None if error is None else known,
            error=type(error).__name__ if error is not None else None,
        )

    def _interrupted(self) -> RbimError:
        """Return the error of a wait that has ended at the deadline, or because the client was closed."""
        if self._shared.state != "open":
            # a request that was handed to the transport may have been sent, in part or whole
            return self._client_closed(Outcome.UNKNOWN if self._handed_over else Outcome.NOT_SENT)
        return self._deadline_exceeded(Outcome.UNKNOWN) if self._handed_over else self._not_admitted()

    @staticmethod
    def _client_closed(outcome: Outcome) -> ClientClosed:
        return ClientClosed("the client was closed during this call", outcome=outcome)

    def _deadline_exceeded(self, outcome: Outcome) -> DeadlineExceeded:
        reason = f"no answer within the deadline of {self._settings.deadline:g} s"
        return DeadlineExceeded(reason, outcome=outcome)

    def _need(self) -> float:
        settings = self._settings
        return self._shared.admission.need(self._op, deadline=settings.deadline, attempt=settings.timeout)

    def _not_admitted(self) -> DeadlineExceeded | NotSent:
        shared, deadline = self._shared, self._settings.deadline
        if away := shared.admission.away(self._op):
            return NotSent(away)
        need = self._need()
        reason = f"the client's limits do not let the request leave in time for its deadline of {deadline:g} s"
        details = f"{shared.admission.waiting} calls wait" + (f", an attempt needs up to {need:.3g} s" if need else "")
        error = DeadlineExceeded(f"{reason} ({details})")
        if self._failure is not None:
            error = DeadlineExceeded(f"{reason} again ({details}); attempt {len(self._history)} failed: {self._failure}")
        error.__cause__ = self._failure
        return error

    def _completed(self, error: RbimError) -> RbimError:
        """Return the error with its operation, its attempts and the outcome of the whole call."""
        error.operation = self._op.spec.name
        error.client = self._shared.name
        error.attempts = tuple(self._history)
        for made in self._history:
            if made.outcome is not None:
                error.outcome |= made.outcome
        return error

    def _event_fields(self) -> dict[str, Any]:
        """Return the fields that all events for observers share."""
        return {"client": self._shared.name, "call": self._number, "operation": self._operation, "path": self._path}

    @property
    def may_have_acted(self) -> bool:
        """Whether the platform may have acted on the request, as far as it is known now."""
        unknown = any(made.outcome in {None, Outcome.UNKNOWN} for made in self._history)
        return self._answered or self._handed_over or unknown

    @property
    def _operation(self) -> str:
        spec = getattr(self._op, "spec", None)
        return type(self._op).__name__ if spec is None else str(spec.name)  # without a spec it is not an operation

    def exchange(self, answer: R) -> Exchange[R]:
        """Return the finished call with its attempts and timings."""
        if not self._history:
            self._history.append(self._attempt_made(None))
        assert self.response is not None  # noqa: S101  # an answer came, so there is a response
        return Exchange(
            operation=self._op,
            answer=answer,
            response=self.response,
            attempts=tuple(self._history),
            elapsed=self._shared.monotonic() - self._began,
            waited=self._waited,
            confirmed_by_repeat=self.confirmed,
        )


def _redacted(response: Response, secrets: tuple[str, ...]) -> Response:
    """Return the response with each secret in body and headers replaced by ``***``; the same object if there is none."""
    headers = dict(response.headers)
    body, lowered = response.body, response.body.lower()
    for secret in secrets:  # servers accept a `sig` in upper and lower case, and may repeat either
        if secret.encode().lower() in lowered:
            body = re.sub(re.escape(secret.encode()), b"***", body, flags=re.IGNORECASE)
        pattern = re.compile(re.escape(secret), re.IGNORECASE)
        headers = {name: pattern.sub("***", value) for name, value in headers.items()}
    same = body is response.body and headers == response.headers
    return response if same else evolve(response, body=body, headers=headers)
