"""What a client tells those who watch: frozen facts about attempts and calls, and an observer that logs them.

No fact holds a signed URL, a header or a body.
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
    """Call ``call`` (a number unique within the client) begins; nothing is known of its request yet."""

    call: int
    operation: str


@frozen(kw_only=True)
class AttemptStarted:
    """Attempt ``number`` (from 1) of call ``call`` is handed to the transport.

    ``waited`` counts the seconds that the call has spent so far on rates, halts and the gate. The request has the
    ``method``, goes to ``origin`` (scheme, host and port, with any path prefix of the installation) and there to ``path``,
    which was made from ``template`` (``/{version}/Application/{app_id}/...``).
    """

    call: int
    operation: str
    path: str
    number: int
    waited: float
    method: str
    origin: str
    template: str


@frozen(kw_only=True)
class AttemptEnded:
    """An attempt ended; ``attempt`` says how."""

    call: int
    operation: str
    path: str
    attempt: Attempt

    @property
    def cancelled(self) -> bool:
        """Whether the caller's cancellation ended it."""
        return self.attempt.error in _CANCELLED


_CANCELLED = {"CancelledError", "Cancelled"}  # of asyncio, of trio


@frozen(kw_only=True)
class CallEnded:
    """A call ended after ``elapsed`` seconds, ``waited`` of them on rates, halts and the gate.

    ``error`` is what it raised, None where it answered: an RbimError, unless a transport, signer or hook of one's own broke
    its promise. A call that its caller cancelled has ``cancelled`` set instead; its attempts tell what is known of it.
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

    @property
    def outcome(self) -> Outcome | None:
        """What is known of the effect of a call that failed or was cancelled; None where it answered."""
        if self.error is None and not self.cancelled:
            return None
        known = self.error.outcome if isinstance(self.error, RbimError) else Outcome.NOT_SENT
        for made in self.attempts:
            if made.outcome is not None:
                known |= made.outcome
        return known


class Observer(Protocol):
    """What watches a client. Subclass it and override what is of interest; what it raises is logged and goes no further.

    Its methods are called in the task of the call, in the caller's context, and must not block. Of several observers the
    first is told first that something begins, and last that it has ended.
    """

    def call_started(self, event: CallStarted, /) -> None:
        """A call begins."""
        del event  # to mypy, a method with no statement is abstract

    def attempt_started(self, event: AttemptStarted, /) -> None:
        """An attempt begins."""
        del event  # to mypy, a method with no statement is abstract

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """An attempt has ended."""
        del event  # to mypy, a method with no statement is abstract

    def call_ended(self, event: CallEnded, /) -> None:
        """A call has ended, with all its attempts."""
        del event  # to mypy, a method with no statement is abstract


class Observers:
    """The observers of one client. What one of them raises is logged and disturbs nobody."""

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        last_first = observers[::-1]
        self._call_started = _overriding("call_started", observers)
        self._attempt_started = _overriding("attempt_started", observers)
        self._attempt_ended = _overriding("attempt_ended", last_first)
        self._call_ended = _overriding("call_ended", last_first)

    def call_started(self, **facts: Any) -> None:
        """Tell all that a call begins; ``facts`` are those of CallStarted."""
        if self._call_started:
            _tell(self._call_started, CallStarted(**facts))

    def attempt_started(self, **facts: Any) -> None:
        """Tell all that an attempt begins; ``facts`` are those of AttemptStarted."""
        if self._attempt_started:
            _tell(self._attempt_started, AttemptStarted(**facts))

    def attempt_ended(self, **facts: Any) -> None:
        """Tell all that an attempt has ended; ``facts`` are those of AttemptEnded."""
        if self._attempt_ended:
            _tell(self._attempt_ended, AttemptEnded(**facts))

    def call_ended(self, **facts: Any) -> None:
        """Tell all that a call has ended; ``facts`` are those of CallEnded."""
        if self._call_ended:
            _tell(self._call_ended, CallEnded(**facts))


def _overriding(name: str, observers: tuple[Observer, ...]) -> tuple[Callable[[Any], None], ...]:
    """Return that method of all observers that have one of their own."""
    inherited = getattr(Observer, name)
    return tuple(
        getattr(observer, name)
        for observer in observers
        if hasattr(observer, name) and getattr(type(observer), name, None) is not inherited
    )


def _tell(methods: tuple[Callable[[Any], None], ...], event: object) -> None:
    for method in methods:
        try:
            method(event)
        except Exception:
            logger.exception("an observer failed")


class LoggingObserver(Observer):
    """Writes one line per attempt (DEBUG) and one per call (INFO, or WARNING where it failed) to a standard logger.

    Each record has the same keys in ``extra``, whose values are texts, numbers, booleans and None, fit for JSON:

    =============================  ====================================================================================
    ``rbim_event``                 ``attempt`` or ``call``
    ``rbim_call``                  the call's number within the client
    ``rbim_operation``             the operation's name on the wire
    ``rbim_path``                  the path of the request, without its query; empty where none was made
    ``rbim_attempt``               the attempt's number, from 1; of a call, how many there were
    ``rbim_status``                the HTTP status of the (last) attempt
    ``rbim_code``                  the platform's code in its answer
    ``rbim_outcome``               ``not sent``, ``refused`` or ``unknown``; None where all is well
    ``rbim_error``                 the class of the error
    ``rbim_elapsed_ms``            milliseconds
    ``rbim_waited_ms``             those of a call that were spent on rates, halts and the gate; None of an attempt
    ``rbim_confirmed_by_repeat``   whether a call's answer is "it is so already", after an attempt of unknown outcome
    ``rbim_cancelled``             whether the caller cancelled the call
    =============================  ====================================================================================
    """

    def __init__(self, to: logging.Logger = logger) -> None:
        self.logger = to

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """Write how an attempt ended."""
        if self.logger.isEnabledFor(logging.DEBUG):
            made = event.attempt
            facts = {
                **_facts("attempt", event, made, made.number, made.elapsed),
                "rbim_outcome": _text(made.outcome),
                "rbim_error": made.error,
                "rbim_waited_ms": None,
                "rbim_confirmed_by_repeat": False,
                "rbim_cancelled": event.cancelled,
            }
            self._write(logging.DEBUG, facts, made.error or "ok")

    def call_ended(self, event: CallEnded, /) -> None:
        """Write how a call ended, with its last attempt's status and code."""
        level = logging.WARNING if event.error is not None else logging.INFO
        if self.logger.isEnabledFor(level):
            last = event.attempts[-1] if event.attempts else None
            error = None if event.error is None else type(event.error).__name__
            facts = {
                **_facts("call", event, last, len(event.attempts), event.elapsed),
                "rbim_outcome": _text(event.outcome),
                "rbim_error": error,
                "rbim_waited_ms": _milliseconds(event.waited),
                "rbim_confirmed_by_repeat": event.confirmed_by_repeat,
                "rbim_cancelled": event.cancelled,
            }
            known = f", outcome {event.error.outcome}" if isinstance(event.error, RbimError) else ""
            self._write(level, facts, f"{error}{known}" if error else "cancelled" if event.cancelled else "ok")

    def _write(self, level: int, facts: dict[str, Any], result: str) -> None:
        status = facts["rbim_status"]
        self.logger.log(
            level,
            "%s %s status=%s code=%s attempt=%d %.1f ms %s",
            facts["rbim_operation"],
            facts["rbim_path"],
            "-" if status is None else status,
            facts["rbim_code"] or "-",
            facts["rbim_attempt"],
            facts["rbim_elapsed_ms"],
            result,
            extra=facts,
        )


def _facts(kind: str, event: AttemptEnded | CallEnded, made: Attempt | None, number: int, elapsed: float) -> dict[str, Any]:
    """Return what the record of an attempt and that of a call tell alike."""
    return {
        "rbim_event": kind,
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
