"""Run many operations over one sender with bounded concurrency and memory; leave no task running."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint
from attrs import frozen

from rbim._support.task_errors import TaskErrors
from rbim._support.text import quoted
from rbim.client.client import in_background
from rbim.errors import AuthenticationError, InvalidRequest, RbimError

if TYPE_CHECKING:
    from typing import Self

    from rbim.operations.base import Operation
    from rbim.operations.namespace import Sender

__all__ = ["WORKERS", "Done", "Failed", "check_workers", "fan_out"]

R = TypeVar("R")

WORKERS = 100
IN_A_ROW = 64
"""Outcomes that the block reads at most before other tasks run."""


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

    At most ``workers`` operations (default: 100) run at once. Over a client they have low priority, unless its view has a
    priority (``client.tuned(priority="normal")``). The input is read on demand, at most ``workers`` ahead of the
    outcomes that the block has read. Leaving the block cancels running operations. An AuthenticationError stops everything
    and is raised, since further requests would fail too; so is an exception of the input. It is raised directly, not in an
    exception group; other errors at the same time are its notes. An exception of the block is raised unchanged.
    """
    check_workers(workers)
    sender = in_background(sender)
    source = _OperationSource(operations)
    tasks = anyio.create_task_group()
    failures = TaskErrors(tasks)
    outcomes = _Outcomes[R](workers)
    left = False
    try:
        async with tasks:
            for _ in range(workers):
                tasks.start_soon(_work, sender, source, outcomes, failures)
            with failures:
                yield outcomes
            left = True
            tasks.cancel_scope.cancel()
    except anyio.get_cancelled_exc_class():
        if not failures.errors:
            raise
    finally:
        outcomes.close()
    if failures.errors:
        # If asyncio has thrown a cancellation into this task, an exception raised before the next checkpoint would have
        # that cancellation as its context.
        await cancel_shielded_checkpoint()
        failures.raise_first()
    if not left:  # asyncio: a future that the sender awaited was cancelled; the task group does not report it
        raise RuntimeError("a worker was cancelled by the sender: some operations have no outcome")


def check_workers(workers: object) -> None:
    """Raise InvalidRequest unless it is a number of workers."""
    if not isinstance(workers, int) or workers < 1:
        raise InvalidRequest(
            f"workers: a whole number of at least 1 is needed, not {quoted(workers)}", field="workers", limit=1
        )


async def _work(sender: Sender, source: _OperationSource[R], outcomes: _Outcomes[R], failures: TaskErrors) -> None:
    try:
        with failures:
            while (item := await source.next()) is not None:
                index, op = item
                try:
                    outcome: Done[R] | Failed[R] = Done(index, op, await sender.send(op))
                except AuthenticationError:
                    raise
                except RbimError as error:
                    outcome = Failed(index, op, error)
                await outcomes.add(outcome)
    finally:
        outcomes.worker_ended()


class _Outcomes(Generic[R]):
    """The outcomes that are not read yet, and the turns of workers and readers.

    A worker may read an operation from the input for each outcome that was read from here, one for one: so the operations
    that are running and the outcomes that wait here are together never more than the workers.
    """

    def __init__(self, workers: int) -> None:
        self._closed = False
        self._ready: deque[Done[R] | Failed[R]] = deque()
        self._workers = workers  # not yet ended
        self._turns = anyio.Semaphore(0, fast_acquire=True)  # of workers: outcomes that were read
        self._readable = anyio.Semaphore(0, fast_acquire=True)  # outcomes that are ready, and from the end on one more
        self._in_a_row = 0

    async def add(self, outcome: Done[R] | Failed[R]) -> None:
        """Add an outcome, and wait until this worker may continue."""
        self._ready.append(outcome)
        self._readable.release()
        await self._turns.acquire()

    def worker_ended(self) -> None:
        """End the outcomes if no more will come."""
        self._workers -= 1
        if not self._workers:
            self._readable.release()

    def close(self) -> None:
        """End the outcomes: waiting readers end, and later ones get ClosedResourceError."""
        self._closed = True
        self._readable.release()  # a worker that was cancelled before its first step has not reported its end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Done[R] | Failed[R]:
        if self._closed:
            raise anyio.ClosedResourceError
        self._in_a_row += 1
        if self._in_a_row >= IN_A_ROW:
            self._in_a_row = 0
            await checkpoint()
        await self._readable.acquire()
        if not self._ready:
            self._readable.release()  # for the next reader
            await checkpoint()
            raise StopAsyncIteration
        self._turns.release()
        return self._ready.popleft()


class _OperationSource(Generic[R]):
    """The input as numbered operations, shared by the workers."""

    def __init__(self, operations: Iterable[Operation[R]] | AsyncIterable[Operation[R]]) -> None:
        self._count = 0
        self._ended = False
        self._plain = None if isinstance(operations, AsyncIterable) else iter(operations)
        self._async = aiter(operations) if isinstance(operations, AsyncIterable) else None
        self._lock = anyio.Lock(fast_acquire=True)

    async def next(self) -> tuple[int, Operation[R]] | None:
        if self._plain is not None:  # no other worker runs meanwhile
            return await self._read()
        async with self._lock:
            return await self._read()

    async def _read(self) -> tuple[int, Operation[R]] | None:
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
