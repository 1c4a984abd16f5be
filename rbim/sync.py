"""The client for code without ``async``: blocking calls from any thread, over one AsyncClient in a thread of its own.

The exception of a signal, such as KeyboardInterrupt, may come between any two steps of the main thread, also while it hands
a call over. It cancels the call that the thread waits for: the event loop begins no call that is cancelled, and ends one
that has begun. So a thread that waits here uses only locks and queues that are written in C: in the classes of ``threading``
and ``concurrent.futures`` such an exception can leave a lock taken, for which the event loop would then wait.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import inspect
import os
import threading
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from rbim.client.client import AsyncClient, View as AsyncView, in_background
from rbim.client.fan_out import WORKERS, Done, Failed, check_workers
from rbim.errors import AuthenticationError, ClientClosed, Outcome, RbimError
from rbim.operations import call_tasks, groups
from rbim.operations.namespace import Method, Namespace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
    from typing import Self, Unpack

    from rbim.client.client import ClientOptions
    from rbim.client.shared import Load
    from rbim.operations.base import Operation

__all__ = ["Calls", "Client", "Groups", "View"]

P = ParamSpec("P")
R = TypeVar("R")


class _PortalCall(Generic[R]):
    """A call that one thread makes, and the event loop runs; it is put into ``ended`` when it has ended."""

    def __init__(self, function: Callable[[AsyncClient], Awaitable[R]], ended: SimpleQueue[_PortalCall[R]]) -> None:
        self.function, self.ended = function, ended
        self.cancelled = False
        self.task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        self.answer: R

    async def run(self, client: AsyncClient) -> None:
        try:
            self.answer = await self.function(client)
        except asyncio.CancelledError:
            self.error = ClientClosed("the client was closed while the call ran", outcome=Outcome.UNKNOWN)
        except BaseException as error:
            self.error = error
        self.ended.put(self)

    def result(self) -> R:
        if self.error is not None:
            raise self.error
        return self.answer


def _next(queue: SimpleQueue[R]) -> R:
    """Wait for an entry; notice a signal within a second that came just before the thread began to wait."""
    while True:
        with suppress(Empty):
            return queue.get(timeout=1.0)


class _Portal:
    """Hands the calls of one process over to the event loop of a thread, which the first call starts."""

    def __init__(self, make: Callable[[], AsyncClient], *, closed: bool) -> None:
        self.make = make
        self.closed = closed
        self.lock = threading.Lock()  # to open the client, to hand a call over, and to close
        self.claim = threading.Lock()  # taken by the thread that runs the event loop
        self.loop: asyncio.AbstractEventLoop | None = None  # the client is open, or was
        self.error: BaseException | None = None  # of opening or leaving it
        self.left = False
        self.news: SimpleQueue[None] = SimpleQueue()  # one of them is set
        self.thread: threading.Thread | None = None

    def run(self, function: Callable[[AsyncClient], Awaitable[R]]) -> R:
        call = _PortalCall(function, SimpleQueue())
        try:
            self.begin(call)
            _next(call.ended)
        except BaseException:
            self.cancel(call)
            raise
        return call.result()

    def begin(self, call: _PortalCall[Any]) -> None:
        if threading.current_thread() is self.thread:
            raise RuntimeError("this is the thread of the client's event loop: a call would wait for itself")
        with self.lock:
            if self.closed:
                raise ClientClosed("the client is closed: create a new one")
            if not self.claim.locked():
                thread = threading.Thread(target=self.serve, name="rbim", daemon=True)
                _thread.start_new_thread(thread.start, ())  # there, no exception of a signal can come
            if (loop := self.opened()) is None:  # the next call tries again
                error, self.error, self.claim = self.error, None, threading.Lock()
                raise cast("BaseException", error)
            loop.call_soon_threadsafe(self.step, call)

    def cancel(self, call: _PortalCall[Any]) -> None:
        call.cancelled = True
        if self.loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and the call with it
                self.loop.call_soon_threadsafe(self.step, call)

    def step(self, call: _PortalCall[Any]) -> None:
        """Begin a call, in the event loop; the second time, cancel it."""
        if call.task is not None:
            call.task.cancel()
        elif not call.cancelled:
            call.task = asyncio.create_task(call.run(self.client))

    def close(self) -> None:
        with self.lock:
            self.closed = True
            if self.claim.locked() and (loop := self.opened()) is not None:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self.leave.set)
                cast("threading.Thread", self.thread).join()
                error, self.error = self.error, None
                if error is not None:
                    raise error

    def opened(self) -> asyncio.AbstractEventLoop | None:
        """Wait until the client is open; return None if there was an error."""
        while self.loop is None and self.error is None:
            _next(self.news)
        return self.loop

    def serve(self) -> None:
        if self.claim.acquire(blocking=False) and not self.closed:  # an interrupted starter may have started another thread
            self.thread = threading.current_thread()
            try:
                with asyncio.Runner() as runner:
                    runner.run(self.main())
            except BaseException as error:
                if not self.left:  # else asyncio has no thread to end its executor with, at the exit of Python 3.12+
                    self.error = error
            self.news.put(None)

    async def main(self) -> None:
        async with self.make() as self.client:
            self.leave = asyncio.Event()
            self.loop = asyncio.get_running_loop()
            self.news.put(None)
            await self.leave.wait()
        self.left = True


class _Blocking:
    """A counterpart of ``get(client)``, such as a view or a namespace, whose methods block."""

    def __init__(self, portal: Callable[[], _Portal], get: Callable[[AsyncClient], Any]) -> None:
        self._portal = portal
        self._get = get


def _shown_as(method: Callable[..., Any], call: Callable[P, R]) -> Callable[P, R]:
    """Give a method the name, the docstring and the parameters of another one."""
    signature = inspect.signature(method)
    parameters = {"self": inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), **signature.parameters}
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    call.__signature__ = signature.replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]
    return call


def _blocking(
    method: Method[P, R] | Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return the method that runs the async one of the same name, and waits for it."""
    shown = method.__get__(Namespace(cast("Any", None)), Namespace) if isinstance(method, Method) else method

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def function(client: AsyncClient) -> Awaitable[R]:
            return cast("Awaitable[R]", getattr(self._get(client), shown.__name__)(*args, **kwargs))

        portal: _Portal = self._portal()
        return portal.run(function)

    return _shown_as(shown, call)


