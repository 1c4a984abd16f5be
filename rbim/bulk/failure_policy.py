"""What a failed request means for its accounts, and whether it is sent again: decisions only.

===============================  ==========================================================================
the request                      what becomes of it
===============================  ==========================================================================
was throttled                    it is sent again where it may be repeated; that spends no attempt
was not sent                     it is sent again, however often
has an unknown outcome           as the retry policy says it is sent again (never what must not be repeated);
                                 after the last attempt its accounts are unknown
was refused                      its accounts have failed; or its halves are sent, to find out which of them;
                                 they are unknown if an earlier sending may have had its effect
was refused, its timestamp old   it is signed and sent again, once
credentials were refused         the job stops; its accounts wait on
===============================  ==========================================================================
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rbim.bulk.states import AccountState, RequestState
from rbim.bulk.work import FailureReason, Settlement, failure_reason
from rbim.errors import (
    ApiError,
    AuthenticationError,
    ClientClosed,
    DeadlineExceeded,
    InvalidRequest,
    Outcome,
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

BRIEFLY = 1.0
"""Seconds before what was not sent is tried again."""

LONGEST_PAUSE = 300.0
"""Seconds that one ``Retry-After`` can put off a request for."""

TOO_MANY_REQUESTS = 429


class Step(Enum):
    """What is done next about a request."""

    SETTLED = "settled"
    AGAIN = "again"
    SPLIT = "split"
    STOP = "stop"
    """The whole job stops."""


class Signal(Enum):
    """What the answer, or the lack of one, tells the pace."""

    ANSWERED = "answered"
    THROTTLED = "throttled"
    LOST = "lost"
    NOTHING = "nothing"


@frozen(kw_only=True)
class Decision:
    """What a failure means. ``pause`` is the seconds before the next sending; ``final``: it counts as a failure of the job;
    ``anew``: the timestamp was too old.

    Without a settlement the request stays open, as if the process had been killed.
    """

    step: Step
    signal: Signal
    settlement: Settlement | None
    pause: float = 0.0
    retry_after: float | None = None
    final: bool = False
    anew: bool = False


def judge(op: Operation[Any], chunk: Chunk, error: RbimError, *, retry: Retry, dialect: Dialect) -> Decision:
    """Return what to do about a request that was not answered well."""
    why = failure_reason(error)
    alone = chunk.resent and len(chunk.accounts) == 1  # of several, nobody knows which one it is about
    if alone and isinstance(error, ApiError) and error.code in dialect.already_so.get(op.spec.name, ()):
        return Decision(  # the lost request has done it
            step=Step.SETTLED,
            signal=Signal.ANSWERED,
            settlement=Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE, why=why),
        )
    if isinstance(error, ClientClosed):
        return Decision(step=Step.STOP, signal=Signal.NOTHING, settlement=_waiting(error, why))
    if isinstance(error, AuthenticationError) and error.outcome is Outcome.REFUSED:
        anew = isinstance(error, TimestampExpired) and not chunk.expired
        step = Step.AGAIN if anew else Step.STOP
        return Decision(step=step, signal=Signal.ANSWERED, settlement=_waiting(error, why), anew=anew)
    if isinstance(error, Throttled) and error.outcome is Outcome.REFUSED:
        return _throttled(op, chunk, error, why, dialect)
    if error.outcome is Outcome.UNKNOWN:
        return _unknown(op, chunk, error, why, retry=retry, dialect=dialect)
    if error.outcome is Outcome.NOT_SENT and not isinstance(error, InvalidRequest):
        late = isinstance(error, DeadlineExceeded)  # the sender's own limits let nothing go: the platform may be well
        signal = Signal.NOTHING if late else Signal.LOST
        return Decision(step=Step.AGAIN, signal=signal, settlement=_waiting(error, why), pause=BRIEFLY)
    return _refused(chunk, error, why)


def failed(chunk: Chunk) -> AccountState:
    """Return what accounts are whose request is refused for good: unknown, where an earlier one may have had its effect."""
    return AccountState.UNKNOWN if chunk.resent else AccountState.FAILED


def _waiting(error: RbimError, why: FailureReason) -> Settlement | None:
    if error.outcome is Outcome.UNKNOWN:
        return None
    outcome = RequestState.REFUSED if error.outcome is Outcome.REFUSED else RequestState.NOT_SENT
    return Settlement(outcome=outcome, why=why, again=True)


def _refused(chunk: Chunk, error: RbimError, why: FailureReason) -> Decision:
    """Judge what the platform, or a check of ours, will not have."""
    here = isinstance(error, InvalidRequest)
    outcome, signal = (RequestState.NOT_SENT, Signal.NOTHING) if here else (RequestState.REFUSED, Signal.ANSWERED)
    if len(chunk.accounts) > 1:
        return Decision(step=Step.SPLIT, signal=signal, settlement=Settlement(outcome=outcome, why=why))
    return Decision(
        step=Step.SETTLED,
        signal=signal,
        settlement=Settlement(outcome=outcome, state=failed(chunk), why=why),
        final=True,
    )


def _throttled(op: Operation[Any], chunk: Chunk, error: Throttled, why: FailureReason, dialect: Dialect) -> Decision:
    row = dialect.codes.get(error.code)
    harmless = error.status == TOO_MANY_REQUESTS or (row is not None and row.before_effect)
    again = harmless or op.repeat is not Repeat.NEVER
    return Decision(
        step=Step.AGAIN if again else Step.SETTLED,
        signal=Signal.THROTTLED,
        settlement=Settlement(outcome=RequestState.REFUSED, state=None if again else failed(chunk), why=why, again=again),
        retry_after=error.retry_after,
        final=not again,
    )


def _unknown(  # noqa: PLR0913  # what a decision needs
    op: Operation[Any], chunk: Chunk, error: RbimError, why: FailureReason, *, retry: Retry, dialect: Dialect
) -> Decision:
    pause = retry.pause(op, error, chunk.lost + 1, dialect.codes)
    if pause is None and isinstance(error, DeadlineExceeded) and op.repeat is not Repeat.NEVER:
        pause = BRIEFLY if chunk.lost + 1 < retry.attempts else None
    throttled = isinstance(error, Throttled)
    again = pause is not None
    return Decision(
        step=Step.AGAIN if again else Step.SETTLED,
        signal=Signal.THROTTLED if throttled else Signal.LOST,
        settlement=Settlement(
            outcome=RequestState.UNKNOWN, state=None if again else AccountState.UNKNOWN, why=why, again=again
        ),
        pause=min(pause or 0.0, LONGEST_PAUSE),
        retry_after=error.retry_after if isinstance(error, ApiError) else None,
        final=not again,
    )
