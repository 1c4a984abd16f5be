"""Carrier: a sender that knows each operation by a key, so that another process can ask later what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from attrs import frozen

from rbim.operations.namespace import Sender

if TYPE_CHECKING:
    from rbim.operations.base import Operation

__all__ = ["Carried", "Carrier"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@frozen(kw_only=True)
class Carried(Generic[R_co]):
    """The answer to an operation, and the ``elapsed`` seconds that the platform took, without the waiting for a worker."""

    answer: R_co
    elapsed: float


@runtime_checkable
class Carrier(Sender, Protocol):
    """A sender that hands operations to workers, each with a key, and outlives the process that asked.

    A job uses ``carry`` instead of ``send``, with keys that no other job and no other request has. When it is resumed after
    its process was killed, it asks for the requests that were begun with ``recall``.
    """

    @property
    def address(self) -> str:
        """Where the workers are found, as the command line writes it, without credentials; the journal keeps it."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing can be carried now, on one line; empty if all is well. The job waits meanwhile."""
        ...

    @property
    def keeps(self) -> float:
        """Seconds for which the outcome of a key is known, at least. It is not asked for older ones."""
        ...

    async def carry(self, operation: Operation[R], /, *, key: str) -> Carried[R]:
        """Run one operation, once for its key, and return its answer.

        Raises RbimError: what the worker's client raised, with its outcome and attempts; NotTaken if no worker took it and
        none will; Unanswered if a worker took it and was not heard of again.
        """
        ...

    async def recall(self, operation: Operation[R], /, *, key: str) -> Carried[R]:
        """Return the answer of an operation that a process that has ended may have begun. It is not sent for this call.

        Raises what :meth:`carry` raises; NotTaken also if the process ended before it had handed it over.
        """
        ...
