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


__all__ = [
    "Backlog",
    "Claim",
    "Counts",
    "Inbox",
    "LeaseLost",
    "OtherContent",
    "Sink",
    "StoredEvent",
]

# Theory of operation: the lease of a conversation, and what happens when whoever has it dies.
#
#   ready    An event waits; no worker has the conversation. It may be claimed.
#   leased   One worker has it, under a fence (a number that grows with every lease of the inbox), until the lease's end.
#   pausing  A retry waits for its time. No worker has the conversation, and it cannot be claimed yet.
#   (absent) No event of the conversation waits.
#
# absent -> ready     accept() stores an event, or a replay lets one wait again
# ready -> leased     claim()
# leased -> leased    renew() extends it; done() or dead_letter() with ``more`` and another event
# leased -> ready     its time is over; release(); done() or dead_letter() without ``more`` while other events wait
# leased -> pausing   retry(), for ``pause`` seconds; then pausing -> ready
# leased -> absent    done() or dead_letter() of the last waiting event
#
# One number of each conversation tells how often its oldest event has begun without an end: ``begun``. A claim makes it 1,
# and the end of the attempt (done, retry, dead_letter) or a release makes it 0. So it is above 0 without a lease only after
# a death: of the process, of the worker in it, or of a loop that was blocked for longer than the lease. Nothing has to find
# out which. Such an event may be the cause, and is retried alone: claimed by itself, and begun (``begin``, which adds 1)
# when nothing else runs. Others that had begun beside it come out of this by their own success. One that has begun alone too
# often without an end becomes a dead letter; the worker decides that, by ``Claim.crashes``.
#
# What must always hold:
# - At most one fence of a conversation is valid. A method with an older one changes nothing: LeaseLost (done, retry,
#   dead_letter, begin), or no effect (release, renew, discount).
# - The oldest waiting events of a conversation are claimed, without gaps, and settled in this order.
# - An attempt that failed counts in ``attempts``, one without an end in ``begun``, and none in both.


@frozen(kw_only=True)
class OtherContent:
    """A delivery that had the key of another one and other content was stored in quarantine, under its own ``key``."""

    key: str
    problem: str


class Sink(Protocol):
    """The store of accepted deliveries: an async context manager that the receiver enters and leaves.

    ``durable`` tells whether accepted deliveries survive the process, ``retention`` for how many seconds their keys are
    remembered.

    A sink across a network has ``ready``, a bool: whether its servers can be reached now. In normal mode a receiver needs an
    overflow file for it, and while it is False stores deliveries there at once, instead of waiting for the budget to end.

    With an overflow file the receiver offers the deliveries of one conversation one at a time, so that they stay in order. A
    sink that keeps the order of its calls can let ``accept`` have a keyword ``chain``, a ``Chain`` (see
    :mod:`rbim.storage.group_commit`): deliveries are then offered at once, many conversations in one chain. Such a sink
    stores nothing of a chain that is ``broken``, and sets ``broken`` to the error as soon as one of its deliveries fails. A
    sink that wraps such a sink passes ``chain`` on, or has none: if it fails before it has called the other, it breaks the
    chain.
    """

    @property
    def durable(self) -> bool:
        """Whether accepted deliveries survive the end of the process."""
        ...

    @property
    def retention(self) -> float:
        """Seconds for which the key of an accepted delivery is remembered, even across restarts."""
        ...

    async def accept(self, delivery: Delivery, /) -> bool | OtherContent:
        """Store a delivery; return True if it is new, False if its key was accepted before.

        A sink that remembers content keeps a delivery with a known key and other content apart, and returns OtherContent.

        If this raises any error, the delivery counts as not accepted, and is offered again. InvalidRequest says that the
        sink will never accept it: the overflow file keeps it for people. It may be cancelled when it takes too long; the
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
    ``crashes`` is how often it has begun without an end, because its process or worker died (see :meth:`Backlog.begin`).
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
    crashes: int = 0


@frozen(kw_only=True)
class Counts:
    """Numbers of events in an inbox: waiting, done (kept to recognise resends), dead letters, in quarantine."""

    waiting: int
    done: int
    dead: int
    quarantined: int


@frozen(kw_only=True)
class StoredEvent:
    """An event of an inbox, as people look at it.

    ``state`` is ``waiting``, ``done``, ``dead`` (a dead letter) or ``quarantined``; ``error`` the cause of the last failure,
    empty if there is none. ``number`` is its place in the order of acceptance. ``attempts`` counts those that have ended.
    """

    number: int
    key: str
    conversation: str
    app_id: str
    body: bytes
    received: datetime
    attempts: int
    error: str
    msg_type: str
    state: str


class LeaseLost(Exception):
    """The lease expired and another worker has the conversation, or the event is settled: nothing was recorded."""


class Backlog(Protocol):
    """The waiting events, for one worker in one event loop. Many tasks may call its methods at once.

    A lease lasts until the conversation's last waiting event is settled, or the claim is retried or released.
    """

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        """Claim at most ``limit`` events: the oldest of conversations that are not leased, then the next ones of these.

        The events of a conversation come in its order and under one lease, those of other conversations may be between them.
        An event that is to be retried alone (``crashes`` above 0) comes first, and is the only one that is returned; while
        it is leased, nothing else is. No conversation is claimed that this backlog has leased, even if the clock says that
        the lease has expired.
        """
        ...

    async def begin(self, claim: Claim, /) -> None:
        """Note that an event with ``crashes`` is handled from now on, and nothing beside it: a death counts.

        Raises LeaseLost.
        """
        ...

    async def discount(self, claims: Sequence[Claim], /) -> None:
        """Let a death from now on count for nothing: these events have crashed as often as their claims say."""
        ...

    async def done(self, claims: Sequence[Claim], /, *, more: int) -> Sequence[Claim]:
        """Record the oldest events of a conversation as handled; return its oldest ``more`` waiting events.

        They are under the same lease, and include those that were claimed before. If none is returned, the lease has ended.
        Raises LeaseLost.
        """
        ...

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        """Record a failed attempt and pause the conversation for ``pause`` seconds. Raises LeaseLost."""
        ...

    async def dead_letter(self, claim: Claim, /, *, error: str, more: int) -> Sequence[Claim]:
        """Make an event a dead letter, with the traceback; ``more`` and the result as in ``done``. Raises LeaseLost."""
        ...

    async def release(self, claim: Claim, /, *, died: bool = False) -> None:
        """Give an event, and all later ones of its conversation, back unhandled. Does nothing if the lease is lost.

        ``died``: its handler had begun and did not end, because the worker ends without being stopped. This counts.
        """
        ...

    async def renew(self, claims: Sequence[Claim], /) -> Sequence[Claim]:
        """Extend leases to their full time from now; return the claims whose leases are lost."""
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
