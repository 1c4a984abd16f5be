"""Fault injection by plan: which request or message copy gets which fault, reproducible from one seed to the byte.

A :class:`Fault` says what happens (one of the effects below) and to which requests: by operation, by the operation's values,
by count, by probability. Every fault that applies to a request adds its part to the request's :class:`Injection`. The
transport and the ASGI application carry out the injection; nothing here waits or writes.

A :class:`CopyFault` says the same of message copies: deliveries that are delayed, duplicated, reordered, tampered or stale.
The faults of a message are picked when it is sent, once for all attempts to deliver it, so that they do not depend on the
order of deliveries to different conversations.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args

from attrs import Attribute, asdict, evolve, field, fields, frozen
from cattrs.gen import make_dict_structure_fn, override

from rbim.emulator.documents import exactly, kind_of, one_of, read_document, strict_converter
from rbim.errors import InvalidRequest
from rbim.operations import catalogue
from rbim.operations.base import Operation, fields_of

if TYPE_CHECKING:
    from rbim.clock import Clock

__all__ = [
    "Code",
    "CopyEffect",
    "CopyFault",
    "CopyFaults",
    "CopyInjection",
    "CutShort",
    "Delay",
    "Duplicate",
    "DuplicateFields",
    "Effect",
    "Fault",
    "Faults",
    "Injection",
    "InvalidJson",
    "Latency",
    "Overtaken",
    "Picked",
    "Plan",
    "Refuse",
    "ResetAfter",
    "ResetBefore",
    "Selection",
    "SlowBody",
    "Stale",
    "Status",
    "Tamper",
    "Throttle",
    "copy_faults_from",
    "faults_from",
    "injection_of",
    "within",
]

F = TypeVar("F", bound="Selection")

MAX_SECONDS = 1_000_000_000
"""Seconds of a fault's times, at most: more would exceed what clocks and timestamps can hold."""

SPREADEST = 10
"""The most spread of a log-normal time: its largest values stay far below those of a float."""


@frozen
class within:  # noqa: N801  # used like a function
    """A validator of a number, or of each number in a tuple, between two bounds. None is valid."""

    low: float
    high: float = math.inf

    def __call__(self, _: object, attribute: "Attribute[Any]", value: object) -> None:
        """Raise InvalidRequest for a number that is not between the bounds."""
        numbers = cast("tuple[float | None, ...]", value if isinstance(value, tuple) else (value,))
        for number in numbers:
            if number is not None and not self.low <= number <= self.high:
                bounds = f"at least {self.low:,.15g}" if self.high == math.inf else f"{self.low:,.15g} to {self.high:,.15g}"
                raise InvalidRequest(f"{attribute.name}: must be {bounds}, not {number!r}", field=attribute.name)


@frozen(kw_only=True)
class Selection:
    """Which of the matches a fault applies to.

    Of the matches so far, ``nth`` picks some by number (from 1), ``every`` each n-th one, ``probability`` a random share.
    ``times`` ends the fault after that many.
    """

    nth: tuple[int, ...] = field(default=(), converter=tuple[int, ...], validator=within(1))
    every: int = field(default=1, validator=within(1))
    probability: float = field(default=1.0, validator=within(0, 1))
    times: int | None = field(default=None, validator=within(0))


class _Running(Generic[F]):
    """One fault of a plan with its state: counts, the times its effect remembers, and random numbers from ``seed``.

    ``matched`` counts the matches, ``done`` those that the fault happened to.
    """

    def __init__(self, fault: F, seed: str) -> None:
        self.fault = fault
        self.random = Random(seed)  # noqa: S311  # reproducible on purpose
        self.matched = 0
        self.done = 0
        self.recent = deque[float]()

    def picks(self) -> bool:
        """Count one more match and return whether the fault picks it. The caller counts ``done``."""
        fault = self.fault
        self.matched += 1
        drawn = self.random.random() < fault.probability  # drawn for every match: counts do not shift the random numbers
        picked = self.matched in fault.nth if fault.nth else self.matched % fault.every == 0
        return drawn and picked and (fault.times is None or self.done < fault.times)


