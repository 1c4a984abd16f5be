"""Rules that end a run early, or close one of its groups: failures, silence, no progress, no connection.

This module only decides, with times of a monotonic clock that are passed in; the dispatcher acts. It learns the end of each
request (:meth:`StopRules.ended`) and, every second, that the process runs (:meth:`StopRules.tick`).
"""

# A run ends by the first rule that holds of the table in `StopRules._stop`.
#
# A pause that the platform asks for (Retry-After) is neither silence nor time without progress, up to MAX_PAUSE seconds
# between two settled accounts. Time in which the process slept (SIGSTOP) does not count either.
#
# A group is closed after refusals in a row that concern the whole group (see `_Closing`), without one account done between
# them. A group that the platform does not know counts as one failure of the run. Refusals that arrive after a group was
# closed count as failures only in a count.

from __future__ import annotations

from collections import Counter, deque
from math import ceil, inf
from typing import TYPE_CHECKING, Literal, NamedTuple

from attrs import define

from rbim._support.text import one_line
from rbim.bulk.failure_policy import MAX_PAUSE, Signal, Step
from rbim.bulk.work import MAX_REASON, AccountState, FailureReason, RequestState

if TYPE_CHECKING:
    from collections.abc import Collection

    from rbim.bulk.failure_policy import Decision
    from rbim.bulk.work import Chunk

__all__ = ["StopReason", "StopRules", "Verdict"]

StopReason = Literal["fuse", "not connected", "no answer", "no progress"]

MIN_REQUESTS = 20
"""Requests that must have ended before a share of failures can end the job."""

WINDOW = 200
"""The latest requests to which a share applies, at least; for small shares as many as can hold ``FAILURES``."""

FAILURES = 100

CONNECT_PATIENCE = 18.0
"""Seconds after which a run ends that never had a connection; with a timeout of 10 s, it ends within 30 s."""

LOOK, SLEPT = 1.0, 5.0
"""Seconds between two looks at the clock while the process runs; and those that mean that it slept."""


class Verdict(NamedTuple):
    """Why the run stops, if it does; and the reason for the accounts that are not sent, if the request's group is closed."""

    stop: StopReason | None = None
    close: FailureReason | None = None


class _Closing(NamedTuple):
    """Refusals in a row, for one reason, that close a group.

    ``accounts``: those that ``fails`` lists. ``others_done``: only if other groups have accounts done meanwhile.
    ``without_limit``: also if the job has no failure limit.
    """

    requests: int
    accounts: int = 0
    others_done: bool = False
    without_limit: bool = False


NO_GROUP = _Closing(requests=3, without_limit=True)
"""The platform says that the group does not exist, or is full."""

ALL_REFUSED = _Closing(requests=3, accounts=20)
"""``fails`` lists every account of the requests."""

ONE_CODE = _Closing(requests=20, others_done=True)
"""Whole requests are refused with one other code."""


@define
class _Refusals:
    """Refusals in a row in one group, by one rule and for one reason: its code, beside which the text may name an account.

    ``done_before``: requests of the run that had accounts done before the first refusal.
    """

    rule: _Closing
    reason: str
    done_before: int
    requests: int = 0
    accounts: int = 0


