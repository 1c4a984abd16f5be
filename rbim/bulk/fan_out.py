"""Many operations over one sender: as they come, bounded in memory, nothing left running."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

import anyio
from attrs import frozen

from rbim.errors import AuthenticationError, RbimError

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectSendStream

    from rbim.operation import Operation, Sender

__all__ = ["Done", "Failed", "fan_out"]

R = TypeVar("R")

WORKERS = 100


@frozen
class Done(Generic[R]):
    """An operation that was answered; ``index`` is its place in the input, from 0."""

    index: int
    operation: Operation[R]
    answer: R


@frozen
class Failed(Generic[R]):
    """An operation that failed with an error of rbim; ``index`` is its place in the input, from 0."""

    index: int
    operation: Operation[R]
    error: RbimError


@asynccontextmanager
async def fan_out(
    sender: Sender,
    operations: Iterable[Operation[R]] | AsyncIterable[Operation[R]],
    *,
    workers: int = WORKERS,
) -> AsyncIterator[AsyncIterator[Done[R] | Failed[R]]]:
    """Send every operation, at most ``workers`` at once, and give the outcomes as they come.

    ::

        async with fan_out(client, operations) as outcomes:
            async for outcome in outcomes:
                ...

    The input is read as it is needed, never more than ``workers`` ahead, and waits where outcomes are not taken. Leaving
    the block cancels what is still running. An AuthenticationError stops everything and is raised, since no further
    request would fare better; so is whatever the input raises. It comes out bare, not in an exception group; further
    errors of the same moment are its notes.
    """
    if workers < 1:
        reason = f"workers: at least 1, not {workers}"
        raise ValueError(reason)
    give, take = anyio.create_memory_object_stream[Done[R] | Failed[R]](0)
    source = _Source(operations)
    try:
        async with take, anyio.create_task_group() as tasks:
            async with give:
                for _ in range(workers):
                    tasks.start_soon(_work, sender, source, give.clone())
            yield take
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        _raise_bare(group)


class _Source(Generic[R]):
    """The input, handed out one by one to whoever asks, with its count."""

    def __init__(self, operations: Iterable[Operation[R]] | AsyncIterable[Operation[R]]) -> None:
        self._count = 0
        self._lock = anyio.Lock(fast_acquire=True)
        self._ended = False
        self._plain = None if isinstance(operations, AsyncIterable) else iter(operations)
        self._async = aiter(operations) if isinstance(operations, AsyncIterable) else None

    async def next(self) -> tuple[int, Operation[R]] | None:
        async with self._lock:
            if self._ended:
                return None
            try:
                op = next(self._plain) if self._plain is not None else await anext(cast("Any", self._async))
            except (StopIteration, StopAsyncIteration):
                self._ended = True
                return None
            self._count += 1
            return self._count - 1, op


async def _work(sender: Sender, source: _Source[R], give: MemoryObjectSendStream[Done[R] | Failed[R]]) -> None:
    async with give:
        while (item := await source.next()) is not None:
            index, op = item
            try:
                outcome: Done[R] | Failed[R] = Done(index, op, await sender.send(op))
            except AuthenticationError:
                raise
            except RbimError as error:
                outcome = Failed(index, op, error)
            await give.send(outcome)


def _raise_bare(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    first, *others = _leaves(group)
    for other in others:
        first.add_note(f"at the same time: {type(other).__name__}: {other}")
    raise first


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for each in group.exceptions:
        found += _leaves(cast("Any", each)) if isinstance(each, BaseExceptionGroup) else [each]
    return found
