"""A prepared request: it waits for its turn without a deadline, and its sender learns the moment at which it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from rbim.client.call import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.client.shared import CallSettings, SharedState
    from rbim.operations.base import Operation

__all__ = ["Prepared"]

R = TypeVar("R")


class Prepared(Generic[R]):
    """A request that is sent once, by :meth:`send`; :meth:`rbim.View.prepare` makes it."""

    __slots__ = ("_answered", "_call", "_leaves", "_op", "_settings", "_shared")

    def __init__(self, shared: SharedState, settings: CallSettings, op: Operation[R], leaves: Callable[[], object]) -> None:
        self._shared = shared
        self._settings = settings
        self._op = op
        self._leaves = leaves
        self._call: Call[R] | None = None
        self._answered = False

    @property
    def may_have_acted(self) -> bool:
        """Whether the platform may have acted on the request, as far as it is known now."""
        return self._answered or (self._call is not None and self._call.may_have_acted)

    async def send(self) -> R:
        """Wait for the request's turn, send it, and return its answer. Call it once.

        It waits in the client's limits without a deadline. At the moment at which the first attempt has its place and its
        tokens, and before it leaves, ``leaves`` is called; the deadline of the call begins then. If ``leaves`` raises,
        nothing is sent, place and tokens are given back, and the error is raised. Raises what :meth:`rbim.View.send`
        raises, without ``leaves`` if nothing was to leave; RuntimeError for a second time.
        """
        if self._call is not None:
            raise RuntimeError("a prepared request is sent once: prepare another one")
        self._call = Call(self._shared, self._settings, self._op, leaves=self._leaves)
        answer = await self._call.run()
        self._answered = True
        return answer
