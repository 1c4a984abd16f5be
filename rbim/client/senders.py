"""How jobs and fan-outs send: with low priority; jobs with requests that are prepared, and marked when they leave.

A sender that is no client has no limits in which requests could wait: they leave at once. A carrier gets a key with each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rbim.client.client import View
from rbim.errors import RbimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim.operations.base import Operation
    from rbim.operations.carrier import Carried, Carrier
    from rbim.operations.namespace import Sender

__all__ = ["PreparedRequest", "RecalledRequest", "in_background", "prepare"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class PreparedRequest(Protocol[R_co]):
    """A request that is sent once; :class:`~rbim.client.prepared.Prepared` is one."""

    @property
    def may_have_acted(self) -> bool:
        """Whether the platform may have acted on the request."""
        ...

    @property
    def latency(self) -> float | None:
        """Seconds that the platform took, once that is known; None: the time from ``leaves`` to the answer."""
        ...

    async def send(self) -> R_co:
        """Send the request, once, and return its answer. Raises what the sender raises."""
        ...


class _Unlimited(Generic[R]):
    """A request of a sender that is no client: it leaves as soon as it is sent."""

    def __init__(self, sender: Sender, op: Operation[R], leaves: Callable[[], object]) -> None:
        self._sender = sender
        self._op = op
        self._leaves = leaves
        self.may_have_acted = False
        self.latency: float | None = None

    async def send(self) -> R:
        self._leaves()
        self.may_have_acted = True
        return await self._sender.send(self._op)


class _CarriedRequest(Generic[R]):
    """A request that a carrier hands to a worker."""

    def __init__(self, carrier: Carrier, op: Operation[R], key: str, leaves: Callable[[], object]) -> None:
        self._carrier = carrier
        self._op = op
        self._key = key
        self._leaves = leaves
        self.may_have_acted = False
        self.latency: float | None = None

    async def send(self) -> R:
        self._leaves()
        self.may_have_acted = True
        return await self._answer(self._carrier.carry(self._op, key=self._key))

    async def _answer(self, carrying: Awaitable[Carried[R]]) -> R:
        try:
            carried = await carrying
        except RbimError as error:
            self.latency = sum(attempt.elapsed for attempt in error.attempts)
            raise
        self.latency = carried.elapsed
        return carried.answer


class RecalledRequest(_CarriedRequest[R]):
    """A request that an ended process has begun: it is asked for, and not sent."""

    def __init__(self, carrier: Carrier, op: Operation[R], key: str) -> None:
        super().__init__(carrier, op, key, leaves=bool)
        self.may_have_acted = True

    async def send(self) -> R:
        """Return the answer; raises what :meth:`rbim.Carrier.recall` raises."""
        return await self._answer(self._carrier.recall(self._op, key=self._key))


def in_background(sender: Sender) -> Sender:
    """Return a sender whose calls have low priority, if it is a client or a view without a priority of its own."""
    view = _view(sender)
    return sender if view is None or view.priority is not None else view.tuned(priority="low")


def prepare(
    sender: Sender, op: Operation[R], leaves: Callable[[], object], *, carrier: Carrier | None, key: str
) -> PreparedRequest[R]:
    """Prepare a request; ``leaves`` is called at the moment at which it leaves, see :meth:`rbim.View.prepare`.

    ``carrier``: the sender if it is one, which is slow to find out. ``key``: by which a carrier knows the request.
    """
    view = _view(sender)
    if view is not None:
        return view.prepare(op, leaves)
    return _Unlimited(sender, op, leaves) if carrier is None else _CarriedRequest(carrier, op, key, leaves)


def _view(sender: Sender) -> View | None:
    """Return a client or a view; None for another sender, also for a class of its own that sends in another way."""
    return sender if isinstance(sender, View) and type(sender).send is View.send else None
