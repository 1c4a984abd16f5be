"""The report of a job as a value: counts, figures and lists, and its JSON form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

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
    """What became of the input's rows; each is counted once.

    ``done`` took effect, ``refused`` were named in an answer as those who did not, ``failed`` were in requests that were
    refused whole or could not be sent, for good; ``unknown`` may have taken effect; ``skipped`` cannot be read (``bad``) or
    were not sent (``not_sent``); ``duplicate`` repeat an earlier row. ``in_flight`` are those of the unknown whose
    request is under way, where the job runs right now.
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
        """Rows that nothing was sent for: bad ones and those not sent."""
        return self.bad + self.not_sent

    @property
    def adds_up(self) -> bool:
        """Whether every row of the input is accounted for, once."""
        return self.total == self.done + self.refused + self.failed + self.unknown + self.skipped + self.duplicate


@frozen(kw_only=True)
class ReasonCount:
    """Why ``accounts`` accounts are in a ``state``: the platform's text or an error's, its code, the error's class."""

    state: str
    text: str
    code: str
    error: str
    accounts: int


@frozen(kw_only=True)
class ReasonsLeftOff:
    """The rarer reasons that are not listed: how many they are and how many accounts they settled."""

    reasons: int
    accounts: int


@frozen(kw_only=True)
class CodeCount:
    """A code of the platform: the accounts it settled, and the requests it answered, those sent again too."""

    code: str
    accounts: int
    requests: int


@frozen(kw_only=True)
class Latency:
    """Seconds from sending a request to its answer: nearest-rank percentiles and the longest."""

    p50: float
    p95: float
    p99: float
    max: float


@frozen(kw_only=True)
class RequestFigures:
    """The sendings of a job.

    ``sent`` counts each once: it was ``answered``, or ``refused`` whole, or did not leave (``not_sent``), or its outcome is
    ``unknown``; ``in_flight`` are those of the unknown that are under way, where the job runs right now. ``throttled`` is a
    part of the refused. ``repeated`` were sent again because nothing had been done, ``resent`` although an earlier
    sending's outcome was unknown; ``split`` were divided. ``per_second`` counts answered ones per second of running time;
    ``waited`` is the seconds that all together waited for rates and halts; ``latency`` is of the answered and the refused.
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

    @property
    def mean_wait(self) -> float:
        """Seconds that a sending waited for rates and halts, on average."""
        return self.waited / self.sent if self.sent else 0.0


@frozen(kw_only=True)
class RunFigures:
    """One run of the job. ``ended`` and ``why`` are None where it was killed, or still runs.

    ``seconds`` is how long it ran: up to its end, or to the last thing that the journal knows of it.
    """

    id: int
    began: datetime
    ended: datetime | None
    why: str | None
    seconds: float


@frozen(kw_only=True)
class Interval:
    """A stretch of one run. ``at`` counts running time only, from the first run's beginning: pauses between runs take none.

    ``run`` is the run's id (the first one's, where there are too many for intervals of their own), ``time`` when it began.
    ``requests`` and ``accounts`` are per second, ``in_flight`` and ``concurrency`` are means of the requests that were and
    that might have been on their way; ``rate`` is the mean of the requests per second that the adaptive pace allowed, None
    where it did not limit. ``throttled`` and ``failed`` are counts.
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
    """An account that the answer to ``request`` refused although it was not in that request."""

    group: str
    account: str
    reason: str
    request: int


@frozen(kw_only=True)
class DuplicateRow:
    """A row that repeats ``first_row``; rows count from 1."""

    group: str
    account: str
    row: int
    first_row: int


@frozen(kw_only=True)
class Report:
    """What became of a job.

    ``state`` is ``"loading"`` (its input was not read to its end, nothing was sent), ``"running"``, ``"complete"`` or
    ``"incomplete"``; ``done_word`` what the job calls an account that is done (``invited``). ``options``, ``chunk`` and
    ``source`` say what was sent and where the rows came from. ``reasons`` and ``codes`` are the 50 most frequent,
    ``reasons_left_off`` tells of the others. ``over_time`` has at most 120 intervals. ``seconds`` is the running time
    of all runs. ``anomalies`` counts them all; the lists of the first ones (``first_bad_rows``) have 20 at most.
    """

    operation: str
    done_word: str
    options: Mapping[str, Any]
    chunk: int
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

    @property
    def source_name(self) -> str:
        """The name of the input, empty where it has none."""
        return str(self.source.get("name") or "")

    @property
    def adds_up(self) -> bool:
        """Whether every row of the input is accounted for, once."""
        return self.accounts.adds_up

    @property
    def accounts_per_second(self) -> float:
        """Accounts that an answer settled per second of running time."""
        return (self.accounts.done + self.accounts.refused) / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON: times in ISO 8601 (UTC), durations in seconds.

        The figures of ``accounts`` add up to its ``total``; those done are called as the operation calls them: ``invited``.
        """
        accounts, requests = self.accounts, self.requests
        left_off = self.reasons_left_off
        figures = _plain(requests)
        del figures["waited"], figures["latency"]
        return {
            "accounts": {
                "total": accounts.total,
                self.done_word: accounts.done,
                "refused": accounts.refused,
                "failed": accounts.failed,
                "unknown": accounts.unknown,
                "skipped": accounts.skipped,
                "duplicate": accounts.duplicate,
            },
            "requests": {
                **figures,
                "latency": _plain(requests.latency) if requests.latency else None,
                "waited": {"total": _sensible(requests.waited), "mean": _sensible(requests.mean_wait)},
            },
            "state": self.state,
            "complete": self.complete,
            "adds_up": self.adds_up,
            "skipped": {"bad_rows": accounts.bad, "not_sent": accounts.not_sent},
            "in_flight": accounts.in_flight,
            "seconds": _sensible(self.seconds),
            "accounts_per_second": _sensible(self.accounts_per_second),
            "job": {
                "operation": self.operation,
                "options": dict(self.options),
                "chunk": self.chunk,
                "source": dict(self.source),
                "created": self.created.isoformat(),
            },
            "reasons": [_plain(each) for each in self.reasons],
            "reasons_left_off": _plain(left_off) if left_off else None,
            "codes": [_plain(each) for each in self.codes],
            "runs": [_plain(each) for each in self.runs],
            "over_time": [_plain(each) for each in self.over_time],
            "anomalies": {"count": self.anomalies, "first": [_plain(each) for each in self.first_anomalies]},
            "duplicates": [_plain(each) for each in self.first_duplicates],
            "bad_rows": [each._asdict() for each in self.first_bad_rows],
        }


def _plain(value: attrs.AttrsInstance) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, each in attrs.asdict(value, recurse=False).items():
        found[name] = (
            _sensible(each) if isinstance(each, float) else each.isoformat() if hasattr(each, "isoformat") else each
        )
    return found


def _sensible(number: float) -> float:
    """Return a number to a thousandth, or to three digits where it is small."""
    return round(number, 3) if abs(number) >= 1 else float(f"{number:.3g}")
