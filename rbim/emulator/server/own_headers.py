"""The headers that the emulator's server adds to each answer: ``Date`` and ``Server``.

``Date`` (RFC 9110, 6.6.1) is the time of the emulator's clock, by which it judges the age of signatures. ``Server`` says
that it is an emulator and whether its clock is emulated, so that ``Date`` is not taken for the time of a machine.
"""

from __future__ import annotations

from datetime import UTC
from email.utils import format_datetime
from typing import TYPE_CHECKING

from rbim.emulator.clock import EmulatedClock

if TYPE_CHECKING:
    from rbim.clock import Clock

__all__ = ["EMULATED", "PRODUCT", "OwnHeaders"]

PRODUCT = "rbim-emulator"
EMULATED = f"{PRODUCT} (emulated clock)"


class OwnHeaders:
    """Returns the headers of an answer at this moment; they are made once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._server = EMULATED if isinstance(clock, EmulatedClock) else PRODUCT
        self._second: int | None = None
        self._headers: tuple[tuple[str, str], ...] = ()

    def __call__(self) -> tuple[tuple[str, str], ...]:
        """Return the headers."""
        now = self._clock.now()
        second = int(now.timestamp())
        if second != self._second:
            date = format_datetime(now.astimezone(UTC), usegmt=True)
            self._second, self._headers = second, (("date", date), ("server", self._server))
        return self._headers
