"""How jobs and fan-outs send: with low priority; jobs with requests that are prepared, and marked when they leave.

A sender that is no client has no limits in which requests could wait: they leave at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rbim.client.client import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.operations.base import Operation
    from rbim.operations.namespace import Sender

__all__ = ["PreparedRequest", "in_background", "prepare"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class PreparedRequest(Protocol[R_co]):
    """A request that is sent once; :class:`~rbim.client.prepared.Prepared` is one."""

    @property
    def may_have_acted(self) -> bool:
        """Whether the platform may have acted on the request."""
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

    async def send(self) -> R:
        self._leaves()
        self.may_have_acted = True
        return await self._sender.send(self._op)


def in_background(sender: Sender) -> Sender:
    """Return a sender whose calls have low priority, if it is a client or a view without a priority of its own."""
    view = _view(sender)
    return sender if view is None or view.priority is not None else view.tuned(priority="low")


def prepare(sender: Sender, op: Operation[R], leaves: Callable[[], object]) -> PreparedRequest[R]:
    """Prepare a request; ``leaves`` is called at the moment at which it leaves, see :meth:`rbim.View.prepare`."""
    view = _view(sender)
    return _Unlimited(sender, op, leaves) if view is None else view.prepare(op, leaves)


def _view(sender: Sender) -> View | None:
    """Return a client or a view; None for another sender, also for a class of its own that sends in another way."""
    return sender if isinstance(sender, View) and type(sender).send is View.send else None
