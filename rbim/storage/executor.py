"""Threads that write and read, and the event loop that waits for them. For asyncio and trio.

Each piece of work costs the event loop one callback, and each waiting task one future. anyio's threads, events and cancel
scopes would cost a delivery more than its transaction does.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from rbim._support.event_loops import backend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    Work = Callable[[], Any]
    Done = Callable[[Any, BaseException | None], object]  # the work's result, or its error

__all__ = ["EventLoop", "Executor", "ExecutorThread", "Future", "Inline", "running_loop"]


class Future(Protocol):
    """What :meth:`EventLoop.future` returns: awaitable, and settled once."""

    def done(self) -> bool:
        """Return whether it has a result, or its waiter was cancelled."""
        ...

    def cancelled(self) -> bool:
        """Return whether its waiter was cancelled."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Wake the waiter."""
        ...

    def result(self) -> Any:
        """Return the result."""
        ...

    def __await__(self) -> Generator[Any, None, Any]: ...


class EventLoop(Protocol):
    """The caller's event loop."""

    def future(self) -> Future:
        """Return a future for one waiter. On asyncio its cancellation cancels the future."""
        ...

    def wait(self, future: Future) -> Awaitable[Any]:
        """Return an awaitable for one more waiter, whose cancellation leaves the future alone."""
        ...

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function after all tasks that can go on now have gone on, and those that they wake in turn."""
        ...

    def soon_from_thread(self, call: Callable[[], object]) -> None:
        """Call a function soon, from any thread. After the loop has ended, do nothing."""
        ...


class Executor(Protocol):
    """Does one piece of work after the other."""

    def submit(self, work: Work, done: Done, *, last: bool = False) -> None:
        """Do some work, and then call ``done`` in the event loop; it ends after the ``last`` one."""
        ...


def running_loop() -> EventLoop:
    """Return the caller's event loop."""
    return _Asyncio() if backend() == "asyncio" else _Trio()


class _Asyncio:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # not that of the task that happens to be first
        self.future = self._loop.create_future

    def wait(self, future: Any) -> Awaitable[Any]:
        return asyncio.shield(future)

    def soon(self, call: Callable[[], object]) -> None:  # after two turns: one would make nearly twice as many transactions
        self._loop.call_soon(self._next_turn, call, context=self._context)

    def _next_turn(self, call: Callable[[], object]) -> None:
        self._loop.call_soon(call, context=self._context)

    def soon_from_thread(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, context=self._context)


class _Trio:
    def __init__(self) -> None:
        from trio import RunFinishedError
        from trio.lowlevel import current_trio_token

        self._token = current_trio_token()
        self._ended = RunFinishedError

    def future(self) -> Future:
        return _TrioFuture()

    def wait(self, future: Future) -> Awaitable[Any]:
        return future

    def soon(self, call: Callable[[], object]) -> None:
        # in the next turn, tasks that were woken now and a call from outside come in any order: so in the turn after it
        self.soon_from_thread(partial(self.soon_from_thread, call))

    def soon_from_thread(self, call: Callable[[], object]) -> None:
        with suppress(self._ended):
            self._token.run_sync_soon(call)


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
    """A thread of its own. It does not keep the process alive: what it has not told when that ends, nobody waits for."""

    def __init__(self, loop: EventLoop, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Done, bool]] = SimpleQueue()
        Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True).start()

    def submit(self, work: Work, done: Done, *, last: bool = False) -> None:
        """Do some work in the thread."""
        self._queue.put((work, done, last))

    def _run(self) -> None:
        last = False
        while not last:
            work, done, last = self._queue.get()
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:
                failure = error
            self._loop.soon_from_thread(partial(done, result, failure))
            del work, done, result, failure  # while it waits, it holds none of them


class Inline:
    """Does the work in the event loop itself: emulated time does not wait for threads."""

    def submit(self, work: Work, done: Done, *, last: bool = False) -> None:
        """Do some work now."""
        del last
        result: Any = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        done(result, failure)
