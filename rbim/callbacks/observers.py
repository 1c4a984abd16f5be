"""Observations for the observers of a receiver and its worker: frozen, without tokens or message texts.

The text of a handler's exception is included, with whatever it quotes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from attrs import frozen

from rbim.callbacks.signature import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rbim.callbacks.signature import Key

__all__ = [
    "Accepted",
    "DeadLettered",
    "Handled",
    "HandlingFailed",
    "Observation",
    "Observers",
    "OldToken",
    "Quarantined",
    "Refused",
    "Skewed",
    "Spooled",
]

logger = logging.getLogger("rbim.callbacks")

SKEW_LOG_PAUSE = 60.0
"""Seconds between two records on skewed deliveries, at least: a wrong clock affects every delivery."""


@frozen(kw_only=True)
class Accepted:
    """A delivery was answered 200; ``new`` is False if its event was accepted before. ``elapsed`` is in seconds."""

    key: str
    new: bool
    elapsed: float


@frozen(kw_only=True)
class Refused:
    """A delivery was refused; ``detail`` explains the ``reason`` without secrets."""

    reason: Reason
    detail: str


@frozen(kw_only=True)
class Skewed:
    """The time of an authentic delivery is outside the limits: one of the two clocks is wrong, or it was held up.

    ``skew`` is the seconds by which this machine's clock is ahead of the delivery's ``CurTime`` (negative: behind it).
    ``accepted`` is whether the delivery passed this check all the same; if not, a :class:`Refused` follows.
    """

    skew: float
    accepted: bool

    def __str__(self) -> str:
        direction = "ahead of" if self.skew > 0 else "behind"
        result = "accepted" if self.accepted else "refused"
        return (
            f"{result} for its time: this machine's clock is {abs(self.skew):.1f} s {direction} the CurTime of an authentic"
            " delivery; check this machine's clock"
        )


@frozen(kw_only=True)
class OldToken:
    """A delivery was signed with an older token of the application: the token rotation is not finished."""

    key: Key


@frozen(kw_only=True)
class Quarantined:
    """An authentic delivery is stored but will not be handled; ``problem`` is the reason."""

    key: str
    problem: str


@frozen(kw_only=True)
class Spooled:
    """The sink was too slow or failed (``why``). ``kept``: the spool stored the delivery; otherwise the answer was 503."""

    key: str
    why: str
    kept: bool


@frozen(kw_only=True)
class Handled:
    """A handler succeeded, and the success is recorded. ``elapsed`` is in seconds."""

    key: str
    attempt: int
    elapsed: float


@frozen(kw_only=True)
class HandlingFailed:
    """A handler failed; the next attempt follows after ``pause`` seconds. ``error`` is one line."""

    key: str
    attempt: int
    error: str
    pause: float


@frozen(kw_only=True)
class DeadLettered:
    """An event became a dead letter after its last attempt. ``error`` is one line."""

    key: str
    attempt: int
    error: str


Observation = Accepted | Refused | Skewed | OldToken | Quarantined | Spooled | Handled | HandlingFailed | DeadLettered

_LEVELS: dict[type[Observation], int] = {
    Accepted: logging.DEBUG,
    Handled: logging.DEBUG,
    Refused: logging.WARNING,
    Skewed: logging.WARNING,
    OldToken: logging.WARNING,
    Quarantined: logging.WARNING,
    Spooled: logging.WARNING,
    HandlingFailed: logging.WARNING,
    DeadLettered: logging.ERROR,
}


class Observers:
    """Logs each observation to the logger ``rbim.callbacks`` and passes it to the observers.

    An exception from an observer is logged and affects nothing else. A worker's observers are called in the worker's thread.
    Of :class:`Skewed`, one record a minute is logged, with the number of those left out; a refusal for the time alone is
    logged at DEBUG beside it. Observers get all of them. ``monotonic`` returns seconds.
    """

    def __init__(
        self,
        observers: Iterable[Callable[[Observation], object]] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observers = tuple(observers)
        self._monotonic = monotonic
        self._skew_logged: float | None = None
        self._skews_left_out = 0

    @property
    def wants_successes(self) -> bool:
        """Whether success observations are wanted; if not, they need not be created."""
        return bool(self._observers) or logger.isEnabledFor(logging.DEBUG)

    def notify(self, observation: Observation) -> None:
        """Log one observation and pass it to each observer."""
        if isinstance(observation, Skewed):
            self._log_skew(observation)
        elif logger.isEnabledFor(level := _level(observation)):
            logger.log(level, "%s", observation)
        for observer in self._observers:
            try:
                observer(observation)
            except Exception:
                logger.exception("an observer failed")

    def _log_skew(self, skewed: Skewed) -> None:
        now = self._monotonic()
        if self._skew_logged is not None and now - self._skew_logged < SKEW_LOG_PAUSE:
            self._skews_left_out += 1
            return
        logger.log(_level(skewed), "%s (and %d more since the last record)", skewed, self._skews_left_out)
        self._skew_logged, self._skews_left_out = now, 0


def _level(observation: Observation) -> int:
    if isinstance(observation, Refused) and observation.reason in (Reason.STALE, Reason.FUTURE):
        return logging.DEBUG  # Skewed is logged instead
    return _LEVELS[type(observation)]
