"""The header ``Retry-After`` as seconds."""

from __future__ import annotations

import re
from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbim.clock import Clock

__all__ = ["retry_after"]

LONGEST_WAIT = 86_400.0
"""Seconds of a ``Retry-After`` that count: a longer one becomes a day."""

_NUMBER = r"[0-9]+(\.[0-9]+)?"
_BETWEEN = r",(?!\s*[0-9]{1,2}[ -][A-Za-z])"  # a comma, except that of a date: `Fri, 02 Jan 2026`, `Friday, 02-Jan-26`


def retry_after(text: str | None, clock: Clock) -> float | None:
    """Return a ``Retry-After`` header as seconds from now, at most a day, or None if it is missing or unreadable.

    The header is a number of seconds or an HTTP date, in each of the three forms of RFC 9110. A fraction is rounded up; of
    several values, as of a header that was sent twice, the largest counts.
    """
    if text is None:
        return None
    found = [_seconds(each.strip().rstrip(";"), clock) for each in re.split(_BETWEEN, text)]
    return max((each for each in found if each is not None), default=None)


def _seconds(text: str, clock: Clock) -> float | None:
    if re.fullmatch(_NUMBER, text):
        whole, _, fraction = text.partition(".")
        digits = whole.lstrip("0")
        long = len(digits) > len(str(int(LONGEST_WAIT)))
        return LONGEST_WAIT if long else min(LONGEST_WAIT, int(digits or 0) + float(fraction.strip("0") != ""))
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return min(LONGEST_WAIT, max(0.0, (date - clock.now()).total_seconds()))
    except (ValueError, TypeError, OverflowError):
        return None
