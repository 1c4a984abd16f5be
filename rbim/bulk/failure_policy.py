"""Failure policy: what a failed request means for its accounts, and whether it is sent again.

This module only decides; the dispatcher acts.

===============================  ==========================================================================
the request                      decision
===============================  ==========================================================================
was throttled                    sent again after its Retry-After (default: 1 s) if it may be repeated; uses no
                                 attempt
was not sent                     sent again without a limit
has an unknown outcome           sent again as the retry policy allows (never an operation that must not be
                                 repeated); after the last attempt its accounts are unknown
was refused                      its accounts have failed; or its halves are sent, to find the accounts to
                                 blame (not if the group does not exist); unknown if an earlier sending may have taken effect
was refused, timestamp too old   signed and sent again, once
credentials were refused         the job stops; its accounts keep waiting
met something in between         sent again without a limit, if the outcome is "refused", as if it was not sent; a redirect
                                 stops the job
===============================  ==========================================================================
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rbim.bulk.work import AccountState, RequestState, Settlement, failure_reason
from rbim.codes import FULL
from rbim.errors import (
    ApiError,
    AuthenticationError,
    ClientClosed,
    DeadlineExceeded,
    IntermediaryError,
    InvalidRequest,
    NotFound,
    RbimError,
    Throttled,
    TimestampExpired,
)
from rbim.operations.base import Repeat

if TYPE_CHECKING:
    from rbim.bulk.work import Chunk
    from rbim.client.retry import Retry
    from rbim.dialect import Dialect
    from rbim.operations.base import Operation

__all__ = ["Decision", "Signal", "Step", "failed", "judge"]

SHORT_PAUSE = 1.0
"""Seconds before a request that was not sent, or was throttled without a Retry-After, is tried again."""

MAX_PAUSE = 300.0
"""Seconds by which one ``Retry-After`` can delay a request, at most."""

TOO_MANY_REQUESTS = 429
REDIRECTS = range(300, 400)


class Step(Enum):
    """The next step for a request."""

    SETTLED = "settled"
    AGAIN = "again"
    SPLIT = "split"
    STOP = "stop"
    """The whole job stops."""


class Signal(Enum):
    """The information that a request's end gives to the pace."""

    ANSWERED = "answered"
    THROTTLED = "throttled"
    LOST = "lost"
    NOTHING = "nothing"


@frozen(kw_only=True)
class Decision:
    """The consequence of a request's end.

    ``pause``: seconds before the next sending. ``retry_after``: seconds that the platform asked for, if it did.
    ``expired``: the timestamp was too old, sign again. ``whole_group``: the refusal concerns every account of the group.
    Without a settlement the request stays open, as if the process had been killed.
    """

    step: Step
    signal: Signal
    settlement: Settlement | None
    pause: float = 0.0
    retry_after: float | None = None
    expired: bool = False
    whole_group: bool = False

    @property
    def final(self) -> bool:
        """Whether it counts as a failure of the job: the request had no answer, and its accounts are settled."""
        settlement = self.settlement
        return settlement is not None and settlement.state is not None and settlement.outcome is not RequestState.ANSWERED


def judge(op: Operation[Any], chunk: Chunk, error: RbimError, *, retry: Retry, dialect: Dialect) -> Decision:
    """Decide what to do about a request that ended with an error."""
    reason, outcome = failure_reason(error), RequestState[error.outcome.name]
    waits = None if outcome is RequestState.UNKNOWN else Settlement(outcome=outcome, reason=reason, again=True)
    resent_alone = chunk.resent and len(chunk.accounts) == 1  # of several, the code does not say which
    if resent_alone and isinstance(error, ApiError) and error.code in dialect.already_so.get(op.spec.name, ()):
        done = Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE, reason=reason)  # by the earlier sending
        return Decision(step=Step.SETTLED, signal=Signal.ANSWERED, settlement=done)
    if isinstance(error, ClientClosed):
        return Decision(step=Step.STOP, signal=Signal.NOTHING, settlement=waits)
    if outcome is RequestState.UNKNOWN:
        pause = retry.pause(op, error, chunk.unknown_attempts + 1, dialect.codes)
        late = isinstance(error, DeadlineExceeded) and chunk.unknown_attempts + 1 < retry.attempts
        if pause is None and late and op.repeat is not Repeat.NEVER:
            pause = SHORT_PAUSE
        signal = Signal.THROTTLED if isinstance(error, Throttled) else Signal.LOST
        return _again_or_settled(error, signal, pause, AccountState.UNKNOWN)
    if isinstance(error, AuthenticationError) and outcome is RequestState.REFUSED:
        expired = isinstance(error, TimestampExpired) and not chunk.expired
        step = Step.AGAIN if expired else Step.STOP
        return Decision(step=step, signal=Signal.ANSWERED, settlement=waits, expired=expired)
    if isinstance(error, IntermediaryError) and outcome is RequestState.REFUSED:  # says nothing of the accounts
        step = Step.STOP if error.status in REDIRECTS else Step.AGAIN
        pause = min(SHORT_PAUSE if error.retry_after is None else error.retry_after, MAX_PAUSE)
        return Decision(step=step, signal=Signal.LOST, settlement=waits, pause=pause)
    if isinstance(error, Throttled) and outcome is RequestState.REFUSED:
        row = dialect.codes.get(error.code)
        no_effect = error.status == TOO_MANY_REQUESTS or (row is not None and row.before_effect)
        again = no_effect or op.repeat is not Repeat.NEVER
        pause = SHORT_PAUSE if error.retry_after is None else error.retry_after
        return _again_or_settled(error, Signal.THROTTLED, pause if again else None, failed(chunk))
    local = isinstance(error, InvalidRequest)
    if outcome is RequestState.NOT_SENT and not local:
        # a deadline passed because the sender's own limits held it: that says nothing of the platform
        signal = Signal.NOTHING if isinstance(error, DeadlineExceeded) else Signal.LOST
        return Decision(step=Step.AGAIN, signal=signal, settlement=waits, pause=SHORT_PAUSE)
    no_group = isinstance(error, NotFound)
    split = len(chunk.accounts) > 1 and not no_group
    outcome = RequestState.NOT_SENT if local else RequestState.REFUSED
    return Decision(
        step=Step.SPLIT if split else Step.SETTLED,
        signal=Signal.NOTHING if local else Signal.ANSWERED,
        settlement=Settlement(outcome=outcome, state=None if split else failed(chunk), reason=reason),
        whole_group=no_group or (isinstance(error, ApiError) and error.code == FULL),
    )


def failed(chunk: Chunk) -> AccountState:
    """Return the state of accounts whose request was refused for good: UNKNOWN if an earlier sending may have acted."""
    return AccountState.UNKNOWN if chunk.resent else AccountState.FAILED


def _again_or_settled(error: RbimError, signal: Signal, pause: float | None, after: AccountState) -> Decision:
    """Send it again after a pause, or (None) settle its accounts with the state ``after``."""
    again, outcome = pause is not None, RequestState[error.outcome.name]
    return Decision(
        step=Step.AGAIN if again else Step.SETTLED,
        signal=signal,
        settlement=Settlement(outcome=outcome, state=None if again else after, reason=failure_reason(error), again=again),
        pause=min(pause or 0.0, MAX_PAUSE),
        retry_after=error.retry_after if isinstance(error, Throttled) else None,
    )
