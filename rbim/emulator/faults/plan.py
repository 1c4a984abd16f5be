"""The fault plan for requests and for copies: which of many a fault applies to, and how a plan is read from JSON."""

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Generic, TypeVar, cast, get_args

from attrs import Attribute, field, frozen
from cattrs import Converter, transform_error
from cattrs.gen import make_dict_structure_fn, override
from cattrs.strategies import configure_tagged_union
from cattrs.v import format_exception

from rbim.errors import InvalidRequest

__all__ = ["LONGEST", "SPREADEST", "Plan", "Running", "Selection", "choice", "in_words", "kinds_of", "read_plan", "within"]

F = TypeVar("F", bound="Selection")

LONGEST = 1_000_000_000
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


class Running(Generic[F]):
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

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._running: list[Running[F]] = []
        self._added = 0

    def add(self, *faults: F) -> None:
        """Append faults to the plan; they apply from now on."""
        for fault in faults:
            self._running.append(Running(fault, f"{self._seed}:{self._added}"))
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


def kinds_of(effects: Any) -> dict[str, type[Any]]:
    """Return the classes of a union of effects by their names in a document: ``ResetAfter`` is ``reset_after``."""
    return {_kind(effect): effect for effect in get_args(effects)}


def _kind(effect: type[Any]) -> str:
    return re.sub(r"\B([A-Z])", r"_\1", effect.__name__).lower()


def read_plan(
    document: Any, fault: type[F], effects: Any, *, field: str, check: Callable[[F], None] = lambda _: None
) -> tuple[F, ...]:
    """Read a list of faults from JSON. The ``effect`` of each is an object with a ``kind``, from the union ``effects``.

    ``check`` may refuse a fault after it is read. Raises InvalidRequest for ``field`` that names the wrong fields.
    """
    converter = Converter(forbid_extra_keys=True)
    for kind in _EXACT:
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook_func(
        lambda kind: kind == tuple[int, ...],
        lambda value, _: tuple(_exactly(each, int) for each in _checked(list, value)),  # cattrs would split a string
    )
    configure_tagged_union(effects, converter, tag_generator=_kind, tag_name="kind")
    read_tagged = converter.get_structure_hook(effects)
    kinds = kinds_of(effects)

    def read_effect(value: Any, _: Any) -> Any:  # JSON in, an effect out
        choice("kind", str(_checked(dict, value).get("kind", "")), kinds)  # cattrs would not list the valid kinds
        return read_tagged(value, effects)

    read = make_dict_structure_fn(
        fault,
        converter,
        effect=override(struct_hook=read_effect),
        match=override(struct_hook=lambda value, _: _checked(dict, value)),  # its values are compared unchanged
    )

    def read_fault(value: Any, _: Any) -> F:  # JSON
        result = read(_checked(dict, value), fault)
        check(result)
        return result

    converter.register_structure_hook(fault, read_fault)
    try:
        return converter.structure(_checked(list, document), tuple[fault, ...])  # type: ignore[valid-type]
    except Exception as error:  # any error in a document
        raise InvalidRequest("; ".join(transform_error(error, format_exception=in_words)), field=field) from None


def choice(field: str, name: str, choices: Mapping[str, Any]) -> Any:
    """Return the value for the name. Raises InvalidRequest that lists the valid names."""
    if name not in choices:
        raise InvalidRequest(f"{field}: {name!r} is not one of {', '.join(choices)}")
    return choices[name]


def _checked(kind: type[Any], document: Any) -> Any:  # JSON
    if not isinstance(document, kind):
        expected = "an object" if kind is dict else "a list"
        raise InvalidRequest(f"must be {expected}, not {type(document).__name__}")
    return document


_EXACT: Mapping[type[Any], str] = {str: "a text", int: "a whole number", float: "a number"}


def _exactly(value: Any, kind: type[Any]) -> Any:  # JSON
    """Return a value of exactly this type: cattrs would make a text of null, and a whole number of 1.9 or true."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise InvalidRequest(f"must be {_EXACT[kind]}, not {value!r}")
    return value if kind is not float else _float(value)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidRequest("must be a number that a float can hold") from None


def in_words(error: BaseException, kind: type[Any] | None) -> str:
    """Return the message for one error in a document, for ``cattrs.transform_error``."""
    return error.message if isinstance(error, InvalidRequest) else format_exception(error, kind)