class Plan(Generic[F]):
    """Faults in order. The random numbers of each come from ``seed`` and the number of faults that were added before."""

    def __init__(self, seed: str, kind: type[F]) -> None:
        self._seed = seed
        self._kind = kind
        self._running: list[_Running[F]] = []
        self._added = 0

    def add(self, *faults: F) -> None:
        """Append faults to the plan; they apply from now on. Raises InvalidRequest for anything else, such as an effect."""
        for fault in faults:
            if not isinstance(cast("object", fault), self._kind):
                name = self._kind.__name__
                raise InvalidRequest(f"faults: use {name}(effect=...), not {type(fault).__name__}", field="faults")
            self._running.append(_Running(fault, f"{self._seed}:{self._added}"))
            self._added += 1

    def remove(self, number: int) -> None:
        """Remove one fault, by its number from 1; the others keep their counts. Raises LookupError if there is none."""
        if not 1 <= number <= len(self._running):
            raise LookupError(f"there is no fault {number} in the plan, which has {len(self._running)}")
        del self._running[number - 1]

    @property
    def counts(self) -> list[tuple[int, int]]:
        """For each fault, how many matched it so far, and how many it happened to."""
        return [(running.matched, running.done) for running in self._running]

    def clear(self) -> None:
        """Empty the plan."""
        self._running.clear()
        self._added = 0

    def __iter__(self) -> Iterator[F]:
        return iter([running.fault for running in self._running])


# Plans as JSON.


def _read_plan(
    document: Any, fault: type[F], effects: Any, *, field: str, check: Callable[[F], None] = lambda _: None
) -> tuple[F, ...]:
    """Read a list of faults from JSON. The ``effect`` of each is an object with a ``kind``, from the union ``effects``.

    ``check`` may refuse a fault after it is read. Raises InvalidRequest for ``field`` that names the wrong fields.
    """
    converter = strict_converter()
    kinds = {kind_of(each): each for each in get_args(effects)}

    def read_effect(value: Any, _: Any) -> Any:  # JSON in, an effect out
        kind = one_of(str(exactly(value, dict).get("kind", "")), kinds, "kind")
        return converter.structure({name: each for name, each in value.items() if name != "kind"}, kinds[kind])

    read = make_dict_structure_fn(
        fault,
        converter,
        effect=override(struct_hook=read_effect),
        match=override(struct_hook=lambda value, _: exactly(value, dict)),  # its values are compared unchanged
    )

    def read_fault(value: Any, _: Any) -> F:  # JSON
        result = read(exactly(value, dict), fault)
        check(result)
        return result

    converter.register_structure_hook(fault, read_fault)
    faults: tuple[F, ...] = read_document(converter, document, tuple[fault, ...], field=field)  # type: ignore[valid-type]
    return faults


# Faults of requests.


@frozen(kw_only=True)
class _Injected:
    """Faults injected somewhere, each a field that differs from its default."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the faults."""
        said = {"message", "patience"}  # what a fault says, or how long it lasts
        return tuple(a.name for a in fields(type(self)) if a.name not in said and getattr(self, a.name) != a.default)


@frozen(kw_only=True)
class Injection(_Injected):
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

    seconds: float = field(validator=within(0, MAX_SECONDS))
    sigma: float = field(default=0.0, validator=within(0, SPREADEST))

    def draw(self, random: Random) -> float:
        """Return the seconds of one delay."""
        return self.seconds * math.exp(self.sigma * random.gauss(0, 1)) if self.sigma else self.seconds


@frozen
class SlowBody:
    """The answer's body takes ``seconds`` to arrive."""

    seconds: float = field(validator=within(0, MAX_SECONDS))


@frozen
class Status:
    """An HTTP status with an HTML page as the answer; no effect. ``retry_after`` is sent in whole seconds, rounded up."""

    status: int = field(validator=within(200, 599))
    retry_after: float | None = field(default=None, validator=within(0, MAX_SECONDS))


@frozen
class Code:
    """A status code of the platform as the answer; the operation has no effect."""

    code: str
    message: str = "a fault of the emulator's plan"


@frozen
class Throttle:
    """More than ``per_second`` requests in a second are answered HTTP 429, or ``code``; they have no effect."""

    per_second: int = field(validator=within(0))
    retry_after: float | None = field(default=None, validator=within(0, MAX_SECONDS))
    code: str | None = None


