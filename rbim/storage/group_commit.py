"""Group commit: commands that arrive while a transaction runs are committed together in the next one.

States of a command: pending (in the batch that is still open) -> committing (its batch was taken, a thread runs the
transaction) -> settled (committed, failed, or the whole transaction failed).

- ``run`` and ``begin`` add a command to the pending batch; ``serve`` takes the batch when the last transaction has ended.
- A cancelled caller of ``run`` removes its pending command. A command that is committing continues; when it is settled,
  ``undo`` (if given) reverses it in a later transaction.
- Commands of one :class:`Chain` are committed in their order without a gap: after one that failed, or that its cancelled
  caller removed, the later ones of the chain fail, too.
- Always: one transaction at a time; commands run in the order in which they arrived; a result is returned only after it
  is durable; once closed, no new command is accepted, but pending ones are still committed.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from math import inf
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from rbim.storage.sqlite import CommandFailure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    Undo = Callable[[Any], Iterable[Callable[[], Any]]]

__all__ = ["Chain", "CommitStore", "GroupCommit", "open_group_commit"]

T = TypeVar("T")

LAST_WAIT = 3.0
"""Seconds after ``close`` for which a transaction still waits for another process that writes."""


class CommitStore(Protocol):
    """The protocol of stores that commit; all methods are called in threads."""

    def open(self) -> None:
        """Open the store."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...

    def commit(self, commands: Sequence[Callable[[], Any]], *, hurried: Callable[[], bool]) -> list[Any]:
        """Run commands in one durable transaction; return the result of each, or its CommandFailure.

        Once ``hurried`` returns True, do not wait for other processes any more.
        """
        ...


class Chain:
    """Commands that depend on their order: once one of them has failed (``broken`` is its error), all later ones fail."""

    __slots__ = ("_failed_at", "_length", "broken")

    def __init__(self) -> None:
        self.broken: BaseException | None = None
        self._length = 0
        self._failed_at = inf

    def fail(self, error: BaseException, at: float = 0) -> None:
        """Let all commands after the place ``at`` fail that have not run yet (default: all)."""
        if self.broken is None:
            self.broken = error
        self._failed_at = min(self._failed_at, at)

    def link(self, command: Callable[[], T]) -> tuple[Callable[[], T], int]:
        """Return a command that runs unless an earlier one has failed, and its place in the chain."""
        self._length += 1
        place = self._length

        def run() -> T:
            if place > self._failed_at and self.broken is not None:
                raise copy(self.broken) from self.broken
            try:
                return command()
            except Exception as error:
                self.fail(error, place)
                raise

        return run, place


class _Batch:
    """The commands of one transaction, and their results, by ticket number."""

    def __init__(self) -> None:
        self.chains: dict[Chain, None] = {}
        self.commands: dict[int, Callable[[], Any]] = {}
        self.results: dict[int, Any] = {}
        self.abandoned: list[tuple[int, Callable[[Any], None]]] = []
        self.error: Exception | None = None
        self.settled = anyio.Event()


