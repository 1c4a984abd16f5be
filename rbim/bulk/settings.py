"""Settings of a job: rates, patience, failure limit; as values, and as JSON in a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from rbim.bulk.journal.facts import DIALECT
from rbim.bulk.stop_rules import FailureLimit
from rbim.client.limits import Rate
from rbim.client.retry import Retry
from rbim.validators import above_zero, at_least_one, seconds, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.operations.base import Operation

__all__ = ["JobSettings"]


@frozen(kw_only=True)
class JobSettings:
    """Settings of a job.

    ``concurrency``: requests in flight at most (default: 100). ``rates``: limits of requests, all of which apply (default:
    none). ``adaptive``: stay below both as far as the platform requires (default: True). ``failure_limit``: ends a job that
    fails too often (default: a share of 0.5). ``patience``: seconds without any answer after which the job ends (default:
    120). ``isolate``: requests that may be spent on halving refused requests, to find the accounts to blame (default: 0).
    ``retry``: how often (default: 5 attempts) and when a request of unknown outcome is sent again, if it may be repeated.
    ``resend_within``: age in seconds below which requests that an ended run left open are sent again (default: 0).
    """

    rates: tuple[Rate, ...] = field(default=(), converter=tuple["Rate", ...])
    concurrency: int = field(default=100, validator=at_least_one)
    adaptive: bool = True
    failure_limit: FailureLimit = field(factory=FailureLimit)
    patience: float = field(default=120.0, validator=above_zero)
    isolate: int = field(default=0, validator=whole_number)
    retry: Retry = field(factory=lambda: Retry(attempts=5))
    resend_within: float = field(default=0.0, validator=seconds)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON that :meth:`from_json` reads."""
        rates = [
            {name: getattr(rate, name) for name in ("limit", "per", "burst", "each_group")}
            | {"operations": [each.spec.name for each in rate.operations]}
            for rate in self.rates
        ]
        values = {name: getattr(self, name) for name in ("concurrency", "adaptive", "patience", "isolate", "resend_within")}
        return {"rates": rates, **values, "max_failures": self.failure_limit.limit, "attempts": self.retry.attempts}

    @staticmethod
    def from_json(document: dict[str, Any], operations: Mapping[str, type[Operation[Any]]]) -> dict[str, Any]:
        """Return the stored settings as keyword arguments of a job, without the dialect, which a run cannot change.

        Rates of operations that are not in ``operations`` are dropped.
        """
        values = {name: value for name, value in document.items() if name != DIALECT}
        rates: list[Rate] = []
        for each in map(dict, values.pop("rates")):
            names = each.pop("operations", [])
            known = tuple(operations[name] for name in names if name in operations)
            if known or not names:
                rates.append(Rate(each.pop("limit"), each.pop("per"), operations=known, **each))
        return {"rates": rates, "retry": Retry(attempts=values.pop("attempts")), **values}
