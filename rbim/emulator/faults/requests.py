"""Faults of requests: which request gets which fault, reproducible from one seed to the byte.

A :class:`Fault` says what happens (one of the effects below) and to which requests: by operation, by the operation's values,
by count, by probability. Every fault that applies to a request adds its part to the request's :class:`Injection`. The
transport and the ASGI application carry out the injection; nothing here waits or writes.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve, field, fields, frozen

from rbim.emulator.faults.plan import LONGEST, SPREADEST, Plan, Running, Selection, choice, kinds_of, read_plan, within
from rbim.operations import catalogue
from rbim.operations.base import Operation, fields_of

if TYPE_CHECKING:
    from rbim.clock import Clock

__all__ = [
    "Code",
    "CutShort",
    "DuplicateFields",
    "Effect",
    "Fault",
    "Faults",
    "Injection",
    "InvalidJson",
    "Latency",
    "Refuse",
    "ResetAfter",
    "ResetBefore",
    "SlowBody",
    "Status",
    "Throttle",
    "faults_from",
]


@frozen(kw_only=True)
class Injection:
    """The faults injected into one request. Times are in seconds.

    ``delay`` passes before the first byte of the answer, ``body_time`` between its head and its end. ``refuse``: no
    connection. ``reset_before`` and ``reset_after``: the connection is reset before or after the operation takes effect.
    With ``status`` or ``code`` the platform answers with it, and the operation has no effect. ``keep`` is the share of the
    answer's bytes that is sent before the connection is closed.
    """

    delay: float = 0.0
    body_time: float = 0.0
    refuse: bool = False
    reset_before: bool = False
    reset_after: bool = False
    status: int | None = None
    code: str | None = None
    message: str = ""
    retry_after: float | None = None
    keep: float | None = None
    invalid_json: bool = False
    duplicate_fields: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, other than ``message``, that differ from their defaults."""
        return tuple(a.name for a in fields(Injection) if getattr(self, a.name) != a.default and a.name != "message")

    @property
    def prevents_effect(self) -> bool:
        """Whether the operation has no effect."""
        return self.refuse or self.reset_before or self.status is not None or self.code is not None

    @property
    def prevents_code(self) -> bool:
        """Whether the platform produces no code, neither its own nor the plan's."""
        return self.refuse or self.reset_before or self.status is not None


@frozen
class Latency:
    """The answer takes ``seconds``; with ``sigma``, log-normally distributed with ``seconds`` as the median.

    ``sigma`` is the spread (0: always ``seconds``).
    """

    seconds: float = field(validator=within(0, LONGEST))
    sigma: float = field(default=0.0, validator=within(0, SPREADEST))

    def apply(self, injection: Injection, running: "_Running", _now: float, /) -> Injection:
        """Add to the delay."""
        drawn = self.seconds * math.exp(self.sigma * running.random.gauss(0, 1)) if self.sigma else self.seconds
        return evolve(injection, delay=injection.delay + drawn)


@frozen
class SlowBody:
    """The answer's body takes ``seconds`` to arrive."""

    seconds: float = field(validator=within(0, LONGEST))

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Add to the duration of the body."""
        return evolve(injection, body_time=injection.body_time + self.seconds)


@frozen
class Status:
    """An HTTP status with an HTML page as the answer; no effect. ``retry_after`` is sent in whole seconds, rounded up."""

    status: int = field(validator=within(200, 599))
    retry_after: float | None = field(default=None, validator=within(0, LONGEST))

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Set the status of the answer."""
        return evolve(injection, status=self.status, retry_after=self.retry_after)


@frozen
class Code:
    """A status code of the platform as the answer; the operation has no effect."""

    code: str
    message: str = "a fault of the emulator's plan"

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Set the code of the answer."""
        return evolve(injection, code=self.code, message=self.message)


@frozen
class Throttle:
    """More than ``per_second`` requests in a second are answered HTTP 429, or ``code``; they have no effect."""

    per_second: int = field(validator=within(0))
    retry_after: float | None = field(default=None, validator=within(0, LONGEST))
    code: str | None = None

    def apply(self, injection: Injection, running: "_Running", now: float, /) -> Injection:
        """Count the request, and throttle it if it is over the limit."""
        while running.recent and running.recent[0] <= now - 1:
            running.recent.popleft()
        if len(running.recent) < self.per_second:
            running.recent.append(now)
            return injection
        if self.code is not None:
            return evolve(injection, code=self.code, message="too many requests", retry_after=self.retry_after)
        return evolve(injection, status=429, retry_after=self.retry_after)


@frozen
class Refuse:
    """The connection is refused."""

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Refuse the connection."""
        return evolve(injection, refuse=True)


