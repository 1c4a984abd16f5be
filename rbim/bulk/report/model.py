"""Report of a job as a value: counts, figures and lists, and its JSON form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

from rbim._support.json_values import ToDict, json_values

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from rbim.bulk.input.rows import BadRow

__all__ = [
    "AccountCounts",
    "Anomaly",
    "CodeCount",
    "DuplicateRow",
    "Interval",
    "Latency",
    "ReasonCount",
    "ReasonsLeftOff",
    "Report",
    "RequestFigures",
    "RunFigures",
]


@frozen(kw_only=True)
class AccountCounts:
    """Counts of the input's rows by result; each row is counted once.

    ``done`` took effect. ``refused``: an answer lists them in ``fails``. ``failed``: their request was refused as a whole
    or could not be sent, for good. ``unknown`` may have taken effect. ``skipped``: rows that cannot be used (``bad``) or
    were not sent (``not_sent``). ``duplicate`` repeat an earlier row. ``in_flight``: those of the unknown whose request is
    under way, if the job runs now.
    """

    total: int
    done: int
    refused: int
    failed: int
    unknown: int
    bad: int
    not_sent: int
    duplicate: int
    in_flight: int = 0

    @property
    def skipped(self) -> int:
        """Rows that were not sent, bad ones included."""
        return self.bad + self.not_sent

    @property
    def adds_up(self) -> bool:
        """Whether every row of the input is counted exactly once."""
        return self.total == self.done + self.refused + self.failed + self.unknown + self.skipped + self.duplicate


@frozen(kw_only=True)
class ReasonCount:
    """Reason for a ``state`` of ``accounts`` accounts: the platform's or an error's text, its code, the error's class."""

    state: str
    text: str
    code: str
    error: str
    accounts: int


@frozen(kw_only=True)
class ReasonsLeftOff:
    """The rarer reasons that are not listed: their number, and the accounts that they settled."""

    reasons: int
    accounts: int


@frozen(kw_only=True)
class CodeCount:
    """A code of the platform: accounts that it settled, and requests that it answered, resends included."""

    code: str
    accounts: int
    requests: int


@frozen(kw_only=True)
class Latency:
    """Seconds from sending a request to its answer: nearest-rank percentiles and the maximum."""

    p50: float
    p95: float
    p99: float
    max: float


@frozen(kw_only=True)
class RequestFigures:
    """Figures of a job's requests; each sending is counted.

    ``sent`` is the sum of ``answered``, ``refused`` (as a whole), ``not_sent`` and ``unknown`` (outcome). ``in_flight``:
    those of the unknown that are under way, if the job runs now. ``throttled`` is a part of the refused. ``repeated`` were
    sent again after nothing had been done, ``resent`` after an unknown outcome; ``split`` were divided into halves.
    ``per_second``: answered requests per second of running time. ``waited``: seconds of delay by rates and halts, in total.
    ``latency``: of the answered and the refused.
    """

    sent: int
    answered: int
    refused: int
    not_sent: int
    unknown: int
    in_flight: int
    throttled: int
    repeated: int
    resent: int
    split: int
    per_second: float
    latency: Latency | None
    waited: float


@frozen(kw_only=True)
class RunFigures:
    """One run of the job. ``ended`` and ``why`` (the reason) are None if it was killed or still runs.

    ``seconds``: its running time by a monotonic clock; up to the last second, if it was killed.
    """

    id: int
    began: datetime
    ended: datetime | None
    why: str | None
    seconds: float


@frozen(kw_only=True)
class Interval:
    """An interval of one run. ``at`` is its start in seconds of running time; pauses between runs do not count.

    ``run`` is the run's id (of the first one, if there are too many runs for separate intervals), ``time`` its beginning.
    ``requests`` and ``accounts`` are per second; ``in_flight`` and ``concurrency`` are means of the requests under way and
    of their limit; ``rate`` is the mean of the adaptive rate in requests per second, None while it did not limit.
    ``throttled`` and ``failed`` are counts.
    """

    run: int
    time: datetime
    at: float
    seconds: float
    requests: float
    accounts: float
    in_flight: float
    concurrency: float
    rate: float | None
    throttled: int
    failed: int


