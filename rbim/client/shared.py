"""What a client and all its views share, and what they may differ in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import Attribute, field, frozen

from rbim.client.limits import ConcurrencyLimiter, RateLimiter
from rbim.client.retry import Retry, RetryBudget
from rbim.errors import InvalidRequest
from rbim.validators import above_zero

if TYPE_CHECKING:
    from anyio import Event

    from rbim.client.limits import Limits
    from rbim.client.observers import Observers
    from rbim.clock import Clock, Scope
    from rbim.http import Signer, Transport
    from rbim.wire.codec import Codec

__all__ = ["CallSettings", "Load", "SharedState"]


def _account(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidRequest(
            f"{attribute.name}: an account is a text that is not empty, not {value!r}", field=attribute.name
        )


def _retry(_: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, Retry):
        raise InvalidRequest(f"{attribute.name}: Retry(attempts=...) is needed, not {value!r}", field=attribute.name)


@frozen(kw_only=True)
class CallSettings:
    """What views of a client may differ in: acting account, seconds per attempt, seconds per call, retrying."""

    user_name: str | None = field(validator=_account)
    timeout: float = field(validator=above_zero)
    deadline: float = field(validator=above_zero)
    retry: Retry = field(validator=_retry)


@frozen(kw_only=True)
class Load:
    """What a client is busy with at this moment.

    Of its ``places`` for requests, ``in_flight`` are taken; ``waiting`` calls wait for one. ``calls`` run in all, those
    included that wait for a rate or for their next attempt. ``retries_left`` is what its retry budget allows (of 50), and
    ``halted`` the seconds for which the platform wants nothing sent.
    """

    places: int
    in_flight: int
    waiting: int
    calls: int
    retries_left: float
    halted: float


class SharedState:
    """The limits, the retry budget and the transport that a client shares with its views, and the calls that run."""

    def __init__(  # noqa: PLR0913  # the parts that the client puts together
        self,
        *,
        transport: Transport,
        signer: Signer,
        codec: Codec,
        clock: Clock,
        limits: Limits,
        observers: Observers | None,
    ) -> None:
        self.transport = transport
        self.signer = signer
        self.codec = codec
        self.clock = clock
        self.concurrency = ConcurrencyLimiter(limits.concurrency)
        self.rates = RateLimiter(limits.rates)
        self.budget = RetryBudget()
        self.observers = observers
        self.running: set[Scope] = set()
        self.state = "new"  # then "opening", "open", "closing", "closed"
        self.calls = 0
        self.all_ended: Event | None = None
        self.scope = clock.scope
        """What makes the scope of a call; the client finds a cheaper one where there is one."""

    @property
    def load(self) -> Load:
        """What there is to do now."""
        concurrency = self.concurrency
        return Load(
            places=concurrency.places,
            in_flight=concurrency.places - concurrency.free,
            waiting=concurrency.waiting,
            calls=len(self.running),
            retries_left=self.budget.left,
            halted=max(0.0, self.rates.halted_until - self.clock.monotonic()),
        )

    def ended(self, scope: Scope) -> None:
        """Note that a call has ended; tell a client that waits for it."""
        self.running.discard(scope)
        if self.all_ended is not None and not self.running:
            self.all_ended.set()
