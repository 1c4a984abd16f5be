"""What a client and all its views share, and what they may differ in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from rbim.gate import Gate
from rbim.pace import Pace
from rbim.retry import RetryBudget

if TYPE_CHECKING:
    from anyio import Event

    from rbim.codec import Codec
    from rbim.message import Clock, Scope, Signer, Transport
    from rbim.observe import Watchers
    from rbim.pace import Limits
    from rbim.retry import Retry

__all__ = ["Core", "Settings"]


@frozen(kw_only=True)
class Settings:
    """What views of a client may differ in: acting account, seconds per attempt, seconds per call, retrying."""

    user_name: str | None
    timeout: float
    deadline: float
    retry: Retry


class Core:
    """One gate, one pace and one retry budget over one transport, and the calls that are running."""

    def __init__(  # noqa: PLR0913  # the parts that the client puts together
        self,
        *,
        transport: Transport,
        signer: Signer,
        codec: Codec,
        clock: Clock,
        limits: Limits,
        watchers: Watchers | None,
    ) -> None:
        self.transport = transport
        self.signer = signer
        self.codec = codec
        self.clock = clock
        self.gate = Gate(limits.concurrency)
        self.pace = Pace(limits.rates)
        self.budget = RetryBudget()
        self.watchers = watchers
        self.running: set[Scope] = set()
        self.state = "new"  # then "opening", "open", "closing", "closed"
        self.calls = 0
        self.all_ended: Event | None = None

    def ended(self, scope: Scope) -> None:
        """Note that a call has ended; tell a client that waits for it."""
        self.running.discard(scope)
        if self.all_ended is not None and not self.running:
            self.all_ended.set()