@frozen
class ResetBefore:
    """The request arrives, the connection is reset, and the operation has no effect."""

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Reset the connection before the effect."""
        return evolve(injection, reset_before=True)


@frozen
class ResetAfter:
    """The operation takes effect, and the connection is reset instead of an answer."""

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Reset the connection after the effect."""
        return evolve(injection, reset_after=True)


@frozen
class CutShort:
    """The operation takes effect, and only the share ``keep`` of the answer's body is sent."""

    keep: float = field(default=0.5, validator=within(0, 1))

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Set the share of the body that is sent."""
        return evolve(injection, keep=self.keep)


@frozen
class InvalidJson:
    """The operation takes effect, and the answer is not valid JSON."""

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Make the answer invalid."""
        return evolve(injection, invalid_json=True)


@frozen
class DuplicateFields:
    """The operation takes effect, and the answer has each field twice."""

    def apply(self, injection: Injection, _running: "_Running", _now: float, /) -> Injection:
        """Duplicate the fields."""
        return evolve(injection, duplicate_fields=True)


Effect = (
    Latency
    | SlowBody
    | Status
    | Code
    | Throttle
    | Refuse
    | ResetBefore
    | ResetAfter
    | CutShort
    | InvalidJson
    | DuplicateFields
)


def _name(operation: str | type[Operation[Any]] | None) -> str | None:
    return operation if operation is None or isinstance(operation, str) else operation.spec.name


Match = Mapping[str, Any] | Callable[[Operation[Any]], bool]


def _comparable(match: Match | None) -> Match | None:
    """Convert lists, as in JSON, to tuples, as in operations."""
    if match is None or callable(match):
        return match
    return {name: tuple(cast("list[object]", value)) if isinstance(value, list) else value for name, value in match.items()}


@frozen(kw_only=True)
class Fault(Selection):
    """A rule: ``effect`` happens to the requests that match all other fields.

    ``operation`` is an operation class or its wire name; ``match`` maps fields of the operation to the values they must
    have, or is a function of the operation. Of the requests that match so far, ``nth`` picks some by number (from 1),
    ``every`` each n-th one, ``probability`` a random share. ``times`` ends the fault after that many.
    """

    effect: Effect
    operation: str | None = field(default=None, converter=_name)
    match: Match | None = field(default=None, converter=_comparable, hash=False)

    def concerns(self, op: Operation[Any] | None) -> bool:
        """Return whether the fault applies to this operation (None: a request that could not be read)."""
        if self.operation is not None and (op is None or op.spec.name != self.operation):
            return False
        if self.match is None:
            return True
        if op is None:
            return False
        if callable(self.match):
            return self.match(op)
        return all(getattr(op, name, _ABSENT) == value for name, value in self.match.items())


_ABSENT = object()


_Running = Running[Fault]


class Faults(Plan[Fault]):
    """The plan of one emulator. The same seed, faults and requests give the same injections."""

    def __init__(self, clock: "Clock", seed: int = 0) -> None:
        super().__init__(str(seed))
        self._clock = clock

    def next_injection(self, op: Operation[Any] | None) -> Injection:
        """Count the next request and return the faults for it; None stands for one that could not be read."""
        injection = _NO_FAULTS
        now = self._clock.monotonic() if self._running else 0.0
        for running in self._running:
            if running.fault.concerns(op) and running.picks():
                applied = running.fault.effect.apply(injection, running, now)
                running.done += applied is not injection  # a request that a throttle allows has no fault
                injection = applied
        return injection


_NO_FAULTS = Injection()


KINDS: Mapping[str, type[Any]] = kinds_of(Effect)


def faults_from(document: Any) -> tuple[Fault, ...]:
    """Read a plan from JSON: a list of ``{"effect": {"kind": "latency", "seconds": 0.1}, "operation": ..., "nth": [2]}``.

    The kinds are the effects' names in lower case (``reset_after``), ``operation`` is the wire name of an operation, and
    ``match`` maps its fields, by their Python names (``group_id``), to values. Raises InvalidRequest that names the wrong
    fields.
    """
    return read_plan(document, Fault, Effect, field="faults", check=_known)


def _known(fault: Fault) -> None:
    """Refuse a fault for an operation or a field that is not declared."""
    operations = {entry.operation.spec.name: entry.operation for entry in catalogue.entries()}
    if fault.operation is not None:
        operations = {fault.operation: choice("operation", fault.operation, operations)}
    names = {a.name: a for kind in operations.values() for a in fields_of(kind)}
    for name in cast("Mapping[str, Any]", fault.match or {}):
        choice("match", name, names)
