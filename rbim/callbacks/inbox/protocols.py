"""The protocols between receiver, inbox and worker.

A :class:`Sink` makes deliveries safe; an :class:`Inbox` also gives them out again, through a :class:`Backlog`, conversation
by conversation, each under a lease.
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


class Sink(Protocol):
    """Where accepted deliveries go: an async context manager that the receiver enters and leaves.

    ``durable`` says whether what it took survives the process, ``retention`` for how many seconds it knows what it took.
    One that seldom has to wait may have ``accept_now(delivery)`` too, a plain method that returns what ``accept`` would, or
    None where that would wait: then nothing has to watch the time.
    """

    @property
    def durable(self) -> bool:
        """Whether what was accepted survives the end of the process."""
        ...

    @property
    def retention(self) -> float:
        """The seconds for which it tells a delivery from one that it accepted before, whatever happens to the process."""
        ...

    async def accept(self, delivery: Delivery, /) -> bool:
        """Return once the delivery is safe: True where it is new, False where its key was accepted before.

        Whatever it raises, the delivery counts as not accepted. It may be cancelled when it takes too long, and may then
        have accepted it or not.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


@frozen(kw_only=True)
class Claim:
    """An event to be handled, under a lease of its conversation.

    ``number`` is its place in the order of acceptance, ``attempt`` counts from 1, ``fence`` grows with every lease of the
    inbox: what the holder of an older one does is too late. ``replays`` says how often it was asked for again after it had
    been handled to the end.
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
    """The lease ran out, and another worker has the conversation: nothing was recorded."""


class Backlog(Protocol):
    """What waits to be handled, for one worker in one event loop. All methods may be called by many tasks at once.

    A lease lasts until the conversation's last waiting event is settled, or the claim is retried later or released.
    """

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        """Return at most ``limit`` events, each the oldest that waits in a conversation that nobody else has leased.

        Counts an attempt of each, before it is made: an event that kills its process runs out of attempts as any other.
        """
        ...

    async def done(self, claim: Claim, /, *, more: bool) -> Claim | None:
        """Record that an event was handled. With ``more``, return the next of its conversation under the same lease, if any.

        Raises LeaseLost.
        """
        ...

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        """Record that handling failed, and let the conversation rest for ``pause`` seconds. Raises LeaseLost."""
        ...

    async def bury(self, claim: Claim, /, *, error: str, more: bool) -> Claim | None:
        """Record that an event is dead, with the traceback, and go on as ``done`` does. Raises LeaseLost."""
        ...

    async def release(self, claim: Claim, /) -> None:
        """Give an event back unhandled, as if the attempt had not been made. Does nothing where the lease is lost."""
        ...

    async def renew(self, claims: Sequence[Claim], /) -> None:
        """Make the leases last for their full time again, those that are not lost."""
        ...

    async def wait(self) -> None:
        """Wait until there may be something new to claim: accepted here or by another process, due again, or left behind."""
        ...


class Inbox(Sink, Protocol):
    """A sink that gives out again what it took, each conversation in order and by one worker at a time."""

    @property
    def lease(self) -> float:
        """The seconds that a lease lasts unless it is renewed."""
        ...

    def backlog(self) -> AbstractAsyncContextManager[Backlog]:
        """Return a backlog for the event loop that enters it, which may be another than the one that accepts."""
        ...
