"""How jobs and fan-outs send: with low priority, and with requests that are reserved before they are written down.

A sender that is no client has no limits that could be reserved: its requests leave at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rbim.client.client import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.operations.base import Operation
    from rbim.operations.namespace import Sender

__all__ = ["Reserved", "in_background", "reserve"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Reserved(Protocol[R_co]):
    """A request that waits for its turn, or has it; :class:`~rbim.client.reservation.Reservation` is one."""

    @property
    def may_have_acted(self) -> bool:
        """Whether the platform may have acted on the request."""
        ...

    async def granted(self) -> None:
        """Wait until it is the request's turn."""
        ...

    async def send(self) -> R_co:
        """Send the request, once, and return its answer. Raises what the sender raises."""
        ...

    def lapse(self) -> None:
        """Let others have its turn while it takes long to be written down; it can still be sent."""
        ...

    def withdraw(self) -> None:
        """Give up its turn, unless the request was sent."""
        ...


class _AtOnce(Generic[R]):
    def __init__(self, sender: Sender, op: Operation[R], granted: Callable[[], object]) -> None:
        self._sender = sender
        self._op = op
        self.may_have_acted = False
        granted()

    async def granted(self) -> None:
        pass

    async def send(self) -> R:
        self.may_have_acted = True
        return await self._sender.send(self._op)

    def lapse(self) -> None:
        pass

    def withdraw(self) -> None:
        pass


def in_background(sender: Sender) -> Sender:
    """Return a sender whose calls have low priority, if it is a client or a view without a priority of its own."""
    view = _view(sender)
    return sender if view is None or view.priority is not None else view.tuned(priority="low")


def reserve(sender: Sender, op: Operation[R], granted: Callable[[], object], *, lead: float) -> Reserved[R]:
    """Reserve a request; ``granted`` is called once when it is its turn, at once or later while another task runs.

    ``lead``: seconds before it could leave at which its turn begins.
    """
    view = _view(sender)
    return _AtOnce(sender, op, granted) if view is None else view.reserve(op, granted, lead=lead)


def _view(sender: Sender) -> View | None:
    """Return a client or a view; None for another sender, also for a class of its own that sends in another way."""
    return sender if isinstance(sender, View) and type(sender).send is View.send else None
