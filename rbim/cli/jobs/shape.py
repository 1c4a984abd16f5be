"""The shape of a job's report as JSON, for the check of ``--field`` before the job begins."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import attrs

from rbim.bulk.input.rows import BadRow
from rbim.bulk.report.model import (
    AccountCounts,
    Anomaly,
    CodeCount,
    DuplicateRow,
    Interval,
    Latency,
    ReasonCount,
    ReasonsLeftOff,
    Report,
    RequestFigures,
    RunFigures,
)
from rbim.cli.field import ANYTHING, check, parse
from rbim.cli.global_flags import current_flags
from rbim.cli.jobs.capacity import GroupWarning

__all__ = ["ESTIMATE", "check_field", "shape_of_report"]

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
OPEN = ("options", "dialect", "source")
"""Parts of ``job`` with any keys."""

ESTIMATE: dict[str, Any] = {
    **dict.fromkeys(("rows", "usable", "bad", "duplicate", "groups", "requests", "chunk", "seconds")),
    "bad_rows": [dict.fromkeys(BadRow._fields)],
    "warnings": [dict.fromkeys(GroupWarning._fields)],
}
"""The shape of the estimate that ``--dry-run`` prints."""

T = TypeVar("T")


def check_field(shape: Any) -> None:
    """Raise InvalidRequest if a document of this shape has no such field as ``--field`` names."""
    path = current_flags().field
    if path is not None:
        check(parse(path), shape)


def shape_of_report(done_word: str) -> Any:
    """Return the shape of the report of a job whose done accounts have this word, such as ``invited``."""
    requests = attrs.evolve(_sample(RequestFigures), latency=_sample(Latency))
    report = Report(
        operation="",
        done_word=done_word,
        options={},
        chunk=1,
        dialect={},
        source={},
        created=MOMENT,
        state="",
        complete=True,
        seconds=1.0,
        accounts=_sample(AccountCounts),
        requests=requests,
        reasons=(_sample(ReasonCount),),
        reasons_left_off=_sample(ReasonsLeftOff),
        codes=(_sample(CodeCount),),
        runs=(_sample(RunFigures),),
        over_time=(_sample(Interval),),
        anomalies=1,
        first_anomalies=(_sample(Anomaly),),
        first_duplicates=(_sample(DuplicateRow),),
        first_bad_rows=(BadRow(1, "", ""),),
    )
    shape = _shape(report.as_json())
    shape["job"] |= dict.fromkeys(OPEN, ANYTHING)
    return shape


def _sample(kind: type[T]) -> T:
    """Return a value of a part of a report, with a number in every field: only its names count."""
    return kind(**dict.fromkeys((each.name for each in attrs.fields(cast("Any", kind))), 0))


def _shape(document: Any) -> Any:  # JSON in, a shape out
    if isinstance(document, dict):
        return {name: _shape(each) for name, each in cast("Any", document).items()}
    return [_shape(cast("Any", document)[0])] if isinstance(document, list) else None
