"""What a running job has come to: counts that always add up, what happened in the last seconds, and when it may end."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from attrs import field, frozen

from rbim.bulk.journal.journal import Sample
from rbim.bulk.states import AccountState
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.bulk.journal.loading import Loaded
    from rbim.bulk.work import Settlement

__all__ = ["FailureLimit", "Phase", "RunCounts", "Snapshot"]

Phase = Literal["loading", "running", "halted", "draining", "ended"]

INSTANT = 1e-9
LATELY = 10  # samples over which the present rate is taken
FEW = 20
"""Requests that must be over before a share of them can end the job."""


@frozen(kw_only=True)
class Snapshot:
    """How far a job is.

    ``total`` rows of the input are ``waiting`` (those in flight among them), ``done``, ``refused``, ``failed``,
    ``unknown``, ``skipped`` (rows that cannot be used) or ``duplicate``; while it loads, those read so far.
    ``in_flight``, ``requests`` (ended) and ``throttled`` count requests. ``rate`` is in accounts and ``request_rate`` in
    requests per second, over the last ten seconds; ``concurrency`` is how many requests may be in flight now. ``elapsed``
    and ``eta`` are seconds; ``eta`` is None where nobody can tell.
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


def _failures(_: object, _attribute: object, value: object) -> None:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    share = isinstance(value, float) and 0 < value <= 1
    if value is not None and not count and not share:
        raise InvalidRequest(
            f"max_failures: a count from 0, a share such as 0.2, or None is needed, not {value!r}", field="max_failures"
        )


@frozen
class FailureLimit:
    """Ends a job that fails too often: after more than ``most`` failed requests, or more than that share of them.

    A share counts from the twentieth request on; what is sent again counts once, when it is over. None: never.
    """

    most: float | None = field(default=0.5, validator=_failures)

    def blown(self, failures: int, requests: int) -> bool:
        """Tell whether the job is to end."""
        if self.most is None:
            return False
        if isinstance(self.most, int):
            return failures > self.most
        return requests >= FEW and failures / requests > self.most


class RunCounts:
    """The counts of one run."""

    def __init__(self, loaded: Loaded, counts: Mapping[AccountState, int], now: float) -> None:
        self._loaded = loaded
        self._states = dict(counts)
        self.waiting = self._states.pop(AccountState.WAITING) + self._states.pop(AccountState.AGAIN)
        """The accounts that wait, those in flight among them."""
        self.in_flight = 0
        self.requests = 0
        self.settled = 0
        """The requests after which no account in them waits: what is sent again counts when it is over."""
        self.failures = 0
        self._throttled = 0
        self._began = self._sampled = self._changed = now
        self._area = 0.0  # of requests in flight over time, since the last sample
        self._then = self._present()
        self._lately: deque[Sample] = deque(maxlen=LATELY)

    def _present(self) -> tuple[int, int, int, int]:
        return self.requests, sum(self._states.values()), self._throttled, self.failures

    def _since(self) -> list[int]:
        return [value - before for value, before in zip(self._present(), self._then, strict=True)]

    def flies(self, by: int, now: float) -> None:
        """Note that a request leaves (1), or is over (-1)."""
        self._area += self.in_flight * (now - self._changed)
        self._changed = now
        self.in_flight += by

    def ended(self, settlement: Settlement | None, accounts: int, *, throttled: bool, final: bool) -> None:
        """Note what became of a request with so many accounts."""
        self.requests += 1
        self._throttled += throttled
        self.failures += final
        if settlement is None or settlement.state is None:
            return
        self.settled += 1
        self.waiting -= accounts
        self._states[settlement.state] += accounts - len(settlement.apart)
        for _, state, _ in settlement.apart:
            self._states[state] += 1

    def sample(self, at: float, now: float, concurrency: int, rate: float | None) -> Sample:
        """Return what happened since the last sample; ``at`` is the time of day in epoch seconds."""
        self.flies(0, now)
        seconds = max(now - self._sampled, INSTANT)
        requests, accounts, throttled, failed = self._since()
        made = Sample(at, seconds, requests, accounts, throttled, failed, self._area / seconds, concurrency, rate)
        self._sampled, self._area, self._then = now, 0.0, self._present()
        self._lately.append(made)
        return made

    def snapshot(self, phase: Phase, now: float, concurrency: int) -> Snapshot:
        """Return how far the job is."""
        requests, accounts, _, _ = self._since()
        lately = tuple(self._lately)  # at one blow: another thread may look, to export how far the job is
        seconds = max(sum(each.seconds for each in lately) + now - self._sampled, INSTANT)
        rate = (sum(each.accounts for each in lately) + accounts) / seconds
        per_second = (sum(each.requests for each in lately) + requests) / seconds
        states = self._states
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
            request_rate=per_second,
            concurrency=concurrency,
            elapsed=now - self._began,
            eta=self.waiting / rate if rate > 0 and phase != "halted" else None,
        )
