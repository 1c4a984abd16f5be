"""Run many operations over one sender with bounded concurrency and memory; leave no task running."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint
from attrs import frozen

from rbim._support.task_errors import TaskErrors
from rbim.errors import AuthenticationError, InvalidRequest, RbimError

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectSendStream

    from rbim.operations.base import Operation
    from rbim.operations.namespace import Sender

__all__ = ["Done", "Failed", "fan_out"]

R = TypeVar("R")

WORKERS = 100


@frozen
class Done(Generic[R]):
    """An operation that succeeded; ``index`` is its position in the input, from 0."""

    index: int
    operation: Operation[R]
    answer: R


@frozen
class Failed(Generic[R]):
    """An operation that failed with an RbimError; ``index`` is its position in the input, from 0."""

    index: int
    operation: Operation[R]
    error: RbimError


@asynccontextmanager
async def fan_out(
    sender: Sender,
    operations: Iterable[Operation[R]] | AsyncIterable[Operation[R]],
    *,
    workers: int = WORKERS,
) -> AsyncGenerator[AsyncIterator[Done[R] | Failed[R]], None]:
    """Run operations with bounded concurrency and yield outcomes as they complete.

    ::

        async with fan_out(client, operations) as outcomes:
            async for outcome in outcomes:
                ...

    At most ``workers`` operations (default: 100) run at once. The input is read on demand, at most ``workers`` ahead of the
    outcomes that the block has read. Leaving the block cancels running operations. An AuthenticationError stops everything
    and is raised, since further requests would fail too; so is an exception of the input. It is raised directly, not in an
    exception group; other errors at the same time are its notes. An exception of the block is raised unchanged.
    """
    if not isinstance(cast("object", workers), int) or workers < 1:
        raise InvalidRequest(f"workers: a whole number of at least 1 is needed, not {workers!r}", field="workers", limit=1)
    source = _Source(operations)
    sending, receiving = anyio.create_memory_object_stream[Done[R] | Failed[R]](0)
    tasks = anyio.create_task_group()
    failures = TaskErrors(tasks)
    left = False
    try:
        async with receiving, tasks:
            async with sending:
                for _ in range(workers):
                    tasks.start_soon(_work, sender, source, sending.clone(), failures)
            with failures:
                yield receiving
            left = True
            tasks.cancel_scope.cancel()
    except anyio.get_cancelled_exc_class():
        if not failures.errors:
            raise
    if failures.errors:
        # If asyncio has thrown a cancellation into this task, an exception raised before the next checkpoint would have
        # that cancellation as its context.
        await cancel_shielded_checkpoint()
        failures.raise_first()
    if not left:  # asyncio: a future that the sender awaited was cancelled; the task group does not report it
        raise RuntimeError("a worker was cancelled by the sender: some operations have no outcome")


class _Source(Generic[R]):
    """The input as numbered operations, shared by the workers."""

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
            except BaseException:
                self._ended = True  # do not read an iterator that has raised
                raise
            self._count += 1
            return self._count - 1, op


async def _work(
    sender: Sender, source: _Source[R], outcomes: MemoryObjectSendStream[Done[R] | Failed[R]], failures: TaskErrors
) -> None:
    async with outcomes:
        with failures:
            while (item := await source.next()) is not None:
                index, op = item
                try:
                    outcome: Done[R] | Failed[R] = Done(index, op, await sender.send(op))
                except AuthenticationError:
                    raise
                except RbimError as error:
                    outcome = Failed(index, op, error)
                await outcomes.send(outcome)