@frozen(kw_only=True)
class Anomaly:
    """An account that the answer to ``request`` refused although the request did not contain it."""

    group: str
    account: str
    reason: str
    request: int


@frozen(kw_only=True)
class DuplicateRow:
    """A row that repeats ``first_row``; both are lines of the input, or places in an iterable, from 1."""

    group: str
    account: str
    row: int
    first_row: int


@frozen(kw_only=True)
class Report(ToDict):
    """Result of a job, complete or so far.

    ``state``: ``"loading"`` (the input was not read completely, nothing was sent), ``"running"``, ``"complete"`` or
    ``"incomplete"``. ``done_word``: the word for a done account (``invited``). ``options``, ``chunk`` and ``source``: the
    job's options, its accounts per request, the origin of the rows. ``dialect``: the fields that differ from their defaults,
    as in ``rbim.toml``. ``reasons`` and ``codes``: the 30 most frequent;
    ``reasons_left_off`` counts the others. ``over_time``: at most 120 intervals. ``seconds``: running time of all runs.
    ``anomalies`` is their number; lists of first entries (``first_bad_rows``) have at most 10. ``erased``: when the accounts
    were erased (:func:`rbim.bulk.forget_job`), None if they are there; the counts are those from before.
    """

    operation: str
    done_word: str
    options: Mapping[str, Any]
    chunk: int
    dialect: Mapping[str, Any]
    source: Mapping[str, Any]
    created: datetime
    state: str
    complete: bool
    seconds: float
    accounts: AccountCounts
    requests: RequestFigures
    reasons: tuple[ReasonCount, ...]
    reasons_left_off: ReasonsLeftOff | None
    codes: tuple[CodeCount, ...]
    runs: tuple[RunFigures, ...]
    over_time: tuple[Interval, ...]
    anomalies: int
    first_anomalies: tuple[Anomaly, ...]
    first_duplicates: tuple[DuplicateRow, ...]
    first_bad_rows: tuple[BadRow, ...]
    erased: datetime | None = None

    @property
    def source_name(self) -> str:
        """The name of the input, empty if it has none."""
        return str(self.source.get("name") or "")

    @property
    def accounts_per_second(self) -> float:
        """Accounts settled by an answer, per second of running time."""
        return (self.accounts.done + self.accounts.refused) / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values: times in ISO 8601 (UTC), durations in seconds (rounded to 0.001).

        The figures of ``accounts`` add up to its ``total``; done accounts are under the operation's word: ``invited``.
        """
        accounts = self.accounts
        job = ("operation", "options", "chunk", "dialect", "source", "created", "erased")
        document: dict[str, Any] = json_values(
            {
                "accounts": {
                    "total": accounts.total,
                    self.done_word: accounts.done,
                    "refused": accounts.refused,
                    "failed": accounts.failed,
                    "unknown": accounts.unknown,
                    "skipped": accounts.skipped,
                    "duplicate": accounts.duplicate,
                },
                "requests": _rounded(json_values(self.requests)),
                "state": self.state,
                "complete": self.complete,
                "adds_up": accounts.adds_up,
                "skipped": {"bad_rows": accounts.bad, "not_sent": accounts.not_sent},
                "in_flight": accounts.in_flight,
                "seconds": _rounded(self.seconds),
                "accounts_per_second": _rounded(self.accounts_per_second),
                "job": {name: getattr(self, name) for name in job},
                "reasons": self.reasons,
                "reasons_left_off": self.reasons_left_off,
                "codes": self.codes,
                "runs": _rounded(json_values(self.runs)),
                "over_time": _rounded(json_values(self.over_time)),
                "anomalies": {"count": self.anomalies, "first": self.first_anomalies},
                "duplicates": self.first_duplicates,
                "bad_rows": self.first_bad_rows,
            }
        )
        return document


def _rounded(value: Any) -> Any:  # JSON
    """Return JSON values whose numbers are rounded to a thousandth, or to three digits if they are small."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return list(map(_rounded, cast("Any", value)))
    if not isinstance(value, float):
        return value
    return round(value, 3) if abs(value) >= 1 else float(f"{value:.3g}")