class GroupCommit:
    """Group commit for one store and one event loop; only tasks of that loop may use it."""

    def __init__(self, store: CommitStore, *, threads: bool = True) -> None:
        self._store = store
        self._run = run_sync if threads else _at_once
        self._thread = get_ident()
        self._tickets = 0
        self._pending = _Batch()
        self._wanted = anyio.Event()
        self._closed = False
        self._give_up = float("inf")
        # own limiters, so that an application that blocks anyio's threads does not block the store
        self._writing, self._reading, self._querying = (anyio.CapacityLimiter(1) for _ in range(3))

    async def run(self, command: Callable[[], T], *, undo: Undo | None = None, chain: Chain | None = None) -> T:
        """Run a command of the store and return its result once it is durable.

        If the caller is cancelled before the transaction begins, the command does not run. Later it may run: ``undo`` is
        then called with its result, unless that is None, and returns the commands that undo it. After a failure in ``chain``
        the command fails with the same error.
        """
        place = 0
        if chain is not None:
            command, place = chain.link(command)
        batch, ticket = self._add(command)
        if chain is not None:
            batch.chains[chain] = None
        try:
            await batch.settled.wait()
        except BaseException:
            if batch is self._pending:
                del batch.commands[ticket]
                if chain is not None:
                    chain.fail(RuntimeError("an earlier command was cancelled"), place)
            elif undo is not None:
                undo_result = partial(self._undo, undo)
                if batch.settled.is_set():
                    undo_result(batch.results.get(ticket))
                else:
                    batch.abandoned.append((ticket, undo_result))
            raise
        return cast("T", _result(batch, ticket))

    def begin(self, command: Callable[[], T]) -> Callable[[], Awaitable[T]]:
        """Queue a command after all earlier ones; return a function that waits for its result."""
        batch, ticket = self._add(command)

        async def settled() -> T:
            await batch.settled.wait()
            return cast("T", _result(batch, ticket))

        return settled

    async def read(self, reads: Callable[[], T]) -> T:
        """Run a read in a thread and return its result."""
        self._check()
        return await self._run(reads, limiter=self._reading)

    async def query(self, reads: Callable[[], T]) -> T:
        """Run a read that may take long in a thread of its own, so that other reads need not wait for it."""
        self._check()
        return await self._run(reads, limiter=self._querying)

    def _add(self, command: Callable[[], Any]) -> tuple[_Batch, int]:
        self._check()
        self._tickets += 1
        self._pending.commands[self._tickets] = command
        self._wanted.set()
        return self._pending, self._tickets

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("the file is closed")
        if get_ident() != self._thread:
            raise RuntimeError(
                "a file can be used only in the event loop that opened it; for an inbox, use a backlog in other loops"
            )

    def _undo(self, undo: Undo, result: Any) -> None:  # the command's
        if result is None or isinstance(result, CommandFailure):
            return
        for command in undo(result):
            self._tickets += 1
            self._pending.commands[self._tickets] = command
        self._wanted.set()

    def close(self) -> None:
        """Accept no more commands; pending ones still run."""
        self._closed = True
        self._give_up = monotonic() + LAST_WAIT
        self._wanted.set()

    async def serve(self) -> None:
        """Run commands until :meth:`close`. Cancellation of the caller does not end it."""
        with anyio.CancelScope(shield=True):
            try:
                while self._pending.commands or not self._closed:
                    await self._wanted.wait()
                    await checkpoint()  # tasks that waited for the last transaction may join this one
                    await self._commit_pending()
            finally:
                self._closed = True
                self._settle(self._pending, RuntimeError("the file was closed"))

    async def _commit_pending(self) -> None:
        batch, self._pending = self._pending, _Batch()
        if not self._closed:
            self._wanted = anyio.Event()
        if not batch.commands:
            return
        error: Exception | None = RuntimeError("the event loop ended")
        try:
            commands = tuple(batch.commands.values())
            commit = partial(self._store.commit, commands, hurried=lambda: monotonic() > self._give_up)
            results = await self._run(commit, limiter=self._writing)
            batch.results = dict(zip(batch.commands, results, strict=True))
            error = None
        except Exception as failed:
            error = failed
        finally:
            self._settle(batch, error)

    def _settle(self, batch: _Batch, error: Exception | None) -> None:
        batch.error = error
        if error is not None:
            for chain in batch.chains:
                chain.fail(error)
        batch.settled.set()
        for ticket, undo_result in batch.abandoned:
            undo_result(batch.results.get(ticket))


def _result(batch: _Batch, ticket: int) -> Any:  # the command's
    if batch.error is not None:
        raise copy(batch.error) from batch.error  # a separate traceback for each waiting task
    result = batch.results[ticket]
    if isinstance(result, CommandFailure):
        raise result.error
    return result


async def _at_once(work: Callable[[], T], *, limiter: object) -> T:
    del limiter
    await checkpoint()
    return work()


@asynccontextmanager
async def open_group_commit(store: CommitStore, *, threads: bool = True) -> AsyncGenerator[GroupCommit, None]:
    """Open the store for the caller's event loop; on exit, run pending commands and close the store.

    Without ``threads`` commands run in the event loop itself: emulated time does not wait for threads.
    """
    commits = GroupCommit(store, threads=threads)
    await commits.read(store.open)
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commits.serve)
            try:
                yield commits
            except BaseException as error:  # raised below: the task group would wrap it
                failure = error
            commits.close()
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(store.close, limiter=anyio.CapacityLimiter(1))
        if failure is not None:
            raise failure
