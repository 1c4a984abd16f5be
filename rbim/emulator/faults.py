"""Trouble by plan: which request meets which fault, decided from one seed and reproducible to the byte.

A :class:`Fault` says what happens (one of the effects below) and to which requests: by operation, by the operation's values,
by count, by chance. Every fault that applies to a request adds its part to the request's :class:`Verdict`. The doors carry
the verdict out; nothing here waits or writes.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, fields, frozen
from cattrs import Converter, transform_error
from cattrs.gen import make_dict_structure_fn, override
from cattrs.strategies import configure_tagged_union

from rbim.errors import InvalidRequest
from rbim.operation import Operation

if TYPE_CHECKING:
    from rbim.message import Clock

__all__ = [
    "Code",
    "CutShort",
    "DuplicateFields",
    "Effect",
    "Fault",
    "Faults",
    "InvalidJson",
    "Latency",
    "Refuse",
    "ResetAfter",
    "ResetBefore",
    "SlowBody",
    "Status",
    "Throttle",
    "Verdict",
    "faults_from",
]


@frozen(kw_only=True)
class Verdict:
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
        return tuple(a.name for a in fields(Verdict) if getattr(self, a.name) != a.default and a.name != "message")

    @property
    def spares_the_state(self) -> bool:
        """Whether the operation takes no effect."""
        return self.refuse or self.reset_before or self.status is not None or self.code is not None


@frozen
class Latency:
    """The answer takes ``seconds``; with ``sigma`` they are the median of a log-normal distribution of that spread."""

    seconds: float
    sigma: float = 0.0

    def apply(self, verdict: Verdict, chance: Random, _now: float, /) -> Verdict:
        """Add to the delay."""
        drawn = self.seconds * math.exp(self.sigma * chance.gauss(0, 1)) if self.sigma else self.seconds
        return evolve(verdict, delay=verdict.delay + drawn)


@frozen
class SlowBody:
    """The answer's body dribbles over ``seconds``."""

    seconds: float

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
        """Add to the time that the body takes."""
        return evolve(verdict, body_time=verdict.body_time + self.seconds)


@frozen
class Status:
    """An HTTP status with a page instead of an answer; nothing is done. ``retry_after`` is sent in seconds."""

    status: int
    retry_after: float | None = None

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
        """Answer so."""
        return evolve(verdict, status=self.status, retry_after=self.retry_after)


@frozen
class Code:
    """A status code of the platform's instead of an answer; nothing is done."""

    code: str
    message: str = "a fault of the emulator's plan"

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
        """Answer so."""
        return evolve(verdict, code=self.code, message=self.message)


@frozen
class Throttle:
    """More than ``per_second`` requests in a second are answered HTTP 429, or with ``code``; nothing is done to them."""

    per_second: int
    retry_after: float | None = None
    code: str | None = None
    _recent: deque[float] = field(factory=deque[float], init=False, eq=False, repr=False)

    def apply(self, verdict: Verdict, _chance: Random, now: float, /) -> Verdict:
        """Count the request; answer so where it is one too many."""
        while self._recent and self._recent[0] <= now - 1:
            self._recent.popleft()
        if len(self._recent) < self.per_second:
            self._recent.append(now)
            return verdict
        if self.code is not None:
            return evolve(verdict, code=self.code, message="too many requests", retry_after=self.retry_after)
        return evolve(verdict, status=429, retry_after=self.retry_after)


@frozen
class Refuse:
    """No connection comes about."""

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
        """Refuse."""
        return evolve(verdict, refuse=True)


@frozen
class ResetBefore:
    """The request arrives, the connection is reset, and nothing is done."""

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
        """Reset."""
        return evolve(verdict, reset_before=True)


@frozen
class ResetAfter:
    """The operation takes effect, and the connection is reset instead of answered."""

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
        """Reset."""
        return evolve(verdict, reset_after=True)


