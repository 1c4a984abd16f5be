"""Observations for the observers of a receiver and its worker: frozen, without tokens or message texts.

The text of a handler's exception is included, with whatever it quotes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rbim.callbacks.signature import Key, Reason

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
    "Spooled",
]

logger = logging.getLogger("rbim.callbacks")


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


Observation = Accepted | Refused | OldToken | Quarantined | Spooled | Handled | HandlingFailed | DeadLettered

_LEVELS: dict[type[Observation], int] = {
    Accepted: logging.DEBUG,
    Handled: logging.DEBUG,
    Refused: logging.WARNING,
    OldToken: logging.WARNING,
    Quarantined: logging.WARNING,
    Spooled: logging.WARNING,
    HandlingFailed: logging.WARNING,
    DeadLettered: logging.ERROR,
}


class Observers:
    """Logs each observation to the logger ``rbim.callbacks`` and passes it to the observers.

    An exception from an observer is logged and affects nothing else. A worker's observers are called in the worker's thread.
    """

    def __init__(self, observers: Iterable[Callable[[Observation], object]] = ()) -> None:
        self._observers = tuple(observers)

    @property
    def wants_successes(self) -> bool:
        """Whether success observations are wanted; if not, they need not be created."""
        return bool(self._observers) or logger.isEnabledFor(logging.DEBUG)

    def notify(self, observation: Observation) -> None:
        """Log one observation and pass it to each observer."""
        level = _LEVELS[type(observation)]
        if logger.isEnabledFor(level):
            logger.log(level, "%s", observation)
        for observer in self._observers:
            try:
                observer(observation)
            except Exception:
                logger.exception("an observer failed")
