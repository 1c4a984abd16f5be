"""Observers: functions that are called with observations, and the log, which is one of them.

No observation holds a signed URL, a header, a body, a token or the text of a message. The text of an exception is included,
with whatever it quotes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, cast

from attrs import fields, frozen

from rbim.validators import require_methods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

__all__ = ["Log", "LoggingObserver", "Notifier", "Observation", "Observer", "checked"]

P = ParamSpec("P")
Log: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"

logger = logging.getLogger("rbim")


@frozen(kw_only=True)
class Observation:
    """The base class of what observers are called with. Its class says what happened, its fields the rest.

    ``LEVEL``: the highest level of its record in a log; None if it is not logged. ``ENDS``: it is the end of something that
    has an observation of its start, too.
    """

    LEVEL: ClassVar[int | None] = None
    ENDS: ClassVar[bool] = False

    @property
    def level(self) -> int | None:
        """The level of this record: ``LEVEL``, or a lower one for the usual case."""
        return self.LEVEL

    @property
    def source(self) -> str:
        """The beginning of a line in a log: the name of the client or receiver, empty without a name."""
        return ""

    def following(self) -> str:
        """Return the lines that follow in a log: a traceback or a stack; empty without one."""
        return ""

    def record(self) -> dict[str, Any]:
        """Return the fields of a record, ``rbim_`` before each name: numbers, booleans and None, the rest as text."""
        found: dict[str, Any] = {"rbim_observation": type(self).__name__}
        for each in fields(type(self)):
            if each.name != "exception":
                value = getattr(self, each.name)
                plain = value is None or isinstance(value, (bool, int, float))
                found[f"rbim_{each.name}"] = value if plain else str(value)
        return found


class Observer(Protocol):
    """A function that is called with each observation of a client or receiver. Its result is ignored.

    It is called in the task and in the context of the call, delivery or handler, and must not block. Its exceptions are
    logged and go no further. Several observers are called in order, and in reverse order when something ends.

    An observer with a method ``observes(kind)``, which takes a class of observations, is called only with those for which
    it returns True. It is asked once for each class.
    """

    def __call__(self, observation: Observation, /) -> object:
        """Handle an observation."""
        ...


def checked(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """Return the observers. Raises InvalidRequest if they are no functions."""
    form = "a list of functions of an observation, such as [LoggingObserver()],"
    require_methods("observers", observers, ("__iter__",), form)
    listed = tuple(observers)
    for each in listed:
        require_methods("observers", each, ("__call__",), form)
    return listed


class LoggingObserver:
    """An observer that writes to a standard logger (default: ``rbim``).

    Of a client it logs each attempt at DEBUG, and each call at INFO, or at WARNING if it failed. A receiver has a log of its
    own (``rbim.callbacks``). Each record has the same keys in ``extra``, with texts, numbers, booleans and None as values,
    suitable for JSON; docs/observability.md lists them.
    """

    def __init__(self, to: logging.Logger = logger) -> None:
        self.logger = to

    def observes(self, kind: type[Observation], /) -> bool:
        """Return whether observations of this class are logged at any level."""
        return kind.LEVEL is not None

    def __call__(self, observation: Observation, /) -> None:
        """Log an observation with its traceback or stack."""
        level = observation.level
        if level is None or not self.logger.isEnabledFor(level):
            return
        exception: BaseException | None = getattr(observation, "exception", None)
        following = "" if exception is not None else observation.following()
        args = (observation.source, observation, following and f"\n{following}")
        self.logger.log(level, "%s%s%s", *args, exc_info=exception, extra=observation.record())


class Notifier:
    """Calls the observers of one client or receiver. An exception of an observer is logged and affects nothing else.

    ``source``: fields that all observations get, such as the name of the receiver.
    """

    def __init__(
        self,
        observers: tuple[Observer, ...],
        log: Log = logger,
        source: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._source = source or {}
        self._observers = observers
        self._interested: dict[type[Observation], tuple[tuple[Observer, ...], tuple[logging.Logger, ...]]] = {}

    def wants(self, kind: type[Observation]) -> bool:
        """Return whether an observation of this class is used by an observer, or by a log at its present level."""
        return bool(self.wanting(kind))

    def wanting(self, kind: type[Observation]) -> tuple[Observer, ...]:
        """Return the observers that use an observation of this class now; none if all are logs at a higher level."""
        observers, logs = self._interested.get(kind) or self._of(kind)
        if not logs:
            return observers
        for log in logs:
            if log.isEnabledFor(kind.LEVEL or 0):
                return observers
        return ()

    def notify(self, kind: Callable[P, Observation], *args: P.args, **fields: P.kwargs) -> None:
        """Call the observers with an observation of this class and these fields, which is made only if one uses it."""
        observers = self.wanting(cast("type[Observation]", kind))
        if observers:
            make: Any = kind
            self.publish(observers, make(*args, **self._source, **fields))

    def publish(self, observers: tuple[Observer, ...], observation: Observation) -> None:
        """Call these observers with an observation."""
        for observer in observers:
            try:
                observer(observation)
            except Exception:
                self.log.exception("an observer failed")

    def _of(self, kind: type[Observation]) -> tuple[tuple[Observer, ...], tuple[logging.Logger, ...]]:
        """Return the observers of a class in the order of their calls, and their loggers if all of them are logs."""
        found = [each for each in self._observers if _observes(each, kind)]
        logs = tuple(each.logger for each in found if isinstance(each, LoggingObserver))
        calls = tuple(each.__call__ for each in found)  # a bound method is called faster than its object
        kept = calls[::-1] if kind.ENDS else calls, logs if len(logs) == len(found) else ()
        self._interested[kind] = kept
        return kept


def _observes(observer: Observer, kind: type[Observation]) -> bool:
    observes = getattr(observer, "observes", None)
    return observes is None or bool(observes(kind))
