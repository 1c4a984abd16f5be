"""Which of many meet a fault: by number, by chance, so many times; counted and drawn for each rule of a plan by itself."""

import math
from collections.abc import Callable
from random import Random
from typing import Any, cast

from attrs import Attribute, field, frozen

from rbim.errors import InvalidRequest

__all__ = ["Picker", "Selection", "within"]


def within(least: float, most: float = math.inf) -> Callable[[object, "Attribute[Any]", object], None]:
    """Validator: a number between these two, or each of several, or None."""

    def validate(_: object, attribute: "Attribute[Any]", value: object) -> None:
        numbers = cast("tuple[float | None, ...]", value if isinstance(value, tuple) else (value,))
        for number in numbers:
            if number is not None and not least <= number <= most:
                bounds = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
                reason = f"{attribute.name}: {bounds}, not {number!r}"
                raise InvalidRequest(reason, field=attribute.name)

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


class Picker:
    """The counts of one rule and its own stream of chance, which ``seed`` determines. Who is picked counts in ``done``."""

    def __init__(self, rule: Selection, seed: str) -> None:
        self.chance = Random(seed)  # noqa: S311  # reproducible on purpose
        self.matched = 0
        self.done = 0
        self._rule = rule

    def picks(self) -> bool:
        """Count one more that matches, and tell whether it is picked."""
        rule = self._rule
        self.matched += 1
        lucky = self.chance.random() < rule.probability  # drawn for each that matches: counts do not shift the stream
        picked = self.matched in rule.nth if rule.nth else self.matched % rule.every == 0
        return lucky and picked and (rule.times is None or self.done < rule.times)
