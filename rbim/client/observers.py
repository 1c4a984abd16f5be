"""Observers of a client: frozen events about calls and attempts, and an observer that logs them.

No event holds a signed URL, a header or a body.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from rbim.errors import Outcome, RbimError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.errors import Attempt

__all__ = ["AttemptEnded", "AttemptStarted", "CallEnded", "CallStarted", "LoggingObserver", "Observer", "Observers"]

logger = logging.getLogger("rbim")


@frozen(kw_only=True)
class CallStarted:
    """Call ``call`` (a number unique within the client) begins; its request does not exist yet.

    ``client`` is the name of the client, in all events; empty if it has none.
    """

    call: int
    operation: str
    client: str = ""


@frozen(kw_only=True)
class AttemptStarted:
    """Attempt ``number`` (from 1) of call ``call`` is handed to the transport.

    ``waited`` is the seconds that the call has waited so far for the rate limiter, halts and the concurrency limiter.
    ``method``, ``origin`` (scheme, host and port, with the installation's path prefix) and ``path`` are those of the
    request; ``template`` is the template of the path (``/{api_version}/Application/{app_id}/...``).
    """

    call: int
    operation: str
    path: str
    number: int
    waited: float
    method: str
    origin: str
    template: str
    client: str = ""


@frozen(kw_only=True)
class AttemptEnded:
    """An attempt ended; ``attempt`` has its result."""

    call: int
    operation: str
    path: str
    attempt: Attempt
    client: str = ""

    @property
    def cancelled(self) -> bool:
        """Whether it ended because the caller cancelled it."""
        return self.attempt.error in _CANCELLED


_CANCELLED = {"CancelledError", "Cancelled"}  # asyncio, trio


@frozen(kw_only=True)
class CallEnded:
    """A call ended after ``elapsed`` seconds.

    ``waited`` of them it waited for the rate limiter, halts and the concurrency limiter. ``error`` is the exception that it
    raised, or None: an RbimError, unless a custom transport, signer or hook violates its protocol. If the caller cancelled
    the call, ``cancelled`` is set instead, and its attempts show the outcome.
    """

    call: int
    operation: str
    path: str
    attempts: tuple[Attempt, ...]
    elapsed: float
    waited: float
    error: Exception | None = None
    cancelled: bool = False
    confirmed_by_repeat: bool = False
    client: str = ""

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of a call that failed or was cancelled; None if it succeeded."""
        if self.error is None and not self.cancelled:
            return None
        known = self.error.outcome if isinstance(self.error, RbimError) else Outcome.NOT_SENT
        for made in self.attempts:
            if made.outcome is not None:
                known |= made.outcome
        return known


class Observer(Protocol):
    """The base class of observers: override the methods you need.

    The methods are called in the task of the call, in the caller's context, and must not block. Exceptions that they raise
    are logged and go no further. Several observers are called in order when something starts, in reverse order when it
    ends.
    """

    def call_started(self, event: CallStarted, /) -> None:
        """Handle the start of a call."""
        del event  # to mypy, a method with no statement is abstract

    def attempt_started(self, event: AttemptStarted, /) -> None:
        """Handle the start of an attempt."""
        del event  # to mypy, a method with no statement is abstract

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """Handle the end of an attempt."""
        del event  # to mypy, a method with no statement is abstract

    def call_ended(self, event: CallEnded, /) -> None:
        """Handle the end of a call, with all its attempts."""
        del event  # to mypy, a method with no statement is abstract


class Observers:
    """The observers of one client. An exception of one is logged and does not affect calls or other observers."""

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        last_first = observers[::-1]
        self._call_started = _overriding("call_started", observers)
        self._attempt_started = _overriding("attempt_started", observers)
        self._attempt_ended = _overriding("attempt_ended", last_first)
        self._call_ended = _overriding("call_ended", last_first)

    def call_started(self, **fields: Any) -> None:
        """Notify all observers with a CallStarted of these fields."""
        if self._call_started:
            _notify(self._call_started, CallStarted(**fields))

    def attempt_started(self, **fields: Any) -> None:
        """Notify all observers with an AttemptStarted of these fields."""
        if self._attempt_started:
            _notify(self._attempt_started, AttemptStarted(**fields))

    def attempt_ended(self, **fields: Any) -> None:
        """Notify all observers with an AttemptEnded of these fields."""
        if self._attempt_ended:
            _notify(self._attempt_ended, AttemptEnded(**fields))

    def call_ended(self, **fields: Any) -> None:
        """Notify all observers with a CallEnded of these fields."""
        if self._call_ended:
            _notify(self._call_ended, CallEnded(**fields))


def _overriding(name: str, observers: tuple[Observer, ...]) -> tuple[Callable[[Any], None], ...]:
    """Return the method ``name`` of each observer that overrides it."""
    inherited = getattr(Observer, name)
    return tuple(
        getattr(observer, name)
        for observer in observers
        if hasattr(observer, name) and getattr(type(observer), name, None) is not inherited
    )


def _notify(methods: tuple[Callable[[Any], None], ...], event: object) -> None:
    for method in methods:
        try:
            method(event)
        except Exception:
            logger.exception("an observer failed")


class LoggingObserver(Observer):
    """An observer that writes attempts and calls to a standard logger.

    It logs each attempt at DEBUG, and each call at INFO, or at WARNING if it failed. Each record has the same keys in
    ``extra``, with texts, numbers, booleans and None as values, suitable for JSON:

    =============================  ====================================================================================
    ``rbim_event``                 ``attempt`` or ``call``
    ``rbim_client``                the client's name; empty if it has none
    ``rbim_call``                  the call's number within the client
    ``rbim_operation``             the operation's name on the wire
    ``rbim_path``                  the path of the request, without its query; empty if there was no request
    ``rbim_attempt``               the attempt's number, from 1; for a call, the number of attempts
    ``rbim_status``                the HTTP status of the (last) attempt
    ``rbim_code``                  the platform's code in its answer
    ``rbim_outcome``               ``not sent``, ``refused`` or ``unknown``; None on success
    ``rbim_error``                 the class of the error
    ``rbim_elapsed_ms``            milliseconds of the attempt or call
    ``rbim_waited_ms``             milliseconds that a call waited for limiters and halts; None for an attempt
    ``rbim_confirmed_by_repeat``   whether the answer is "already in the wanted state", after an unknown outcome
    ``rbim_cancelled``             whether the caller cancelled the call
    =============================  ====================================================================================
    """

    def __init__(self, to: logging.Logger = logger) -> None:
        self.logger = to

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """Log the end of an attempt."""
        if self.logger.isEnabledFor(logging.DEBUG):
            made = event.attempt
            record = {
                **_record_fields("attempt", event, made, made.number, made.elapsed),
                "rbim_outcome": _text(made.outcome),
                "rbim_error": made.error,
                "rbim_waited_ms": None,
                "rbim_confirmed_by_repeat": False,
                "rbim_cancelled": event.cancelled,
            }
            self._write(logging.DEBUG, record, made.error or "ok")

    def call_ended(self, event: CallEnded, /) -> None:
        """Log the end of a call, with the status and code of its last attempt."""
        level = logging.WARNING if event.error is not None else logging.INFO
        if self.logger.isEnabledFor(level):
            last = event.attempts[-1] if event.attempts else None
            error = None if event.error is None else type(event.error).__name__
            record = {
                **_record_fields("call", event, last, len(event.attempts), event.elapsed),
                "rbim_outcome": _text(event.outcome),
                "rbim_error": error,
                "rbim_waited_ms": _milliseconds(event.waited),
                "rbim_confirmed_by_repeat": event.confirmed_by_repeat,
                "rbim_cancelled": event.cancelled,
            }
            known = f", outcome {event.error.outcome}" if isinstance(event.error, RbimError) else ""
            self._write(level, record, f"{error}{known}" if error else "cancelled" if event.cancelled else "ok")

    def _write(self, level: int, record: dict[str, Any], result: str) -> None:
        status = record["rbim_status"]
        self.logger.log(
            level,
            "%s%s %s status=%s code=%s attempt=%d %.1f ms %s",
            f"{record['rbim_client']}: " if record["rbim_client"] else "",
            record["rbim_operation"],
            record["rbim_path"],
            "-" if status is None else status,
            record["rbim_code"] or "-",
            record["rbim_attempt"],
            record["rbim_elapsed_ms"],
            result,
            extra=record,
        )


def _record_fields(
    kind: str, event: AttemptEnded | CallEnded, made: Attempt | None, number: int, elapsed: float
) -> dict[str, Any]:
    """Return the fields that the records of attempts and of calls have in common."""
    return {
        "rbim_event": kind,
        "rbim_client": event.client,
        "rbim_call": event.call,
        "rbim_operation": event.operation,
        "rbim_path": event.path,
        "rbim_attempt": number,
        "rbim_status": None if made is None else made.status,
        "rbim_code": None if made is None else made.code,
        "rbim_elapsed_ms": _milliseconds(elapsed),
    }


def _text(outcome: Outcome | None) -> str | None:
    return None if outcome is None else outcome.value


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)
