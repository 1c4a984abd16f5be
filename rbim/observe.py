"""What a client tells those who watch: frozen facts about attempts and calls, and an observer that logs them.

No fact holds a signed URL, a header or a body.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from rbim.errors import RbimError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.message import Attempt

__all__ = ["AttemptEnded", "AttemptStarted", "CallEnded", "LoggingObserver", "Observer", "Watchers"]

logger = logging.getLogger("rbim")


@frozen(kw_only=True)
class AttemptStarted:
    """Attempt ``number`` (from 1) of call ``call`` (a number unique within the client) is handed to the transport.

    ``waited`` counts the seconds that the call has spent so far on rates, halts and the gate.
    """

    call: int
    operation: str
    path: str
    number: int
    waited: float


@frozen(kw_only=True)
class AttemptEnded:
    """An attempt ended; ``attempt`` says how."""

    call: int
    operation: str
    path: str
    attempt: Attempt


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


class Observer(Protocol):
    """What watches a client. Subclass it and override what is of interest; what it raises is logged and goes no further."""

    def attempt_started(self, event: AttemptStarted, /) -> None:
        """An attempt begins."""
        del event  # to mypy, a method with no statement is abstract

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """An attempt has ended."""
        del event  # to mypy, a method with no statement is abstract

    def call_ended(self, event: CallEnded, /) -> None:
        """A call has ended, with all its attempts."""
        del event  # to mypy, a method with no statement is abstract


class Watchers:
    """The observers of one client. What one of them raises is logged and disturbs nobody."""

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers

    def attempt_started(self, **facts: Any) -> None:
        """Tell all that an attempt begins; ``facts`` are those of AttemptStarted."""
        event = AttemptStarted(**facts)
        self._tell(lambda observer: observer.attempt_started(event))

    def attempt_ended(self, **facts: Any) -> None:
        """Tell all that an attempt has ended; ``facts`` are those of AttemptEnded."""
        event = AttemptEnded(**facts)
        self._tell(lambda observer: observer.attempt_ended(event))

    def call_ended(self, **facts: Any) -> None:
        """Tell all that a call has ended; ``facts`` are those of CallEnded."""
        event = CallEnded(**facts)
        self._tell(lambda observer: observer.call_ended(event))

    def _tell(self, how: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                how(observer)
            except Exception:
                logger.exception("an observer failed")


class LoggingObserver(Observer):
    """Writes one line per attempt (DEBUG) and one per call (INFO, or WARNING where it failed) to a standard logger.

    Each record carries its facts in ``extra``: ``rbim_operation``, ``rbim_path``, ``rbim_status``, ``rbim_code``,
    ``rbim_attempt`` and ``rbim_ms``.
    """

    def __init__(self, to: logging.Logger = logger) -> None:
        self.logger = to

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """Write operation, path without ``sig``, status, code, attempt and milliseconds."""
        made = event.attempt
        self._write(logging.DEBUG, event.operation, event.path, made, made.number, made.elapsed, made.error or "ok")

    def call_ended(self, event: CallEnded, /) -> None:
        """Write the same of the whole call."""
        last = event.attempts[-1] if event.attempts else None
        level = logging.WARNING if event.error is not None else logging.INFO
        if event.error is not None:
            known = f", outcome {event.error.outcome}" if isinstance(event.error, RbimError) else ""
            result = f"{type(event.error).__name__}{known}"
        else:
            result = "cancelled" if event.cancelled else "ok"
        self._write(level, event.operation, event.path, last, len(event.attempts), event.elapsed, result)

    def _write(  # noqa: PLR0913, PLR0917  # the facts of one line
        self, level: int, operation: str, path: str, made: Attempt | None, number: int, elapsed: float, result: str
    ) -> None:
        if not self.logger.isEnabledFor(level):
            return
        status, code = (made.status, made.code) if made is not None else (None, None)
        milliseconds = round(elapsed * 1000, 1)
        self.logger.log(
            level,
            "%s %s status=%s code=%s attempt=%d %.1f ms %s",
            operation,
            path,
            "-" if status is None else status,
            code or "-",
            number,
            milliseconds,
            result,
            extra={
                "rbim_operation": operation,
                "rbim_path": path,
                "rbim_status": status,
                "rbim_code": code,
                "rbim_attempt": number,
                "rbim_ms": milliseconds,
            },
        )
