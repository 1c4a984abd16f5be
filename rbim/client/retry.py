"""The retry policy: decides whether and when a failed attempt is retried; it never waits.

The decision depends on the attempt's outcome and on the operation's ``repeat``:

==========================  =================  ==================  =====================================
attempt                     safe               idempotent          never
==========================  =================  ==================  =====================================
not sent                    retry              retry               retry
outcome unknown             retry              retry               no
throttled, outcome refused  retry              retry               HTTP 429, or a ``before_effect`` code
timestamp expired           retry once         retry once          retry once (not with HTTP 5xx)
refused for other reasons   no                 no                  no
==========================  =================  ==================  =====================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from rbim.codes import CODES, Code
from rbim.errors import ApiError, Outcome, ProtocolError, RbimError, Throttled, TimestampExpired, TransportError
from rbim.operations.base import Repeat
from rbim.validators import above_zero, at_least_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rbim.operations.base import Operation

__all__ = ["Retry", "RetryBudget"]

TOO_MANY_REQUESTS = 429
DOUBLINGS = 1000  # a float overflows above 1023 doublings


def _even() -> float:
    from random import random

    return random()  # noqa: S311  # jitter, not security


@frozen(kw_only=True)
class Retry:
    """The retry policy of a call: exponential backoff with full jitter.

    A call makes at most ``attempts`` (default: 3; 1: no retries). The pause before the n-th retry is uniformly random
    between 0 and ``base * 2**(n-1)`` seconds (``base`` default: 0.2), at most ``cap`` seconds (default: 5). A
    ``Retry-After`` of the platform is added to it.
    """

    attempts: int = field(default=3, validator=at_least_one)
    base: float = field(default=0.2, validator=above_zero)
    cap: float = field(default=5.0, validator=above_zero)
    random: Callable[[], float] = field(default=_even, eq=False, repr=False)

    def pause(self, op: Operation[Any], error: RbimError, attempt: int, codes: Mapping[str, Code] = CODES) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the call must not be retried.

        ``error`` is the error of attempt number ``attempt`` (from 1); its ``attempts`` are the history.
        """
        if attempt >= self.attempts or not self._may_repeat(op, error, codes):
            return None
        if isinstance(error, TimestampExpired):
            return 0.0
        jitter: float = self.random() * min(self.cap, self.base * 2.0 ** min(attempt - 1, DOUBLINGS))
        asked = error.retry_after if isinstance(error, (ApiError, ProtocolError)) else None
        return jitter if asked is None else asked + jitter

    @staticmethod
    def _may_repeat(op: Operation[Any], error: RbimError, codes: Mapping[str, Code]) -> bool:
        if not isinstance(error, (TransportError, ApiError, ProtocolError)):
            return False
        if error.outcome is Outcome.NOT_SENT:
            return True
        if error.outcome is Outcome.UNKNOWN and op.repeat is Repeat.NEVER:  # whatever the code, for example with HTTP 5xx
            return False
        if isinstance(error, TimestampExpired):
            return sum(made.code == error.code for made in error.attempts) <= 1
        if isinstance(error, Throttled) and op.repeat is Repeat.NEVER:
            row = codes.get(error.code)
            return error.status == TOO_MANY_REQUESTS or (row is not None and row.before_effect)
        if isinstance(error, Throttled) or error.outcome is Outcome.UNKNOWN:
            return op.repeat is not Repeat.NEVER
        return False


class RetryBudget:
    """The retry budget of a client: it prevents that many failures cause many retries.

    Each call adds ``share`` (default: 0.2) to the budget, each retry takes 1; it holds at most ``reserve`` (default: 50)
    and starts full.
    """

    def __init__(self, *, share: float = 0.2, reserve: float = 50.0) -> None:
        self.share = share
        self.reserve = reserve
        self.calls = 0
        """The number of calls so far: the client counts them."""
        self._left = reserve  # when so many calls were counted
        self._counted = 0

    @property
    def left(self) -> float:
        """The retries that are left."""
        return min(self.reserve, self._left + self.share * (self.calls - self._counted))

    def spend(self) -> bool:
        """Take one retry from the budget; return False if less than one is left."""
        left = self.left
        if left < 1:
            return False
        self._left, self._counted = left - 1, self.calls
        return True