@frozen
class Refuse:
    """The connection is refused."""


@frozen
class ResetBefore:
    """The request arrives, the connection is reset, and the operation has no effect."""


@frozen
class ResetAfter:
    """The operation takes effect, and the connection is reset instead of an answer."""


@frozen
class CutShort:
    """The operation takes effect, and only the share ``keep`` of the answer's body is sent."""

    keep: float = field(default=0.5, validator=within(0, 1))


@frozen
class InvalidJson:
    """The operation takes effect, and the answer is not valid JSON."""


@frozen
class DuplicateFields:
    """The operation takes effect, and the answer has each field twice."""


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
    have, or is a function of the operation. The rest is a :class:`Selection`.
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


def _with_effect(effect: Effect, injection: Injection, running: _Running[Fault], now: float) -> Injection:
    """Return the injection with an effect added."""
    match effect:
        case Latency():
            return evolve(injection, delay=injection.delay + effect.draw(running.random))
        case SlowBody():
            return evolve(injection, body_time=injection.body_time + effect.seconds)
        case Status() | Code() | CutShort():  # their fields are those of an injection
            return evolve(injection, **asdict(effect))
        case Throttle():
            while running.recent and running.recent[0] <= now - 1:
                running.recent.popleft()
            if len(running.recent) < effect.per_second:
                running.recent.append(now)
                return injection
            answer = {"status": 429} if effect.code is None else {"code": effect.code, "message": "too many requests"}
            return evolve(injection, retry_after=effect.retry_after, **answer)
        case Refuse() | ResetBefore() | ResetAfter() | InvalidJson() | DuplicateFields():
            happens: dict[str, Any] = {kind_of(type(effect)): True}
            return evolve(injection, **happens)


class Faults(Plan[Fault]):
    """The plan of one emulator. The same seed, faults and requests give the same injections."""

    def __init__(self, clock: "Clock", seed: int = 0) -> None:
        super().__init__(str(seed), Fault)
        self._clock = clock

    def next_injection(self, op: Operation[Any] | None) -> Injection:
        """Count the next request and return the faults for it; None stands for one that could not be read."""
        injection = _NO_FAULTS
        now = self._clock.monotonic() if self._running else 0.0
        for running in self._running:
            if running.fault.concerns(op) and running.picks():
                applied = _with_effect(running.fault.effect, injection, running, now)
                running.done += applied is not injection  # a request that a throttle allows has no fault
                injection = applied
        return injection


_NO_FAULTS = Injection()


def faults_from(document: Any) -> tuple[Fault, ...]:
    """Read a plan from JSON: a list of ``{"effect": {"kind": "latency", "seconds": 0.1}, "operation": ..., "nth": [2]}``.

    The kinds are the effects' names in lower case (``reset_after``), ``operation`` is the wire name of an operation, and
    ``match`` maps its fields, by their Python names (``group_id``), to values. Raises InvalidRequest that names the wrong
    fields.
    """
    return _read_plan(document, Fault, Effect, field="faults", check=_known)


def _known(fault: Fault) -> None:
    """Refuse a fault for an operation or a field that is not declared."""
    operations = {entry.operation.spec.name: entry.operation for entry in catalogue.entries()}
    if fault.operation is not None:
        operations = {fault.operation: operations[one_of(fault.operation, operations, "operation")]}
    names = {a.name: a for kind in operations.values() for a in fields_of(kind)}
    for name in cast("Mapping[str, Any]", fault.match or {}):
        one_of(name, names, "match")


# Faults of message copies.

MOST_DUPLICATES = 1000  # equal deliveries that can follow an attempt; they hold up their conversation


@frozen(kw_only=True)
class CopyInjection(_Injected):
    """The faults injected into one attempt of a delivery. Times are in seconds.

    The attempt begins ``delay`` late, or after ``overtaken_by`` later messages of its conversation, for which it waits up to
    ``patience``. It is followed by ``duplicates`` more deliveries, byte for byte the same. One byte of its body, at the
    share ``tampered`` of its length, is changed after signing. It is signed with a time ``stale`` seconds in the past.
    """

    delay: float = 0.0
    overtaken_by: int = 0
    patience: float = 0.0
    duplicates: int = 0
    tampered: float | None = None
    stale: float = 0.0


