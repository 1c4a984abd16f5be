"""Progress of a run: counts that always add up, and the rates of the last seconds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from rbim.bulk.journal.journal import Sample
from rbim.bulk.work import AccountState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.bulk.journal.facts import Loaded
    from rbim.bulk.journal.loading import InputDigest
    from rbim.bulk.work import Settlement

__all__ = ["Phase", "RunCounts", "Snapshot"]

Phase = Literal["loading", "running", "halted", "draining", "ended"]

INSTANT = 1e-9
RECENT_SAMPLES = 10  # samples that the present rate is calculated from


@frozen(kw_only=True)
class Snapshot:
    """Progress of a job at one moment.

    Each of the ``total`` rows of the input is ``waiting`` (in flight included), ``done``, ``refused``, ``failed``,
    ``unknown``, ``skipped`` (cannot be used) or ``duplicate``; during loading ``total`` counts the rows read so far.
    ``in_flight``, ``requests`` (ended) and ``throttled`` count requests. ``rate`` is accounts per second and
    ``request_rate`` requests per second over the last ten seconds; ``concurrency`` is the present limit of requests in
    flight. ``elapsed`` and ``eta`` (time left) are seconds; ``eta`` is None if it cannot be estimated. ``cause`` is the text
    of the last failure since accounts were settled (throttled, not connected, no answer), empty if there is none.
    ``adaptive_rate`` is the rate in requests per second to which the job has slowed down, None while that limits nothing.
    """

    phase: Phase
    total: int
    waiting: int
    done: int
    refused: int
    failed: int
    unknown: int
    skipped: int
    duplicate: int
    in_flight: int
    requests: int
    throttled: int
    rate: float
    request_rate: float
    concurrency: int
    elapsed: float
    eta: float | None
    cause: str = ""
    adaptive_rate: float | None = None


class RunCounts:
    """Counts of one run: the rows that were ``loaded``, or are being loaded, and the accounts that were settled before."""

    def __init__(self, loaded: Loaded | InputDigest, counts: Mapping[AccountState, int], now: float) -> None:
        self._loaded = loaded
        self._states = {state: counts.get(state, 0) for state in AccountState if state > 0}
        self.in_flight = 0
        self.requests = 0
        self.failures = 0
        self._throttled = 0
        self._began = self._changed = now
        self._flight_seconds = 0.0  # sum of requests in flight x seconds, since the last sample
        self._marks = deque([(now, *self._totals())], maxlen=RECENT_SAMPLES + 1)  # the last one: since the last sample

    @property
    def waiting(self) -> int:
        """Accounts that wait, those in flight included."""
        return self._loaded.rows - self._loaded.bad - self._loaded.duplicates - sum(self._states.values())

    def _totals(self) -> tuple[int, int, int, int]:
        return self.requests, sum(self._states.values()), self._throttled, self.failures

    def change_in_flight(self, by: int, now: float) -> None:
        """Count a request that leaves (``by`` 1) or ends (-1)."""
        self._flight_seconds += self.in_flight * (now - self._changed)
        self._changed = now
        self.in_flight += by

    def ended(self, settlement: Settlement | None, accounts: int, *, throttled: bool, final: bool) -> None:
        """Count the end of a request of ``accounts`` accounts."""
        self.requests += 1
        self._throttled += throttled
        self.failures += final
        if settlement is None or settlement.state is None:
            return
        self._states[settlement.state] += accounts - len(settlement.individual)
        for _, state, _ in settlement.individual:
            self._states[state] += 1

    def closed(self, accounts: Mapping[AccountState, int]) -> None:
        """Count accounts of a closed group by their new states: they are not sent."""
        for state, number in accounts.items():
            self._states[state] += number

    def sample(self, at: float, now: float, concurrency: int, rate: float | None) -> Sample:
        """Return the changes since the last sample; ``at`` is the time of day in epoch seconds."""
        self.change_in_flight(0, now)
        since, *before = self._marks[-1]
        seconds = max(now - since, INSTANT)
        requests, accounts, throttled, failed = (
            value - earlier for value, earlier in zip(self._totals(), before, strict=True)
        )
        made = Sample(at, seconds, requests, accounts, throttled, failed, self._flight_seconds / seconds, concurrency, rate)
        self._marks.append((now, *self._totals()))
        self._flight_seconds = 0.0
        return made

    def snapshot(
        self, phase: Phase, now: float, concurrency: int, cause: str = "", adaptive_rate: float | None = None
    ) -> Snapshot:
        """Return the present progress."""
        since, requests, accounts, _, _ = self._marks[0]
        seconds = max(now - since, INSTANT)
        states = self._states
        rate = (sum(states.values()) - accounts) / seconds
        return Snapshot(
            phase=phase,
            total=self._loaded.rows,
            waiting=self.waiting,
            done=states[AccountState.DONE],
            refused=states[AccountState.REFUSED],
            failed=states[AccountState.FAILED],
            unknown=states[AccountState.UNKNOWN],
            skipped=self._loaded.bad,
            duplicate=self._loaded.duplicates,
            in_flight=self.in_flight,
            requests=self.requests,
            throttled=self._throttled,
            rate=rate,
            request_rate=(self.requests - requests) / seconds,
            concurrency=concurrency,
            elapsed=now - self._began,
            eta=self.waiting / rate if rate > 0 and phase != "halted" else None,
            cause=cause,
            adaptive_rate=adaptive_rate,
        )
