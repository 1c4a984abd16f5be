"""Observations of a client: its calls and their attempts."""

from __future__ import annotations

import logging
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rbim.errors import Outcome, RbimError
from rbim.observers import Notifier, Observation

if TYPE_CHECKING:
    from rbim.errors import Attempt

__all__ = ["AttemptEnded", "AttemptStarted", "CallEnded", "CallStarted", "Observers"]


@frozen(kw_only=True)
class _OfCall(Observation):
    """The fields of all: the number of the call within the client, the operation on the wire, the client's name."""

    call: int
    operation: str
    client: str = ""

    @property
    def source(self) -> str:
        return f"{self.client}: " if self.client else ""


@frozen(kw_only=True)
class CallStarted(_OfCall):
    """Call ``call`` (a number unique within the client) begins; its request does not exist yet.

    ``client`` is the name of the client, in all observations; empty if it has none.
    """


@frozen(kw_only=True)
class AttemptStarted(_OfCall):
    """Attempt ``number`` (from 1) of call ``call`` is handed to the transport.

    ``waited`` is the seconds that the call has waited so far for the rate limiter, throttling and the concurrency limiter.
    ``method``, ``origin`` (scheme, host and port, with the installation's path prefix) and ``path`` are those of the
    request; ``template`` is the template of the path (``/{api_version}/Application/{app_id}/...``).
    """

    path: str
    number: int
    waited: float
    method: str
    origin: str
    template: str


@frozen(kw_only=True)
class AttemptEnded(_OfCall):
    """An attempt ended; ``attempt`` has its result."""

    LEVEL = logging.DEBUG
    ENDS = True

    path: str
    attempt: Attempt

    @property
    def cancelled(self) -> bool:
        """Whether it ended because the caller cancelled it."""
        return self.attempt.error in _CANCELLED

    def __str__(self) -> str:
        return _line(self, self.attempt, self.attempt.number, self.attempt.elapsed, self.attempt.error or "ok")

    def record(self) -> dict[str, Any]:
        """Return the fields of a record, as those of :class:`CallEnded`."""
        made = self.attempt
        return {
            **_record(self, made, made.number, made.elapsed),
            "rbim_outcome": None if made.outcome is None else made.outcome.value,
            "rbim_error": made.error,
            "rbim_waited_ms": None,
            "rbim_confirmed_by_repeat": False,
            "rbim_cancelled": self.cancelled,
        }


_CANCELLED = {"CancelledError", "Cancelled"}  # asyncio, trio


@frozen(kw_only=True)
class CallEnded(_OfCall):
    """A call ended after ``elapsed`` seconds.

    ``waited`` of them it waited for the rate limiter, throttling and the concurrency limiter. ``error`` is the exception
    that it raised, or None: an RbimError, unless a custom transport, signer or hook violates its protocol. If the caller
    cancelled the call, ``cancelled`` is set instead, and its attempts show the outcome.
    """

    LEVEL = logging.WARNING
    ENDS = True

    path: str
    attempts: tuple[Attempt, ...]
    elapsed: float
    waited: float
    error: Exception | None = None
    cancelled: bool = False
    confirmed_by_repeat: bool = False

    @property
    def level(self) -> int:
        """INFO if the call succeeded or was cancelled."""
        return logging.INFO if self.error is None else logging.WARNING

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

    def __str__(self) -> str:
        result = "cancelled" if self.cancelled else "ok"
        if self.error is not None:
            known = f", outcome {self.error.outcome}" if isinstance(self.error, RbimError) else ""
            result = f"{type(self.error).__name__}{known}"
        last = self.attempts[-1] if self.attempts else None
        return _line(self, last, len(self.attempts), self.elapsed, result)

    def record(self) -> dict[str, Any]:
        """Return the fields of a record, with the status and code of the last attempt."""
        outcome = self.outcome
        return {
            **_record(self, self.attempts[-1] if self.attempts else None, len(self.attempts), self.elapsed),
            "rbim_outcome": None if outcome is None else outcome.value,
            "rbim_error": None if self.error is None else type(self.error).__name__,
            "rbim_waited_ms": round(self.waited * 1000, 1),
            "rbim_confirmed_by_repeat": self.confirmed_by_repeat,
            "rbim_cancelled": self.cancelled,
        }


def _record(ended: AttemptEnded | CallEnded, made: Attempt | None, number: int, elapsed: float) -> dict[str, Any]:
    """Return the fields that the records of attempts and of calls have in common."""
    return {
        "rbim_observation": type(ended).__name__,
        "rbim_client": ended.client,
        "rbim_call": ended.call,
        "rbim_operation": ended.operation,
        "rbim_path": ended.path,
        "rbim_attempt": number,
        "rbim_status": None if made is None else made.status,
        "rbim_code": None if made is None else made.code,
        "rbim_elapsed_ms": round(elapsed * 1000, 1),
    }


def _line(ended: AttemptEnded | CallEnded, made: Attempt | None, number: int, elapsed: float, result: str) -> str:
    status, code = (None, None) if made is None else (made.status, made.code)
    return (
        f"{ended.operation} {ended.path} status={'-' if status is None else status} code={code or '-'} attempt={number}"
        f" {elapsed * 1000:.1f} ms {result}"
    )


class Observers(Notifier):
    """Notifies the observers of a client. It exists only if there are some: other clients do not import this module."""

    call_started = partialmethod(Notifier.notify, CallStarted)
    attempt_started = partialmethod(Notifier.notify, AttemptStarted)
    attempt_ended = partialmethod(Notifier.notify, AttemptEnded)
    call_ended = partialmethod(Notifier.notify, CallEnded)
