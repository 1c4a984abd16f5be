"""Group commit: what the tasks of an event loop want done while a transaction runs is done in the next one, all together."""

from __future__ import annotations

from contextlib import asynccontextmanager
from copy import copy
from functools import partial
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

__all__ = ["CommitStore", "GroupCommit", "open_group_commit"]

T = TypeVar("T")

LAST_WAIT = 3.0
"""Seconds for which, once it is to be closed, another process that writes is still waited for."""


class CommitStore(Protocol):
    """What is committed to: all of it is called in threads."""

    def open(self) -> None:
        """Open it."""
        ...

    def close(self) -> None:
        """Close it."""
        ...

    def commit(self, commands: Sequence[Callable[[], Any]], *, hurried: Callable[[], bool]) -> list[Any]:
        """Carry out commands in one transaction, durably; return what each returned, or the Failure that it came to."""
        ...


class _Batch:
    """Commands for one transaction, by ticket, and what became of them."""

    def __init__(self) -> None:
        self.commands: dict[int, Callable[[], Any]] = {}
        self.results: dict[int, Any] = {}
        self.abandoned: list[tuple[int, Callable[[Any], None]]] = []
        self.error: Exception | None = None
        self.settled = anyio.Event()


class GroupCommit:
    """The way to the store from one event loop: its thread's tasks only."""

    def __init__(self, store: CommitStore, *, threads: bool = True) -> None:
        self._store = store
        self._run = run_sync if threads else _at_once
        self._thread = get_ident()
        self._tickets = 0
        self._pending = _Batch()
        self._wanted = anyio.Event()
        self._closed = False
        self._give_up = float("inf")
        # of our own, so that no thread that the application blocks is one we need
        self._writing, self._reading = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)

    async def run(self, command: Callable[[], T], *, undo: Undo | None = None) -> T:
        """Carry out a command of the store, and return once it is durable.

        Cancelled while it waits for its transaction, it is not carried out; later, it may be or not: ``undo`` then returns
        the commands that make its result undone, unless that is None.
        """
        batch, ticket = self._add(command)
        try:
            await batch.settled.wait()
        except BaseException:
            if batch is self._pending:
                del batch.commands[ticket]
            elif undo is not None:
                give_back = partial(self._undo, undo)
                if batch.settled.is_set():
                    give_back(batch.results.get(ticket))
                else:
                    batch.abandoned.append((ticket, give_back))
            raise
        return cast("T", _result(batch, ticket))

    def begin(self, command: Callable[[], T]) -> Callable[[], Awaitable[T]]:
        """Have a command carried out, after those that were begun before and whoever waits; return how to wait for it."""
        batch, ticket = self._add(command)

        async def settled() -> T:
            await batch.settled.wait()
            return cast("T", _result(batch, ticket))

        return settled

    async def read(self, reads: Callable[[], T]) -> T:
        """Return what the store reads."""
        self._check()
        return await self._run(reads, limiter=self._reading)

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
                "a file is used in the event loop that opened it; for an inbox, another one can have a backlog"
            )

    def _undo(self, undo: Undo, result: Any) -> None:  # the command's
        if result is None or isinstance(result, CommandFailure):
            return
        for command in undo(result):
            self._tickets += 1
            self._pending.commands[self._tickets] = command
        self._wanted.set()

    def close(self) -> None:
        """Take no more commands. What was taken is still carried out."""
        self._closed = True
        self._give_up = monotonic() + LAST_WAIT
        self._wanted.set()

    async def serve(self) -> None:
        """Carry out commands until it is closed. A cancellation of the caller's does not end it."""
        with anyio.CancelScope(shield=True):
            try:
                while self._pending.commands or not self._closed:
                    await self._wanted.wait()
                    await checkpoint()  # whoever was waiting for the last transaction may join this one
                    await self._carry_out()
            finally:
                self._closed = True
                self._settle(self._pending, RuntimeError("the file was closed"))

    async def _carry_out(self) -> None:
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
        batch.settled.set()
        for ticket, give_back in batch.abandoned:
            give_back(batch.results.get(ticket))


def _result(batch: _Batch, ticket: int) -> Any:  # the command's
    if batch.error is not None:
        raise copy(batch.error) from batch.error  # each waiter has a traceback of its own
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
    """Open the store for the event loop of the caller; when it leaves, what is pending is carried out first.

    Without ``threads`` the event loop itself does the work: emulated time would not wait for a thread.
    """
    commits = GroupCommit(store, threads=threads)
    await commits.read(store.open)
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commits.serve)
            try:
                yield commits
            except BaseException as error:  # a task group would wrap it
                failure = error
            commits.close()
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(store.close, limiter=anyio.CapacityLimiter(1))
        if failure is not None:
            raise failure
