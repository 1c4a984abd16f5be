"""What a receiver and its worker tell those who watch: frozen facts, none of which holds a token or a message.

The words of a handler's own exception are in them, whatever those quote.
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
    """A delivery was answered 200; ``new`` is False where its event was accepted before. ``elapsed`` is in seconds."""

    key: str
    new: bool
    elapsed: float


@frozen(kw_only=True)
class Refused:
    """A delivery was not accepted as authentic."""

    reason: Reason
    detail: str


@frozen(kw_only=True)
class OldToken:
    """A delivery was signed with a token that is no longer the application's first: the rotation is not over."""

    key: Key


@frozen(kw_only=True)
class Quarantined:
    """An authentic delivery was kept and will not be handled; ``problem`` says why."""

    key: str
    problem: str


@frozen(kw_only=True)
class Spooled:
    """The sink was too slow or failed (``why``). ``kept``: the spool has the delivery; otherwise it was answered 503."""

    key: str
    why: str
    kept: bool


@frozen(kw_only=True)
class Handled:
    """A handler succeeded with an event, and that was recorded. ``elapsed`` is in seconds."""

    key: str
    attempt: int
    elapsed: float


@frozen(kw_only=True)
class HandlingFailed:
    """A handler failed with an event; after ``pause`` seconds it is tried again. ``error`` is one line."""

    key: str
    attempt: int
    error: str
    pause: float


@frozen(kw_only=True)
class DeadLettered:
    """An event is among the dead letters after its last attempt."""

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
    """Writes each fact to the logger ``rbim.callbacks`` and tells it to the observers.

    What one of them raises is logged and disturbs nobody. A worker's observers are called in the worker's thread.
    """

    def __init__(self, observers: Iterable[Callable[[Observation], object]] = ()) -> None:
        self._observers = tuple(observers)

    @property
    def hears_all(self) -> bool:
        """Whether anybody hears of what goes well, too: otherwise it need not be told."""
        return bool(self._observers) or logger.isEnabledFor(logging.DEBUG)

    def tell(self, fact: Observation) -> None:
        """Tell one fact."""
        level = _LEVELS[type(fact)]
        if logger.isEnabledFor(level):
            logger.log(level, "%s", fact)
        for observer in self._observers:
            try:
                observer(fact)
            except Exception:
                logger.exception("an observer failed")
