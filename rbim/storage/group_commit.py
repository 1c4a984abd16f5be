"""Group commit: commands that arrive while a transaction runs are committed together in the next one.

States of a command: pending (in the batch that is still open) -> committing (its batch was taken, the writer runs the
transaction) -> settled (committed, failed, or the whole transaction failed).

- ``run`` and ``begin`` add a command to the pending batch. It is taken when the last transaction has ended, after the tasks
  that waited for that one have gone on: what they add joins it.
- A cancelled caller of ``run`` removes its pending command. A command that is committing continues; when it is settled,
  ``undo`` (if given) reverses it in a later transaction.
- Commands of one :class:`Chain` are committed in their order without a gap: after one that failed, or that its cancelled
  caller removed, the later ones of the chain fail, too.
- Always: one transaction at a time; commands run in the order in which they arrived; a result is returned only after it
  is durable; once closed, no new command is accepted, but pending ones are still committed, and so is what undoes a
  command whose caller is cancelled at the last moment.
- An exit or an interruption (a BaseException) in a command ends the group commit: all that wait fail, the block around it
  is cancelled, and the exit comes out of it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from contextvars import copy_context
from copy import copy
from functools import partial
from itertools import groupby
from math import inf
from queue import SimpleQueue
from threading import Thread, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from anyio import CancelScope, CapacityLimiter, get_cancelled_exc_class
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync
from attrs import frozen

from rbim._support.event_loops import backend, later, waker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
    from typing import TypeAlias

    Future: TypeAlias = "asyncio.Future[Any] | _TrioFuture"
    Work = Callable[[], Any]
    Done = Callable[[Any, BaseException | None], object]  # the work's result, or its error
    Undo = Callable[[Any], Iterable[Callable[[], Any]]]
    Batch = dict[Future, Callable[[], Any]]

__all__ = [
    "Chain",
    "CommandFailed",
    "CommandFailure",
    "CommitStore",
    "ExecutorThread",
    "GroupCommit",
    "OneOfMany",
    "call_all",
    "open_group_commit",
    "run_apart",
    "run_together",
]

logger = logging.getLogger("rbim")

T = TypeVar("T")
A = TypeVar("A")

LAST_WAIT = 3.0  # seconds after ``close`` for which a transaction still waits for another process that writes
HURRY = 1.5  # seconds after ``close`` for which a transaction may still wait for a server


@frozen
class CommandFailure:
    """The error of one command in a transaction; the other commands were committed."""

    error: Exception


class CommandFailed(Exception):
    """The transaction is repeated with a savepoint for each command: one failed, or several cannot run as one."""


class Chain:
    """Commands that depend on their order: once one of them has failed (``broken`` is its error), all later ones fail."""

    __slots__ = ("_failed_at", "_length", "broken")

    def __init__(self) -> None:
        self.broken: BaseException | None = None
        self._length = 0
        self._failed_at = inf

    def take_place(self) -> int:
        """Return the next place of the chain."""
        self._length += 1
        return self._length

    def fail(self, error: BaseException, at: float = 0) -> None:
        """Let all commands after the place ``at`` fail that have not run yet (default: all)."""
        if self.broken is None:
            self.broken = error
        self._failed_at = min(self._failed_at, at)

    def require(self, place: int) -> None:
        """Raise the error of an earlier command if the one at ``place`` must not run.

        A RuntimeError in place of a cancellation or an exit of the code that broke the chain: it must not end the writer.
        """
        if place <= self._failed_at or self.broken is None:
            return
        if isinstance(self.broken, Exception):
            raise copy(self.broken) from self.broken
        raise RuntimeError(f"an earlier one of the chain ended with {self.broken!r}") from self.broken


class OneOfMany(Generic[A, T]):
    """A command that costs less beside others of its kind: ``many`` gets the arguments of all, and returns their results.

    It takes the next place of a ``chain``, and fails if an earlier command of it has failed.
    """

    __slots__ = ("argument", "chain", "many", "place")

    def __init__(self, many: Callable[[Sequence[A]], Sequence[T]], argument: A, chain: Chain | None = None) -> None:
        self.many = many
        self.argument = argument
        self.chain = chain
        self.place = 0 if chain is None else chain.take_place()

    def __call__(self) -> T:
        """Run it alone."""
        if self.chain is not None:
            self.chain.require(self.place)
        try:
            (result,) = self.many((self.argument,))
        except Exception as error:
            self.fail(error, self.place)
            raise
        return result

    def fail(self, error: Exception, at: float = 0) -> None:
        """Let the commands of its chain after the place ``at`` fail (default: all)."""
        if self.chain is not None:
            self.chain.fail(error, at)


class CommitStore(Protocol):
    """The protocol of stores that commit; all methods are called in threads.

    A store on a server may have ``hurry``, which ends what waits for the server. It is called in the event loop.
    """

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


class GroupCommit:
    """Group commit for one store and one event loop; only tasks of that loop may use it."""

    def __init__(self, store: CommitStore, *, threads: bool = True) -> None:
        self._store = store
        self._loop = _Asyncio() if backend() == "asyncio" else _Trio()
        # a thread of its own: an application that blocks anyio's does not block the store, and none can be started any more
        # once the main thread has ended, while a receiver still drains
        self._writer = ExecutorThread(self._loop, "rbim-writer") if threads else _Inline()
        self._thread = get_ident()
        self._future: Callable[[], Future] = self._loop.future
        self._pending: Batch = {}  # in the order of arrival
        self._working = False  # from the first pending command until no command is left
        self._committing = False
        self._abandoned: dict[Future, Undo] = {}  # of callers that were cancelled during the transaction
        self._undoing = 0  # callers that may still be cancelled and have their command undone
        self._closed = False
        self._give_up = inf
        self._drained = self._future()
        self.end: BaseException | None = None
        self.on_end: Callable[[], object] = bool
        self._threads = threads
        self._querying = CapacityLimiter(1)

    async def run(self, command: Callable[[], T], *, undo: Undo | None = None) -> T:
        """Run a command of the store and return its result once it is durable.

        If the caller is cancelled before the transaction begins, the command does not run. Later it may run: ``undo`` is
        then called with its result, unless that is None, and returns the commands that undo it.
        """
        future = self._add(command)
        if undo is not None:
            self._undoing += 1
        try:
            # what may be undone needs its result also after a cancellation, which cancels a future that is awaited itself
            result = await (future if undo is None else self._loop.wait(future))
        except BaseException:
            self._leave(future, undo)
            raise
        finally:
            if undo is not None:
                self._undoing -= 1
                self._check_drained()
        value: T = _result(result)
        return value

    def begin(self, command: Callable[[], T]) -> Callable[[], Awaitable[T]]:
        """Queue a command after all earlier ones; return a function that waits for its result."""
        future = self._add(command)

        async def settled() -> T:
            return cast("T", _result(await self._loop.wait(future)))

        return settled

    async def read(self, reads: Callable[[], T]) -> T:
        """Run a read after the transaction that runs now, in the same thread, and return its result."""
        self._check()
        future = self._future()
        self._writer.submit(reads, partial(_tell, future))
        result, error = await future
        if error is not None:
            raise error
        value: T = result
        return value

    async def query(self, reads: Callable[[], T]) -> T:
        """Run a read that may take long in a thread of its own, so that nothing else waits for it."""
        self._check()
        if self._threads:
            return await run_sync(reads, limiter=self._querying)
        await checkpoint()
        return reads()

    def _add(self, command: Callable[[], Any]) -> Future:
        if self._closed or get_ident() != self._thread:
            self._check()
        future = self._future()
        self._pending[future] = command
        if not self._working:
            self._working = True
            self._loop.soon(self._commit_pending)
        return future

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("the file is closed")
        if get_ident() != self._thread:
            raise RuntimeError(
                "a file can be used only in the event loop that opened it; for an inbox, use a backlog in other loops"
            )

    def _leave(self, future: Future, undo: Undo | None) -> None:
        """Remove the command of a cancelled caller, or see to it that it is undone."""
        command = self._pending.pop(future, None)
        if command is not None:
            if isinstance(command, OneOfMany):
                command.fail(RuntimeError("an earlier command was cancelled"), command.place)
        elif undo is not None:
            if future.done() and not future.cancelled():
                self._undo(undo, future.result())
            else:
                self._abandoned[future] = undo

    def _undo(self, undo: Undo, result: Any) -> None:  # the command's
        if result is None or isinstance(result, CommandFailure):
            return
        for command in undo(result):
            self._pending[self._future()] = command
        if not self._working:
            self._working = True
            self._loop.soon(self._commit_pending)

    def _commit_pending(self) -> None:
        if not self._pending:
            self._working = False
            self._check_drained()
            return
        batch, self._pending = self._pending, {}
        self._committing = True
        commit = partial(self._store.commit, tuple(batch.values()), hurried=self._hurried)
        self._writer.submit(commit, partial(self._settle, batch))

    def _hurried(self) -> bool:
        return monotonic() > self._give_up

    def _settle(self, batch: Batch, results: Sequence[Any] | None, error: BaseException | None) -> None:
        self._committing = False
        if error is None and results is not None:
            for future, result in zip(batch, results, strict=True):
                if future in self._abandoned:
                    self._undo(self._abandoned.pop(future), result)
                elif not future.done():
                    future.set_result(result)
        elif isinstance(error, Exception):
            self._fail(batch, error)
        else:
            self._fail(batch, RuntimeError("the event loop ended"))
            self._closed, self.end = True, error
            pending, self._pending = self._pending, {}
            self._fail(pending, RuntimeError("the file was closed"))
            self.on_end()
        self._loop.soon(self._commit_pending)

    def _fail(self, batch: Batch, error: Exception) -> None:
        for future, command in batch.items():
            if isinstance(command, OneOfMany):
                command.fail(error)
            if not future.done():
                failure = copy(error)  # a separate traceback for each waiting task
                failure.__cause__ = error
                future.set_result(CommandFailure(failure))
            self._abandoned.pop(future, None)

    def _check_drained(self) -> None:
        if self._closed and not self._working and not self._undoing and not self._drained.done():
            self._drained.set_result(None)

    # Opening and closing wait for their end, whatever is cancelled meanwhile, so that nothing stays open.

    async def open(self) -> None:
        """Open the store. If the caller is cancelled meanwhile, close it again."""
        opened = self._future()
        self._writer.submit(self._store.open, lambda _, error: opened.set_result(error))
        cancelled = await self._finish(opened)
        if opened.result() is not None:
            self._closed = True
            self._writer.submit(bool, lambda _, __: None, last=True)
            raise opened.result()
        if cancelled is not None:
            await self.close()
            raise cancelled

    async def close(self) -> None:
        """Accept no more commands, run pending ones, and close the store. Raises what ended the group commit before."""
        self._closed = True
        self._give_up = monotonic() + LAST_WAIT
        self._check_drained()
        closed = self._future()
        no_hurry = later(HURRY, getattr(self._store, "hurry", bool))
        cancelled = await self._finish(self._drained)
        self._writer.submit(self._store.close, lambda _, error: closed.set_result(error), last=True)
        cancelled = await self._finish(closed) or cancelled
        no_hurry()
        for error in (self.end, closed.result(), cancelled):
            if error is not None:
                raise error

    async def _finish(self, future: Future) -> BaseException | None:
        """Wait for a future, even if the caller is cancelled; return the cancellation."""
        cancelled: BaseException | None = None
        with CancelScope(shield=True):
            while not future.done():
                try:
                    await self._loop.wait(future)
                except get_cancelled_exc_class() as error:  # asyncio's own cancellation heeds no shield
                    cancelled = error
        return cancelled


def _result(result: Any) -> Any:  # the command's
    if result.__class__ is CommandFailure:
        raise result.error
    return result


def _tell(future: Future, result: object, error: BaseException | None) -> None:
    if not future.done():  # its reader was cancelled
        future.set_result((result, error))


@asynccontextmanager
async def open_group_commit(store: CommitStore, *, threads: bool = True) -> AsyncGenerator[GroupCommit, None]:
    """Open the store for the caller's event loop; on exit, run pending commands and close the store.

    Without ``threads`` commands run in the event loop itself: emulated time does not wait for threads.
    """
    commits = GroupCommit(store, threads=threads)
    await commits.open()
    try:
        with CancelScope() as scope:
            commits.on_end = scope.cancel
            yield commits
    finally:
        await commits.close()


# Each piece of work of the thread costs the event loop one callback, and each waiting task one future. anyio's threads,
# events and cancel scopes would cost a delivery more than its transaction does.


class _Asyncio:
    """The caller's event loop. The cancellation of a task that awaits a future cancels the future."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # not that of the task that happens to be first
        self.future = self._loop.create_future
        self.soon_from_thread = waker()

    def wait(self, future: Any) -> Awaitable[Any]:
        """Return an awaitable for one more waiter, whose cancellation leaves the future alone."""
        return asyncio.shield(future)

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function after all tasks that can go on now have gone on, and those that they wake in turn."""
        # after two turns: one would make nearly twice as many transactions
        next_turn = partial(self._loop.call_soon, call, context=self._context)
        self._loop.call_soon(next_turn, context=self._context)


class _Trio:
    def __init__(self) -> None:
        self.soon_from_thread = waker()

    def future(self) -> _TrioFuture:
        return _TrioFuture()

    def wait(self, future: Any) -> Awaitable[Any]:
        return cast("_TrioFuture", future)

    def soon(self, call: Callable[[], object]) -> None:
        # in the next turn, tasks that were woken now and a call from outside come in any order: so in the turn after it
        self.soon_from_thread(partial(self.soon_from_thread, call))


class _TrioFuture:
    def __init__(self) -> None:
        from trio import Event

        self._settled = Event()
        self._result: Any = None

    def done(self) -> bool:
        return self._settled.is_set()

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self._settled.set()

    def result(self) -> Any:
        return self._result

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self._settled.wait().__await__()
        return self._result


class ExecutorThread:
    """A thread of its own. It does not keep the process alive: work that has not ended by then is dropped."""

    def __init__(self, loop: _Asyncio | _Trio, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Done, bool]] = SimpleQueue()
        Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True).start()

    def submit(self, work: Work, done: Done, *, last: bool = False) -> None:
        """Do some work, and then call ``done`` in the event loop; the thread ends after the ``last`` one."""
        self._queue.put((work, done, last))

    def _run(self) -> None:
        last = False
        while not last:
            work, done, last = self._queue.get()
            self._loop.soon_from_thread(partial(done, *_finished(work)))
            del work, done  # while it waits, it holds none of them


class _Inline:
    """Does the work in the event loop itself: emulated time does not wait for threads."""

    def submit(self, work: Work, done: Done, *, last: bool = False) -> None:
        del last
        done(*_finished(work))


def _finished(work: Work) -> tuple[Any, BaseException | None]:
    """Do some work; return its result and its error."""
    try:
        return work(), None
    except BaseException as error:
        return None, error


# For stores: how a transaction runs commands.


def call_all(listeners: Iterable[Callable[[], object]], place: object) -> None:
    """Call functions that want to hear of the news in a database; an error of one is logged with the ``place``."""
    for call in tuple(listeners):
        try:
            call()
        except Exception:  # the commands are committed all the same
            logger.exception("a listener of %s failed", place)


def run_together(commands: Iterable[Callable[[], Any]], harmless: tuple[type[Exception], ...]) -> list[Any]:
    """Run commands in a transaction, neighbours of one kind as one; return the result of each.

    An error in ``harmless``, which a command raises before it has written, is a CommandFailure. Raises CommandFailed for
    any other.
    """

    def many_of(command: Any) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        of_many = command.__class__ is OneOfMany and (command.chain is None or command.chain.broken is None)
        return command.many if of_many else None

    results: list[Any] = []
    for many, group in groupby(commands, many_of):
        try:
            if many is not None:
                results += many([each.argument for each in cast("Iterable[OneOfMany[Any, Any]]", group)])
                continue
            for command in group:
                try:
                    results.append(command())
                except harmless as error:
                    results.append(CommandFailure(error))
        except Exception as error:
            raise CommandFailed from error
    return results


def run_apart(
    commands: Iterable[Callable[[], Any]], execute: Callable[[str], object], in_transaction: Callable[[], bool]
) -> list[Any]:
    """Run each command in a savepoint; return its result, or its CommandFailure."""
    results: list[Any] = []
    for command in commands:
        execute("SAVEPOINT command")
        try:
            results.append(command())
        except Exception as error:
            if not in_transaction():
                raise  # the whole transaction was rolled back
            execute("ROLLBACK TO SAVEPOINT command")
            results.append(CommandFailure(error))
        execute("RELEASE SAVEPOINT command")
    return results
