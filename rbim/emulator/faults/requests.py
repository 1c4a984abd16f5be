"""Trouble by plan: which request meets which fault, decided from one seed and reproducible to the byte.

A :class:`Fault` says what happens (one of the effects below) and to which requests: by operation, by the operation's values,
by count, by chance. Every fault that applies to a request adds its part to the request's :class:`Injection`. The doors carry
the verdict out; nothing here waits or writes.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve, field, fields, frozen

from rbim.emulator.faults.plan import Plan, Running, Selection, choice, kinds_of, read_plan, within
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
    """What is to happen to one request. Times are seconds.

    ``delay`` passes before the answer's first byte, ``body_time`` between its head and its end. ``refuse``: no connection.
    ``reset_before`` and ``reset_after``: the connection is reset before or after the operation took effect. With ``status``
    or ``code`` the platform answers so and does nothing. ``keep`` is the share of the answer's bytes that is sent before
    the connection is closed.
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
        """The names of what is out of the ordinary."""
        return tuple(a.name for a in fields(Injection) if getattr(self, a.name) != a.default and a.name != "message")

    @property
    def spares_the_state(self) -> bool:
        """Whether the operation takes no effect."""
        return self.refuse or self.reset_before or self.status is not None or self.code is not None

    @property
    def leaves_no_code(self) -> bool:
        """Whether the platform gets to answer with no code, neither of its own nor of the plan."""
        return self.refuse or self.reset_before or self.status is not None


@frozen
class Latency:
    """The answer takes ``seconds``; with ``sigma`` they are the median of a log-normal distribution of that spread."""

    seconds: float = field(validator=within(0))
    sigma: float = field(default=0.0, validator=within(0))

    def apply(self, verdict: Injection, run: "_Running", _now: float, /) -> Injection:
        """Add to the delay."""
        drawn = self.seconds * math.exp(self.sigma * run.chance.gauss(0, 1)) if self.sigma else self.seconds
        return evolve(verdict, delay=verdict.delay + drawn)


@frozen
class SlowBody:
    """The answer's body dribbles over ``seconds``."""

    seconds: float = field(validator=within(0))

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Add to the time that the body takes."""
        return evolve(verdict, body_time=verdict.body_time + self.seconds)


@frozen
class Status:
    """An HTTP status with a page instead of an answer; nothing is done. ``retry_after`` is sent in whole seconds."""

    status: int = field(validator=within(200, 599))
    retry_after: float | None = field(default=None, validator=within(0))

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Answer so."""
        return evolve(verdict, status=self.status, retry_after=self.retry_after)


@frozen
class Code:
    """A status code of the platform's instead of an answer; nothing is done."""

    code: str
    message: str = "a fault of the emulator's plan"

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Answer so."""
        return evolve(verdict, code=self.code, message=self.message)


@frozen
class Throttle:
    """More than ``per_second`` requests in a second are answered HTTP 429, or with ``code``; nothing is done to them."""

    per_second: int = field(validator=within(0))
    retry_after: float | None = field(default=None, validator=within(0))
    code: str | None = None

    def apply(self, verdict: Injection, run: "_Running", now: float, /) -> Injection:
        """Count the request; answer so where it is one too many."""
        while run.recent and run.recent[0] <= now - 1:
            run.recent.popleft()
        if len(run.recent) < self.per_second:
            run.recent.append(now)
            return verdict
        if self.code is not None:
            return evolve(verdict, code=self.code, message="too many requests", retry_after=self.retry_after)
        return evolve(verdict, status=429, retry_after=self.retry_after)


@frozen
class Refuse:
    """No connection comes about."""

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Refuse."""
        return evolve(verdict, refuse=True)


@frozen
class ResetBefore:
    """The request arrives, the connection is reset, and nothing is done."""

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Reset."""
        return evolve(verdict, reset_before=True)


@frozen
class ResetAfter:
    """The operation takes effect, and the connection is reset instead of answered."""

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Reset."""
        return evolve(verdict, reset_after=True)


@frozen
class CutShort:
    """The operation takes effect, and only the share ``keep`` of the answer's body is sent."""

    keep: float = field(default=0.5, validator=within(0, 1))

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Cut."""
        return evolve(verdict, keep=self.keep)


@frozen
class InvalidJson:
    """The operation takes effect, and the answer is no JSON."""

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Spoil."""
        return evolve(verdict, invalid_json=True)


@frozen
class DuplicateFields:
    """The operation takes effect, and each field of the answer is there twice."""

    def apply(self, verdict: Injection, _run: "_Running", _now: float, /) -> Injection:
        """Double."""
        return evolve(verdict, duplicate_fields=True)


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
    """Turn lists, which JSON has, into tuples, which operations have."""
    if match is None or callable(match):
        return match
    return {name: tuple(cast("list[object]", value)) if isinstance(value, list) else value for name, value in match.items()}


@frozen(kw_only=True)
class Fault(Selection):
    """``effect`` happens to the requests that match all of the rest.

    ``operation`` is an operation class or its wire name; ``match`` maps fields of the operation to the values they must
    have, or is a function of the operation. Of the requests that match so far, ``nth`` picks some by number (from 1),
    ``every`` only each so many, ``probability`` a share by chance. ``times`` ends the fault after so many.
    """

    effect: Effect
    operation: str | None = field(default=None, converter=_name)
    match: Match | None = field(default=None, converter=_comparable, hash=False)

    def concerns(self, op: Operation[Any] | None) -> bool:
        """Tell whether the fault is about this operation (None: one that could not be read)."""
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
    """The plan of one emulator. The same seed, faults and requests give the same verdicts."""

    def __init__(self, clock: "Clock", seed: int = 0) -> None:
        super().__init__(str(seed))
        self._clock = clock

    def judge(self, op: Operation[Any] | None) -> Injection:
        """Return what is to happen to the next request; None stands for one that could not be read."""
        verdict = _NOTHING
        now = self._clock.monotonic() if self._running else 0.0
        for run in self._running:
            if run.fault.concerns(op) and run.picks():
                judged = run.fault.effect.apply(verdict, run, now)
                run.done += judged is not verdict  # a request that a throttle lets pass met no fault
                verdict = judged
        return verdict


_NOTHING = Injection()


KINDS: Mapping[str, type[Any]] = kinds_of(Effect)


def faults_from(document: Any) -> tuple[Fault, ...]:
    """Read a plan from JSON: a list of ``{"effect": {"kind": "latency", "seconds": 0.1}, "operation": ..., "nth": [2]}``.

    The kinds are the effects' names in lower case (``reset_after``), ``operation`` is the wire's name of one, and ``match``
    maps its fields, as Python writes them (``group_id``), to values. Raises InvalidRequest that says what is wrong and
    where.
    """
    return read_plan(document, Fault, Effect, field="faults", check=_known)


def _known(fault: Fault) -> None:
    """Refuse a fault about an operation, or about a field, that nobody has declared."""
    operations = {entry.operation.spec.name: entry.operation for entry in catalogue.entries()}
    if fault.operation is not None:
        operations = {fault.operation: choice("operation", fault.operation, operations)}
    names = {a.name: a for kind in operations.values() for a in fields_of(kind)}
    for name in cast("Mapping[str, Any]", fault.match or {}):
        choice("match", name, names)
