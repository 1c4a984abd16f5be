"""The plan that faults of requests and of copies are kept in: which of many are hit, and how it is read from JSON."""

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

__all__ = ["Plan", "Running", "Selection", "choice", "in_words", "kinds_of", "read_plan", "within"]

F = TypeVar("F", bound="Selection")


def within(least: float, most: float = math.inf) -> Callable[[object, "Attribute[Any]", object], None]:
    """Validator: a number between these two, or each of several, or None."""

    def validate(_: object, attribute: "Attribute[Any]", value: object) -> None:
        numbers = cast("tuple[float | None, ...]", value if isinstance(value, tuple) else (value,))
        for number in numbers:
            if number is not None and not least <= number <= most:
                bounds = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
                raise InvalidRequest(f"{attribute.name}: {bounds}, not {number!r}", field=attribute.name)

    return validate


@frozen(kw_only=True)
class Selection:
    """Of what matches so far, ``nth`` picks some by number (from 1), ``every`` only each so many, ``probability`` a share
    by chance. ``times`` ends it after so many.
    """

    nth: tuple[int, ...] = field(default=(), converter=tuple[int, ...], validator=within(1))
    every: int = field(default=1, validator=within(1))
    probability: float = field(default=1.0, validator=within(0, 1))
    times: int | None = field(default=None, validator=within(0))


class Running(Generic[F]):
    """One fault of a plan: its counts, the moments its effect remembers, and its stream of chance, made from ``seed``."""

    def __init__(self, fault: F, seed: str) -> None:
        self.fault = fault
        self.chance = Random(seed)  # noqa: S311  # reproducible on purpose
        self.matched = 0
        self.done = 0
        self.recent = deque[float]()

    def picks(self) -> bool:
        """Count one more that matches, and tell whether it is picked. How many of them it happened to counts in ``done``."""
        rule = self.fault
        self.matched += 1
        lucky = self.chance.random() < rule.probability  # drawn for each that matches: counts do not shift the stream
        picked = self.matched in rule.nth if rule.nth else self.matched % rule.every == 0
        return lucky and picked and (rule.times is None or self.done < rule.times)


class Plan(Generic[F]):
    """Faults in order. The stream of each comes from ``seed`` and its place (from 0)."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._running: list[Running[F]] = []

    def add(self, *faults: F) -> None:
        """Put faults at the end of the plan; they count from now on."""
        for fault in faults:
            self._running.append(Running(fault, f"{self._seed}:{len(self._running)}"))

    def clear(self) -> None:
        """Empty the plan."""
        self._running.clear()

    def __iter__(self) -> Iterator[F]:
        return iter([running.fault for running in self._running])


def kinds_of(effects: Any) -> dict[str, type[Any]]:
    """Return the classes of a union of effects by the names that a document gives them: ``ResetAfter``, ``reset_after``."""
    return {_kind(effect): effect for effect in get_args(effects)}


def _kind(effect: type[Any]) -> str:
    return re.sub(r"\B([A-Z])", r"_\1", effect.__name__).lower()


def read_plan(
    document: Any, fault: type[F], effects: Any, *, field: str, check: Callable[[F], None] = lambda _: None
) -> tuple[F, ...]:
    """Read a list of faults, each an object whose ``effect``, of a union, is an object with a ``kind``.

    ``check`` may refuse a fault that was read. Raises InvalidRequest about ``field`` that says what is wrong and where.
    """
    converter = Converter(forbid_extra_keys=True)
    configure_tagged_union(effects, converter, tag_generator=_kind, tag_name="kind")
    read_tagged = converter.get_structure_hook(effects)
    kinds = kinds_of(effects)

    def read_effect(value: Any, _: Any) -> Any:  # JSON in, an effect out
        choice("kind", str(_an(dict, value).get("kind", "")), kinds)  # cattrs would not say which there are
        return read_tagged(value, effects)

    read = make_dict_structure_fn(
        fault,
        converter,
        effect=override(struct_hook=read_effect),
        match=override(struct_hook=lambda value, _: _an(dict, value)),  # its values are compared as they are
    )

    def read_fault(value: Any, _: Any) -> F:  # JSON
        made = read(_an(dict, value), fault)
        check(made)
        return made

    converter.register_structure_hook(fault, read_fault)
    try:
        return converter.structure(_an(list, document), tuple[fault, ...])  # type: ignore[valid-type]
    except Exception as error:  # whatever is wrong with a document
        raise InvalidRequest("; ".join(transform_error(error, format_exception=in_words)), field=field) from None


def choice(what: str, name: str, choices: Mapping[str, Any]) -> Any:
    """Return what the name stands for. Raises InvalidRequest that lists the names there are."""
    if name not in choices:
        raise InvalidRequest(f"{what}: {name!r} is none of {', '.join(choices)}")
    return choices[name]


def _an(kind: type[Any], document: Any) -> Any:  # JSON
    if not isinstance(document, kind):
        wanted = "an object" if kind is dict else "a list"
        raise InvalidRequest(f"{wanted} is needed, not {type(document).__name__}")
    return document


def in_words(error: BaseException, kind: type[Any] | None) -> str:
    """Return what is wrong in one part of a document, for ``cattrs.transform_error``."""
    return error.message if isinstance(error, InvalidRequest) else format_exception(error, kind)