@frozen
class CutShort:
    """The operation takes effect, and only the share ``keep`` of the answer's body is sent."""

    keep: float = 0.5

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
        """Cut."""
        return evolve(verdict, keep=self.keep)


@frozen
class InvalidJson:
    """The operation takes effect, and the answer is no JSON."""

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
        """Spoil."""
        return evolve(verdict, invalid_json=True)


@frozen
class DuplicateFields:
    """The operation takes effect, and each field of the answer is there twice."""

    def apply(self, verdict: Verdict, _chance: Random, _now: float, /) -> Verdict:
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


@frozen(kw_only=True)
class Fault:
    """``effect`` happens to the requests that match all of the rest.

    ``operation`` is an operation class or its wire name; ``match`` maps fields of the operation to the values they must
    have, or is a function of the operation. Of the requests that match so far, ``nth`` picks some by number (from 1),
    ``every`` only each so many, ``probability`` a share by chance. ``times`` ends the fault after so many.
    """

    effect: Effect
    operation: str | None = field(default=None, converter=_name)
    match: Mapping[str, Any] | Callable[[Operation[Any]], bool] | None = field(default=None, hash=False)
    nth: tuple[int, ...] = ()
    every: int = 1
    probability: float = 1.0
    times: int | None = None

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
        return all(getattr(op, name, None) == value for name, value in self.match.items())


class _Running:
    """One fault of a plan, with its counts and its own stream of chance."""

    def __init__(self, fault: Fault, seed: str) -> None:
        self.fault = fault
        self.chance = Random(seed)  # noqa: S311  # reproducible on purpose
        self.matched = 0
        self.done = 0

    def apply(self, verdict: Verdict, op: Operation[Any] | None, now: float) -> Verdict:
        fault = self.fault
        if not fault.concerns(op):
            return verdict
        self.matched += 1
        lucky = self.chance.random() < fault.probability  # drawn for each that matches: counts do not shift the stream
        picked = self.matched in fault.nth if fault.nth else self.matched % fault.every == 0
        if not (lucky and picked) or (fault.times is not None and self.done >= fault.times):
            return verdict
        self.done += 1
        return fault.effect.apply(verdict, self.chance, now)


class Faults:
    """The plan of one emulator. The same seed, faults and requests give the same verdicts."""

    def __init__(self, clock: "Clock", seed: int = 0) -> None:
        self._clock = clock
        self._seed = seed
        self._running: list[_Running] = []

    def add(self, *faults: Fault) -> None:
        """Put faults at the end of the plan; they count from now on."""
        for fault in faults:
            self._running.append(_Running(fault, f"{self._seed}:{len(self._running)}"))

    def clear(self) -> None:
        """Empty the plan."""
        self._running.clear()

    def __iter__(self) -> Iterator[Fault]:
        return iter([running.fault for running in self._running])

    def judge(self, op: Operation[Any] | None) -> Verdict:
        """Return what is to happen to the next request; None stands for one that could not be read."""
        verdict = _NOTHING
        if self._running:
            now = self._clock.monotonic()
            for running in self._running:
                verdict = running.apply(verdict, op, now)
        return verdict


_NOTHING = Verdict()


def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True)
    configure_tagged_union(Effect, converter, tag_name="kind", tag_generator=lambda kind: _snake(kind.__name__))
    as_it_is = override(struct_hook=lambda value, _: value)  # its values are compared with those of operations
    converter.register_structure_hook(Fault, make_dict_structure_fn(Fault, converter, match=as_it_is))
    return converter


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def faults_from(document: Any) -> tuple[Fault, ...]:
    """Read a plan from JSON: a list of ``{"effect": {"kind": "latency", "seconds": 0.1}, "operation": ..., "nth": [2]}``.

    Raises InvalidRequest that says what is wrong and where.
    """
    try:
        return _converter().structure(document, tuple[Fault, ...])
    except Exception as error:
        raise InvalidRequest("; ".join(transform_error(error)), field="faults") from None
