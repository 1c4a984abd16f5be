"""Whether and when a failed event is handled again: decisions only, nothing here waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen

from rbim.validators import above_zero, at_least_one, finite

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Backoff"]


def _even() -> float:
    from random import random

    return random()  # noqa: S311  # spreads retries, guards nothing


@frozen(kw_only=True)
class Backoff:
    """How often and how soon an event is handled again.

    At most ``attempts`` in all (1: no retries); after the last one the event is dead. The pause after the n-th is
    ``first * factor**(n-1)`` seconds, at most ``most``, and of that between half and all, drawn evenly. An event's
    conversation rests that long: the defaults give it about a quarter of an hour in all.
    """

    attempts: int = field(default=8, validator=at_least_one)
    first: float = field(default=1.0, validator=(above_zero, finite))
    factor: float = field(default=4.0, validator=(above_zero, finite))
    most: float = field(default=300.0, validator=(above_zero, finite))
    random: Callable[[], float] = field(default=_even, eq=False, repr=False)

    def pause(self, attempt: int) -> float | None:
        """Return the seconds to wait after attempt number ``attempt`` (from 1) failed, or None: it was the last."""
        if attempt >= self.attempts:
            return None
        try:
            full = min(self.most, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            full = self.most
        return full * (0.5 + self.random() / 2)
