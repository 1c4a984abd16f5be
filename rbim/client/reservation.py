"""Reservation: a request gets its place and the promise of its rates before its call begins."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

from rbim.client.call import Call
from rbim.errors import ClientClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.client.lanes import Waiter
    from rbim.client.shared import CallSettings, SharedState
    from rbim.operations.base import Operation

__all__ = ["Reservation"]

R = TypeVar("R")


class Reservation(Generic[R]):
    """A request that waits for its turn in a client's limits, or has it; :meth:`rbim.View.reserve` makes it.

    Await :meth:`granted`, then :meth:`send`, once. :meth:`withdraw` it in any case as soon as it is no longer needed, also
    when one of them raises: until then it keeps its turn.
    """

    def __init__(
        self, shared: SharedState, settings: CallSettings, op: Operation[R], granted: Callable[[], object], lead: float
    ) -> None:
        self._shared = shared
        self._settings = settings
        self._op = op
        self._call: Call[R] | None = None
        self._answered = False
        self._waiter: Waiter = shared.admission.reserve(op, granted, lead=lead)

    @property
    def may_have_acted(self) -> bool:
        """Whether the platform may have acted on the request, as far as it is known now."""
        return self._answered or (self._call is not None and self._call.may_have_acted)

    async def granted(self) -> None:
        """Wait until it is the request's turn. Raises ClientClosed if the client is closed, or is not open."""
        shared = self._shared
        if self._is("promised"):
            return
        if shared.state != "open":
            raise ClientClosed("the client is not open")
        with shared.scope(inf) as scope:
            shared.scopes.add(scope)
            try:
                await shared.admission.wait_for_grant(self._waiter)
            finally:
                shared.scopes.discard(scope)
        if not self._is("promised"):
            raise ClientClosed("the client was closed before this request was sent")

    async def send(self) -> R:
        """Send the request and return its answer, as :meth:`rbim.View.send` does; its deadline begins now."""
        self._call = Call(self._shared, self._settings, self._op, self._waiter)
        answer = await self._call.run()
        self._answered = True
        return answer

    def lapse(self) -> None:
        """Let others have its turn while it takes long to be written down; it can still be sent."""
        self._shared.admission.lapse(self._waiter)

    def withdraw(self) -> None:
        """Give up its turn, unless the request was sent."""
        if self._is("waiting") or self._is("promised"):
            self._shared.admission.withdraw(self._waiter)

    def _is(self, state: str) -> bool:
        return self._waiter.state == state
