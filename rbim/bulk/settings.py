"""How a job is run: rates, patience, when to give up; as values, and as what a journal keeps of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from rbim.bulk.progress import FailureLimit
from rbim.client.limits import Rate
from rbim.client.retry import Retry
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.operations.base import Operation

__all__ = ["JobSettings"]


def _isolate(_: object, attribute: Any, value: object) -> None:  # an attrs attribute
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f"{attribute.name}: a number of requests from 0 is needed, not {value!r}", field=attribute.name)


def _seconds(_: object, attribute: Any, value: object) -> None:  # an attrs attribute
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
        raise InvalidRequest(f"{attribute.name}: a number of seconds from 0 is needed, not {value!r}", field=attribute.name)


@frozen(kw_only=True)
class JobSettings:
    """How a job is run.

    At most ``concurrency`` requests in flight (100) and ``rates`` of requests, each of which holds; below both, with
    ``adaptive``, what the platform bears. ``fuse`` ends a job that fails too often (a share of 0.5). ``patience`` is the
    seconds without any answer after which it ends, too (120). ``isolate`` is the number of requests that may be spent on
    halving those that were refused, to find out which accounts are to blame (0). ``retry`` says how often (5 attempts) and
    when a request of unknown outcome is sent again that may be; ``resend_within`` is the age in seconds below which those
    that an ended run has left open are sent again (0).
    """

    rates: tuple[Rate, ...] = field(default=(), converter=tuple["Rate", ...])
    concurrency: int = field(default=100, validator=at_least_one)
    adaptive: bool = True
    fuse: FailureLimit = field(factory=FailureLimit)
    patience: float = field(default=120.0, validator=above_zero)
    isolate: int = field(default=0, validator=_isolate)
    retry: Retry = field(factory=lambda: Retry(attempts=5))
    resend_within: float = field(default=0.0, validator=_seconds)

    def as_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` reads."""
        rates = [
            {name: getattr(rate, name) for name in ("limit", "per", "burst", "each_group")}
            | {"operations": [each.spec.name for each in rate.operations]}
            for rate in self.rates
        ]
        told = {name: getattr(self, name) for name in ("concurrency", "adaptive", "patience", "isolate", "resend_within")}
        return {"rates": rates, **told, "max_failures": self.fuse.most, "attempts": self.retry.attempts}

    @staticmethod
    def from_json(document: dict[str, Any], operations: Mapping[str, type[Operation[Any]]]) -> dict[str, Any]:
        """Return the settings that a journal keeps by the names under which a job takes them.

        Rates of operations that are not among these do not concern the job.
        """
        told = dict(document)
        rates: list[Rate] = []
        for each in map(dict, told.pop("rates")):
            names = each.pop("operations", [])
            known = tuple(operations[name] for name in names if name in operations)
            if known or not names:
                rates.append(Rate(each.pop("limit"), each.pop("per"), operations=known, **each))
        return {"rates": rates, "retry": Retry(attempts=told.pop("attempts")), **told}