class StopRules:
    """Decides about one run that begins at ``now``.

    ``max_failures`` and ``patience`` (seconds) are those of the job. A reason of ``fails`` in ``known`` closes no group: it
    says that an account is a member already.
    """

    def __init__(self, *, max_failures: float | None, patience: float, now: float, known: Collection[str] = ()) -> None:
        self._max_failures = max_failures
        # the latest requests that count: all, if the limit is a count
        self._window = max(WINDOW, ceil(FAILURES / max_failures)) if isinstance(max_failures, float) else inf
        self._patience = patience
        self._known = known
        self._settled = 0
        self._failed_at = deque[int]()  # numbers of the settled requests that failed; of a share, those in the window
        self._seen = now
        self._asleep = 0.0  # seconds; all other times are without them
        self._woke = self._answered_at = now
        self._connected = False
        self._halted_until = -inf
        self._silent_since = self._stuck_since = inf  # not silent, not stuck
        self._too_many_failed = False
        self._pauses = 0.0  # seconds of pauses that the platform asked for since the last settled account
        self._done = 0  # requests that had an account done
        self._refusals: dict[str, _Refusals] = {}
        self.closed: dict[str, FailureReason] = {}
        """The groups to which nothing more is to be sent, with the reason for their accounts."""
        self.cause = ""
        """The last failure of a request since the last answer that settled accounts; empty if there is none."""

    @property
    def is_unreachable(self) -> bool:
        """Whether requests have ended, and none of them had a connection."""
        return not self._connected and self._silent_since < inf

    def tick(self, now: float) -> StopReason | None:
        """Note that the process runs; return why the run ends, if no request needs to end for that. Call it every second."""
        now = self._awake(now)
        return None if self._connected else self._stop(now)

    def ended(self, chunk: Chunk, decision: Decision, now: float, elapsed: float) -> Verdict:
        """Note the end of a request that took ``elapsed`` seconds, and decide."""
        now = self._awake(now)
        self._note_times(decision, now, elapsed)
        close = None if chunk.group in self.closed else self._group(chunk, decision)
        self._note_failure(chunk, decision)
        if close is not None:
            self.closed[chunk.group] = close
            del self._refusals[chunk.group]
        return Verdict(self._stop(now), close)

    def _awake(self, now: float) -> float:
        """Return the time without that in which the process slept."""
        gap, self._seen = now - self._seen, now
        if gap > SLEPT:
            self._asleep += gap - LOOK
            self._woke = now - self._asleep
        return now - self._asleep

    def _stop(self, now: float) -> StopReason | None:
        """Return why the run ends, if it does."""
        silent, stuck = now - self._silent_since, now - self._stuck_since
        rules: dict[StopReason, bool] = {
            # there was never a connection
            "not connected": not self._connected and silent > min(self._patience, CONNECT_PATIENCE),
            # requests are lost, and no answer of any kind comes
            "no answer": silent > self._patience,
            # answers come, such as throttling, but no account is settled
            "no progress": stuck > self._patience + min(self._pauses, MAX_PAUSE),
            # more requests failed for good than the failure limit allows
            "fuse": self._too_many_failed,
        }
        return next((reason for reason, holds in rules.items() if holds), None)

    def _note_times(self, decision: Decision, now: float, elapsed: float) -> None:
        signal, settlement = decision.signal, decision.settlement
        if signal is Signal.NOTHING:
            return
        if signal is Signal.LOST:
            self._connected |= settlement is None or settlement.outcome is not RequestState.NOT_SENT
            if self._silent_since == inf:
                self._silent_since = max(self._answered_at, self._woke, self._halted_until, now - elapsed)
        else:
            self._connected, self._answered_at, self._silent_since = True, now, inf
        settled = settlement is not None and (settlement.state is not None or decision.step is Step.SPLIT)
        if settled:
            self._stuck_since, self._pauses = inf, 0.0
        elif signal is not Signal.ANSWERED and self._stuck_since == inf:
            self._stuck_since = now
        if settlement is not None and settlement.reason is not None and signal is not Signal.ANSWERED:
            self.cause = settlement.reason.text
        elif settled:
            self.cause = ""
        if signal is Signal.THROTTLED and decision.retry_after is not None:
            ends = now + min(decision.retry_after, MAX_PAUSE)
            self._pauses += max(0.0, ends - max(now, self._halted_until))
            self._halted_until = max(self._halted_until, ends)

    def _note_failure(self, chunk: Chunk, decision: Decision) -> None:
        most = self._max_failures
        if decision.settlement is None or decision.settlement.state is None:
            return
        refusals = self._refusals.get(chunk.group)
        counted = refusals is not None and decision.whole_group and refusals.requests > 1
        if (counted or chunk.group in self.closed) and not isinstance(most, int):
            return
        self._settled += 1
        if not decision.final or most is None:
            return
        self._failed_at.append(self._settled)
        while self._failed_at[0] <= self._settled - self._window:
            self._failed_at.popleft()
        failures, requests = len(self._failed_at), min(self._settled, self._window)
        if isinstance(most, int):
            self._too_many_failed = failures > most
        else:
            self._too_many_failed = requests >= MIN_REQUESTS and failures / requests > most

    def _group(self, chunk: Chunk, decision: Decision) -> FailureReason | None:
        """Return the reason to close the chunk's group, if there is one."""
        settlement = decision.settlement
        if settlement is None or decision.signal is not Signal.ANSWERED:
            return None
        if settlement.outcome is RequestState.REFUSED:
            if not decision.final or settlement.reason is None:
                return None
            rule, reason, accounts = NO_GROUP if decision.whole_group else ONE_CODE, settlement.reason, 0
        else:
            states = [state for _, state, _ in settlement.individual]
            others = settlement.state is AccountState.DONE and len(states) < len(chunk.accounts)
            if others or AccountState.DONE in states:
                self._done += 1
                self._refusals.pop(chunk.group, None)
                return None
            refused = (each for _, state, each in settlement.individual if state is AccountState.REFUSED)
            reasons = Counter(each for each in refused if each.text not in self._known)
            if not reasons:
                return None
            rule, (reason, accounts) = ALL_REFUSED, reasons.most_common(1)[0]
        refusals, key = self._refusals.get(chunk.group), reason.code or reason.text
        if refusals is None or (refusals.rule, refusals.reason) != (rule, key):
            refusals = self._refusals[chunk.group] = _Refusals(rule, key, self._done)
        refusals.requests += 1
        refusals.accounts += accounts
        if (
            refusals.requests < rule.requests
            or refusals.accounts < rule.accounts
            or (rule.others_done and self._done == refusals.done_before)
            or (self._max_failures is None and not rule.without_limit)
        ):
            return None
        text = f"not sent: the group was closed after {refusals.requests} refusals in a row: {reason.text}"
        return reason._replace(text=one_line(text, MAX_REASON))
