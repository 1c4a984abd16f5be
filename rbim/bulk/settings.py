"""Settings of a job: the options that a later run may change; as values, and as JSON in a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from attrs import field, frozen

from rbim._support.text import quoted
from rbim.bulk.journal.facts import DIALECT
from rbim.client.limits import Limits, Rate
from rbim.client.retry import Retry
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one, one_of, require, seconds, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rbim.bulk.work import Work
    from rbim.clock import Clock
    from rbim.dialect import Dialect
    from rbim.operations.base import Operation
    from rbim.operations.namespace import Sender

__all__ = ["JobOptions", "JobSettings", "RunOptions", "RunParts"]


class RunOptions(TypedDict, total=False):
    """The options of :class:`~rbim.bulk.Job` that a later run may change."""

    rates: Iterable[Rate | str]
    concurrency: int
    adaptive: bool
    max_failures: float | None
    patience: float
    isolate: int
    retry: Retry | None
    resend_within: float
    dialect: Dialect | None
    clock: Clock | None


class JobOptions(RunOptions, total=False):
    """The options of :class:`~rbim.bulk.Job`, and of all jobs."""

    chunk: int | None


def _rates(rates: Iterable[Rate | str]) -> tuple[Rate, ...]:
    try:
        made = Limits(rates=rates).rates
    except InvalidRequest as error:
        raise InvalidRequest(f"rates: {error.message.removeprefix('rates: ')}", field="rates") from None
    if any(rate.shared is not None for rate in made):
        raise InvalidRequest(
            "rates: a shared rate belongs into the limits of the client: Limits(rates=[...])", field="rates"
        )
    return made


def _retry(retry: Retry | None) -> Retry:
    if retry is None:
        return Retry(attempts=5)
    require("retry", retry, Retry, "Retry(attempts=...)")
    return retry


def _max_failures(_: object, _attribute: object, value: object) -> None:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    share = isinstance(value, float) and 0 < value <= 1
    if value is not None and not count and not share:
        raise InvalidRequest(
            f"max_failures: invalid value {quoted(value)}: use a count (0 or more), a share such as 0.2, or None",
            field="max_failures",
        )


@frozen(kw_only=True)
class JobSettings:
    """The checked options of a job; :class:`~rbim.bulk.Job` has their meaning. Raises InvalidRequest."""

    rates: tuple[Rate, ...] = field(default=(), converter=_rates)
    concurrency: int = field(default=100, validator=at_least_one)
    adaptive: bool = field(default=True, validator=one_of(bool))
    max_failures: float | None = field(default=0.5, validator=_max_failures)
    patience: float = field(default=120.0, validator=above_zero)
    isolate: int = field(default=0, validator=whole_number)
    retry: Retry = field(default=None, converter=_retry)
    resend_within: float = field(default=0.0, validator=seconds)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON that :meth:`from_json` reads."""
        rates = [
            {name: getattr(rate, name) for name in ("limit", "per", "burst", "each_group")}
            | {"operations": [each.spec.name for each in rate.operations]}
            for rate in self.rates
        ]
        plain = ("concurrency", "adaptive", "max_failures", "patience", "isolate", "resend_within")
        return {"rates": rates, "attempts": self.retry.attempts} | {name: getattr(self, name) for name in plain}

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


class RunParts(NamedTuple):
    """The parts of a job that its runs share."""

    work: Work[Any]
    settings: JobSettings
    sender: Sender
    journal: Path
    clock: Clock
