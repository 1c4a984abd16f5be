"""Pauses before what failed is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

from rbim.validators import above_zero, at_least_one, finite

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Backoff"]


def _uniform() -> float:
    from random import random

    return random()  # noqa: S311  # spreads retries, guards nothing


@frozen(kw_only=True)
class Backoff:
    """Exponential backoff with jitter for an event that failed.

    At most ``attempts`` in all (default: 8; 1: no retries); after the last one the event becomes a dead letter. The pause
    after attempt n is ``first * factor**(n-1)`` seconds, at most ``most`` (defaults: 1, 4 and 300), times a random factor
    between 0.5 and 1 (uniform). The event's conversation pauses meanwhile: with the defaults, about 15 minutes in all.

    An event whose process or worker dies while it is handled has not failed: it is handled again with nothing beside it.
    After ``crashes`` deaths while nothing else was handled (default: 3) it becomes a dead letter.
    """

    attempts: int = field(default=8, validator=at_least_one)
    crashes: int = field(default=3, validator=at_least_one)
    first: float = field(default=1.0, validator=(above_zero, finite))
    factor: float = field(default=4.0, validator=(above_zero, finite))
    most: float = field(default=300.0, validator=(above_zero, finite))
    random: Callable[[], float] = field(default=_uniform, eq=False, repr=False)

    def pause(self, attempt: int) -> float | None:
        """Return the seconds to wait after attempt ``attempt`` (from 1) failed, or None after the last attempt."""
        if attempt >= self.attempts:
            return None
        try:
            full = min(self.most, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            full = self.most
        return full * (0.5 + self.random() / 2)
