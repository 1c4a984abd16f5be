"""The protocols between receiver, inbox and worker.

A :class:`Sink` stores deliveries. An :class:`Inbox` also gives them out to workers, through a :class:`Backlog`,
conversation by conversation, each under a lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery


__all__ = ["Backlog", "Claim", "Inbox", "LeaseLost", "Sink"]

# Theory of operation: the lease of a conversation.
#
#   ready    An event waits; no worker has the conversation. It may be claimed.
#   leased   One worker has it, under a fence (a number that grows with every lease of the inbox), until the lease's end.
#   pausing  A retry waits for its time. No worker has the conversation, and it cannot be claimed yet.
#   (absent) No event of the conversation waits.
#
# absent -> ready     accept() stores an event, or a replay lets one wait again
# ready -> leased     claim()
# leased -> leased    renew() extends it; done() or dead_letter() with more=True and another event: same lease, next claim
# leased -> ready     release(); done() or dead_letter() with more=False while other events wait
# leased -> pausing   retry(), for ``pause`` seconds; then pausing -> ready
# leased -> absent    done() or dead_letter() of the last waiting event
# leased -> leased    by another worker, under a new fence, once the lease has expired: the old holder has lost it
#
# What must always hold:
# - At most one fence of a conversation is valid. A method with an older one changes nothing: LeaseLost (done, retry,
#   dead_letter), or no effect (release, renew).
# - Only the oldest waiting event of a conversation is claimed, so its events are handled in the order of acceptance.
# - An attempt is counted before it is made; only release() takes it back.


class Sink(Protocol):
    """The store of accepted deliveries: an async context manager that the receiver enters and leaves.

    ``durable`` tells whether accepted deliveries survive the process, ``retention`` for how many seconds their keys are
    remembered. A sink that seldom waits may also have ``accept_now(delivery)``, a plain method that returns the result of
    ``accept``, or None if ``accept`` would have to wait. It saves the receiver a timer.
    """

    @property
    def durable(self) -> bool:
        """Whether accepted deliveries survive the end of the process."""
        ...

    @property
    def retention(self) -> float:
        """Seconds for which the key of an accepted delivery is remembered, even across restarts."""
        ...

    async def accept(self, delivery: Delivery, /) -> bool:
        """Store a delivery; return True if it is new, False if its key was accepted before.

        If this raises any error, the delivery counts as not accepted. It may be cancelled when it takes too long; the
        delivery may then be accepted or not.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


@frozen(kw_only=True)
class Claim:
    """An event to handle, under a lease of its conversation.

    ``number`` is its place in the order of acceptance; ``attempt`` counts from 1. ``fence`` grows with every lease of the
    inbox, so that results of an older lease are refused. ``replays`` is the number of replays after it had been handled.
    """

    number: int
    key: str
    conversation: str
    app_id: str
    body: bytes
    received: datetime
    attempt: int
    fence: int
    replays: int = 0


class LeaseLost(Exception):
    """The lease expired and another worker has the conversation, or the event is settled: nothing was recorded."""


class Backlog(Protocol):
    """The waiting events, for one worker in one event loop. Many tasks may call its methods at once.

    A lease lasts until the conversation's last waiting event is settled, or the claim is retried or released.
    """

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        """Claim at most ``limit`` events: the oldest waiting event of each conversation that is not leased.

        Counts the attempt before it is made, so that an event that kills its process also uses up its attempts.
        """
        ...

    async def done(self, claim: Claim, /, *, more: bool) -> Claim | None:
        """Record an event as handled. With ``more``, return the next claim of the conversation, under the same lease.

        Raises LeaseLost.
        """
        ...

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        """Record a failed attempt and pause the conversation for ``pause`` seconds. Raises LeaseLost."""
        ...

    async def dead_letter(self, claim: Claim, /, *, error: str, more: bool) -> Claim | None:
        """Make an event a dead letter, with the traceback; ``more`` and the result as in ``done``. Raises LeaseLost."""
        ...

    async def release(self, claim: Claim, /) -> None:
        """Give an event back unhandled; its attempt does not count. Does nothing if the lease is lost."""
        ...

    async def renew(self, claims: Sequence[Claim], /) -> None:
        """Extend leases to their full time from now, except those that are lost."""
        ...

    async def wait(self) -> None:
        """Wait until a claim may succeed: an event was accepted (by any process), a pause ended, or a lease expired."""
        ...


class Inbox(Sink, Protocol):
    """A sink that also gives out its events, each conversation in order and to one worker at a time."""

    @property
    def lease(self) -> float:
        """Seconds that a lease lasts without renewal."""
        ...

    def backlog(self) -> AbstractAsyncContextManager[Backlog]:
        """Return a backlog for the event loop that enters it; deliveries may be accepted in another one."""
        ...