def _viewing(method: Callable[Concatenate[Any, P], AsyncView]) -> Callable[Concatenate[Any, P], View]:
    """Return the method that makes the counterpart of a view that ``method`` makes."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> View:
        return View(self._portal, lambda client: method(self._get(client), *args, **kwargs))

    return _shown_as(method, call)


class Groups(_Blocking):
    """The group operations."""

    create = _blocking(groups.Groups.create)
    modify = _blocking(groups.Groups.modify)
    delete = _blocking(groups.Groups.delete)
    search = _blocking(groups.Groups.search)
    detail = _blocking(groups.Groups.detail)
    join = _blocking(groups.Groups.join)
    invite = _blocking(groups.Groups.invite)
    invite_all = _blocking(groups.Groups.invite_all)
    remove = _blocking(groups.Groups.remove)
    remove_all = _blocking(groups.Groups.remove_all)
    leave = _blocking(groups.Groups.leave)
    set_role = _blocking(groups.Groups.set_role)


class Calls(_Blocking):
    """The operations on outbound-call tasks."""

    create_task = _blocking(call_tasks.Calls.create_task)


class View(_Blocking):
    """A view of a client, as :class:`rbim.View`, whose calls block. They raise InvalidRequest if a setting is wrong."""

    acting_as = _viewing(AsyncView.acting_as)
    tuned = _viewing(AsyncView.tuned)
    send = _blocking(AsyncView.send)
    exchange = _blocking(AsyncView.exchange)
    __reduce__ = AsyncView.__reduce__  # it cannot be pickled

    @property
    def groups(self) -> Groups:
        """The group operations."""
        return Groups(self._portal, lambda client: self._get(client).groups)

    @property
    def calls(self) -> Calls:
        """The operations on outbound-call tasks."""
        return Calls(self._portal, lambda client: self._get(client).calls)

    @property
    def load(self) -> Load:
        """The current load of the client and all its views."""

        async def load(client: AsyncClient) -> Load:
            return client.load

        return self._portal().run(load)

    @contextmanager
    def fan_out(
        self, operations: Iterable[Operation[R]], *, workers: int = WORKERS
    ) -> Generator[Iterator[Done[R] | Failed[R]], None, None]:
        """Run operations as ``rbim.fan_out`` does: the block gets an iterator of outcomes, as they complete.

        The thread that iterates also reads the input, at most ``workers`` (default: 100) ahead of the outcomes. Leaving the
        block cancels running operations. An AuthenticationError, or an exception of the input, ends the iterator.
        """
        check_workers(workers)
        portal, source = self._portal(), enumerate(operations)
        running: dict[_PortalCall[R], tuple[int, Operation[R]]] = {}
        ended: SimpleQueue[_PortalCall[R]] = SimpleQueue()

        def send(operation: Operation[R], client: AsyncClient) -> Awaitable[R]:
            return in_background(self._get(client)).send(operation)

        def outcomes() -> Iterator[Done[R] | Failed[R]]:
            while True:
                for index, operation in islice(source, workers - len(running)):
                    call = _PortalCall(partial(send, operation), ended)
                    running[call] = index, operation
                    portal.begin(call)
                if not running:
                    return
                index, operation = running.pop(call := ended.get())
                try:
                    yield Done(index, operation, call.result())
                except AuthenticationError:
                    raise
                except RbimError as error:
                    yield Failed(index, operation, error)

        try:
            yield outcomes()
        finally:
            for call in running:
                portal.cancel(call)


class Client(View):
    """The client of one application for any number of threads, whose calls block.

    ``make`` returns the :class:`rbim.AsyncClient` when this one is opened. Use it with ``with``, or keep it for the process:
    its first call opens it, and the end of the process closes it. Calls that run then, and later ones, raise ClientClosed.
    After a fork, the child's first call opens a client of its own. An exception in the waiting thread, such as
    KeyboardInterrupt, cancels its call.
    """

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        super().__init__(self._here, lambda client: client)
        self._make = make
        # A fork has none of its parent's threads. Its copy of what they use is kept, because to finalize it would close it.
        self._portals: dict[int, _Portal] = {}
        atexit.register(self.close)

    @classmethod
    def from_env(cls, **options: Unpack[ClientOptions]) -> Self:
        """Return a client that is configured when it is opened, as :meth:`rbim.AsyncClient.from_env` says."""
        return cls(partial(AsyncClient.from_env, **options))

    warm_up = _blocking(AsyncClient.warm_up)

    def run(self, function: Callable[[AsyncClient], Awaitable[R]], /) -> R:
        """Run ``function(client)``, such as a job, in the client's event loop, and return its result."""
        return self._here().run(function)

    def close(self) -> None:
        """Close the client, unless it is closed, and wait for its thread. It raises what the transport raises on leaving."""
        atexit.unregister(self.close)
        self._here().close()

    def _here(self) -> _Portal:
        if os.getpid() not in self._portals:
            closed = any(portal.closed for portal in tuple(self._portals.values()))
            self._portals.setdefault(os.getpid(), _Portal(self._make, closed=closed))
        return self._portals[os.getpid()]

    def __enter__(self) -> Self:
        _ = self.load  # opens it
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