@frozen
class Delay(Latency):
    """The attempt begins ``seconds`` late; with ``sigma``, log-normally distributed with ``seconds`` as the median.

    Later messages of its conversation wait for it.
    """


@frozen
class Overtaken:
    """The first attempt is made after the next ``by`` messages of its conversation, if they come in time.

    If fewer are sent, it is made ``patience`` seconds later.
    """

    by: int = field(default=1, validator=within(1))
    patience: float = field(default=60.0, validator=within(0, MAX_SECONDS))


@frozen
class Duplicate:
    """The attempt is followed by ``extra`` equal deliveries, byte for byte. Their answers have no effect."""

    extra: int = field(default=1, validator=within(1, MOST_DUPLICATES))


@frozen
class Tamper:
    """One byte of the body, at a random place, is changed after signing: its ``MD5`` no longer matches."""


@frozen
class Stale:
    """The delivery is signed correctly with a ``CurTime`` ``seconds`` in the past; below 0, in the future."""

    seconds: float = field(default=3600.0, validator=within(-MAX_SECONDS, MAX_SECONDS))


CopyEffect = Delay | Overtaken | Duplicate | Tamper | Stale

CopyMatch = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]


@frozen(kw_only=True)
class CopyFault(Selection):
    """A rule: ``effect`` happens to the messages that match all other fields.

    ``match`` maps fields of the event body, as on the wire (``{"convType": "TEAM"}``), to the values they must have, or is a
    function of the body (of an empty one if bytes are copied unchanged). ``attempts`` are the attempts to deliver the
    message to which it happens (from 1; empty: all). The rest is a :class:`Selection`.
    """

    effect: CopyEffect
    match: CopyMatch | None = field(default=None, hash=False)
    attempts: tuple[int, ...] = field(default=(1,), converter=tuple[int, ...], validator=within(1))

    def concerns(self, document: Mapping[str, Any]) -> bool:
        """Return whether the fault applies to a message with this body."""
        if self.match is None:
            return True
        if callable(self.match):
            return self.match(document)
        return all(name in document and document[name] == value for name, value in self.match.items())


Picked = tuple[CopyFault, int]
"""A fault picked for a message, and the seed of its random choices for that message."""


class CopyFaults(Plan[CopyFault]):
    """The plan of one emulator. The same seed, faults and messages give the same injections.

    A fault applies to messages sent after it was added. Changes of the plan do not affect messages that are sent already.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(f"{seed}:copy", CopyFault)

    def pick(self, document: Mapping[str, Any]) -> tuple[Picked, ...]:
        """Count the next message and return the faults picked for it, for :func:`injection_of`."""
        picked: list[Picked] = []
        for running in self._running:
            if running.fault.concerns(document) and running.picks():
                running.done += 1
                picked.append((running.fault, running.random.getrandbits(64)))
        return tuple(picked)


def injection_of(picked: tuple[Picked, ...], attempt: int) -> CopyInjection:
    """Return the faults injected into one attempt to deliver a message; always the same for the same arguments."""
    injection = _NO_COPY_FAULTS
    for fault, seed in picked:
        if fault.attempts and attempt not in fault.attempts:
            continue
        effect, random = fault.effect, Random(f"{seed}:{attempt}")  # noqa: S311  # reproducible on purpose
        match effect:
            case Delay():
                injection = evolve(injection, delay=injection.delay + effect.draw(random))
            case Overtaken():
                by = max(injection.overtaken_by, effect.by)
                injection = evolve(injection, overtaken_by=by, patience=effect.patience)
            case Duplicate():
                injection = evolve(injection, duplicates=injection.duplicates + effect.extra)
            case Tamper():
                injection = evolve(injection, tampered=random.random())
            case Stale():
                injection = evolve(injection, stale=injection.stale + effect.seconds)
    return injection


_NO_COPY_FAULTS = CopyInjection()


def copy_faults_from(document: Any) -> tuple[CopyFault, ...]:
    """Read a plan from JSON: a list of ``{"effect": {"kind": "tamper"}, "match": {"convType": "TEAM"}, "every": 10}``.

    Raises InvalidRequest that names the wrong fields.
    """
    return _read_plan(document, CopyFault, CopyEffect, field="copy_faults")
