"""One connection to NATS servers: it opens in the background, and again after every failure."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import wraps
from logging import getLogger
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anyio import CancelScope

from rbim._support.event_loops import backend
from rbim._support.text import one_line
from rbim.errors import InvalidRequest
from rbim.jetstream.nats_py import Client, NatsError, close, connect, jetstream_of
from rbim.jetstream.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from types import TracebackType
    from typing import Self

    from rbim.jetstream.nats_py import JetStreamContext
    from rbim.jetstream.settings import NatsSettings

__all__ = ["Connection", "EngineAway", "answered", "ended", "finished", "outcomes", "together"]

T = TypeVar("T")

# Theory of operation: the state of a connection.
#
#   connecting   No server has answered. All addresses are tried, again and again.
#   preparing    A server has answered; ``prepare`` runs, again and again until it succeeds: there may be no leader yet.
#   ready        ``prepare`` has succeeded, and a server is connected.
#   refused      ``prepare`` raised InvalidRequest: what is on the servers does not fit. Nothing is tried any more.
#   closed       Not entered, or left.
#
# closed -> connecting      on entering
# connecting -> preparing   a server is connected
# preparing -> ready        prepare() returned
# preparing -> refused      prepare() raised InvalidRequest
# preparing, ready -> connecting   the server is lost
# ready -> preparing        suspect(): a request had no answer
# (any) -> closed           on leaving
#
# What must always hold:
# - Entering waits for the first result, of whatever kind, and for FIRST_WAIT at most. It fails only if that is ``refused``.
# - nats-py closes a client for good after some errors of a server: then another client takes its place.
# - ``jetstream()`` returns only while ``ready``.

REQUEST_TIMEOUT = 2.0
"""Seconds for which a request waits for its answer."""

CONNECT_TIMEOUT = 2  # seconds for one server
AT_HAND = 5.0  # seconds: a cluster has a new leader by then
CANCEL_AGAIN = 0.1  # seconds
RECONNECT_WAIT = 0.2  # seconds between two attempts with the same server
PING_EVERY, PINGS = 5, 2  # a server that answers none for 10 to 15 seconds is left
FIRST_WAIT = 2.0  # seconds
PREPARE_AGAIN = 0.25  # seconds
LAST_WAIT = 2.0  # seconds for closing
MOST_OF_CAUSE = 200  # characters

logger = getLogger("rbim.jetstream")
Method = TypeVar("Method", bound="Callable[..., Awaitable[object]]")


class EngineAway(ConnectionError):
    """No server is connected, or none has answered; the message has the last cause."""


def answered(method: Method) -> Method:
    """Return a method that raises EngineAway where servers answer with an error, or not at all."""

    @wraps(method)
    async def asked(*args: Any, **kwargs: Any) -> object:
        try:
            return await method(*args, **kwargs)
        except EngineAway:
            raise
        except (NatsError, TimeoutError) as error:
            cause = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise EngineAway(f"the servers did not do it ({one_line(cause, MOST_OF_CAUSE)})") from error

    return cast("Method", asked)


class Connection:
    """A connection for one event loop (asyncio), an async context manager.

    ``name`` is shown by the servers' monitoring. ``prepare`` gets the JetStream context after each connect: it creates what
    is missing there and may raise InvalidRequest if what is there does not fit; other errors are tried again.

    Entering does not need the network. Raises InvalidRequest on trio, or if ``prepare`` raised it.
    """

    def __init__(
        self,
        servers: tuple[str, ...],
        settings: NatsSettings,
        *,
        name: str,
        prepare: Callable[[JetStreamContext], Awaitable[object]],
    ) -> None:
        self._servers = servers
        self._settings = settings
        self._name = name
        self._prepare = prepare
        self._tls = settings.tls(servers)
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        self._publisher: Publisher | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = False
        self._settled = asyncio.Event()  # it is ready, refused or closed
        self._tried = asyncio.Event()  # there is a first result
        self._connecting = False
        self._changed = asyncio.Event()  # _use() has something to do
        self._failures = 0
        self._failure = "not entered"
        self._refused: InvalidRequest | None = None

    async def __aenter__(self) -> Self:
        if backend() != "asyncio":
            raise InvalidRequest("rbim.jetstream runs on asyncio only: nats-py does not know trio")
        if self._task is not None:
            raise RuntimeError("this connection is entered already")
        self._failure, self._failures, self._refused = "no server has answered yet", 0, None
        self._settled, self._tried = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="rbim-jetstream")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WAIT):
                    await self._tried.wait()
        except BaseException:
            await self.close()
            raise
        refused = cast("InvalidRequest | None", self._refused)  # by the task
        if refused is not None:
            await self.close()
            raise refused
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, within a few seconds. Requests without an answer fail."""
        task, self._task = self._task, None
        if task is None:
            return
        self._failure = "the connection is closed"
        task.cancel()
        try:
            await finished(task, again=lambda: self._connecting)
        finally:
            self._settled.set()

    @property
    def ready(self) -> bool:
        """Whether a server is connected and everything is prepared: a request may succeed now."""
        return self._ready

    @property
    def failure(self) -> str:
        """The last cause for which it was not ready, as one line."""
        return self._failure

    def require(self) -> JetStreamContext:
        """Return the JetStream context without waiting.

        Raises EngineAway if it is not ready, and InvalidRequest if what is there does not fit.
        """
        if self._refused is not None:
            raise self._refused
        if self._jetstream is None or not self._ready:
            raise EngineAway(f"{', '.join(self._servers)}: {self._failure}")
        return self._jetstream

    @property
    def client(self) -> Client:
        """The client behind the JetStream context. Raises EngineAway while it is not ready."""
        self.require()
        assert self._client is not None  # noqa: S101  # as long as it is ready
        return self._client

    async def jetstream(self) -> JetStreamContext:
        """Return the JetStream context as soon as it is ready. Raises InvalidRequest if what is there does not fit."""
        while self._jetstream is None or not self._ready:
            if self._task is None:
                raise RuntimeError("this connection is not entered: use it inside `async with`")
            if self._refused is not None:
                raise self._refused
            await self._settled.wait()
        return self._jetstream

    async def at_hand(self) -> JetStreamContext:
        """Return the JetStream context for a question of people, who would rather know than wait.

        Raises EngineAway if it is not ready within five seconds, and what :meth:`jetstream` raises.
        """
        try:
            async with asyncio.timeout(AT_HAND):
                return await self.jetstream()
        except TimeoutError:
            return self.require()

    async def publisher(self) -> Publisher:
        """Return the publisher of the client as soon as it is ready. Raises what :meth:`jetstream` raises."""
        await self.jetstream()
        assert self._publisher is not None  # noqa: S101  # as long as it is ready
        return self._publisher

    def suspect(self, cause: str) -> None:
        """Note that a request had no answer: it is not ready until ``prepare`` has succeeded again."""
        if self._ready:
            self._lose(cause)

    def _lose(self, cause: str = "") -> None:
        self._end_ready()
        self._failure = one_line(cause, MOST_OF_CAUSE) or self._failure
        self._changed.set()

    def _end_ready(self) -> None:
        self._ready = False
        self._settled.clear()

    async def _run(self) -> None:
        """Use one client after another: nats-py closes one for good after some errors of a server."""
        while self._refused is None:
            client = self._client = Client()
            try:
                await self._use(client)
            except Exception as error:
                self._failed(error)
                await asyncio.sleep(RECONNECT_WAIT)
            finally:
                self._end_ready()
                self._jetstream = None
                if self._publisher is not None:
                    self._publisher.close()
                with suppress(Exception):
                    async with asyncio.timeout(LAST_WAIT):
                        await close(client)
        self._settled.set()
        self._tried.set()

    async def _use(self, client: Client) -> None:
        """Connect a client, and prepare after each connect, until the client is closed for good."""
        credentials = self._settings.credentials_file
        self._connecting = True
        try:
            await connect(
                client,
                [*self._servers],
                name=self._name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT,
                connect_timeout=CONNECT_TIMEOUT,
                flush_timeout=REQUEST_TIMEOUT,  # where too much waits to be written, publishing waits for that
                ping_interval=PING_EVERY,
                max_outstanding_pings=PINGS,
                tls=self._tls,
                user_credentials=None if credentials is None else str(credentials),
                error_cb=self._on_error,
                disconnected_cb=self._on_loss,
                reconnected_cb=self._on_change,
                closed_cb=self._on_loss,
            )
        finally:
            self._connecting = False
        self._publisher = Publisher(client, timeout=REQUEST_TIMEOUT)
        await self._publisher.start()
        while not client.is_closed and self._refused is None:
            self._changed.clear()
            if self._ready or not client.is_connected:
                await self._changed.wait()
            elif not await self._prepared(jetstream_of(client, timeout=REQUEST_TIMEOUT)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(PREPARE_AGAIN):
                        await self._changed.wait()

    async def _prepared(self, jetstream: JetStreamContext) -> bool:
        try:
            await self._prepare(jetstream)
        except InvalidRequest as error:
            logger.error("%s: %s", ", ".join(self._servers), error)  # noqa: TRY400  # callers get it with its traceback
            self._refused = error
            return False
        except Exception as error:  # no leader yet, no answer, JetStream is off: prepare() says what is missing
            self._failed(error)
            self._tried.set()
            return False
        if self._changed.is_set():  # lost meanwhile
            return False
        self._jetstream, self._ready = jetstream, True
        self._settled.set()
        self._tried.set()
        return True

    def _failed(self, error: Exception) -> None:
        self._failure = one_line(f"{type(error).__name__}: {error}".removesuffix(": "), MOST_OF_CAUSE)
        logger.debug("%s: %s", ", ".join(self._servers), self._failure)

    async def _on_error(self, error: Exception) -> None:
        self._failed(error)
        self._failures += 1
        if self._failures >= len(self._servers):
            self._tried.set()

    async def _on_loss(self) -> None:
        self._lose()

    async def _on_change(self) -> None:
        self._changed.set()


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended: on Python 3.11 a request of nats-py may lose a cancellation."""
    task.cancel()
    await finished(task, again=lambda: True)


async def finished(task: asyncio.Task[Any], again: Callable[[], bool] = lambda: False) -> None:
    """Wait until a task has ended, also if the caller is cancelled meanwhile: for tasks that end within seconds.

    While ``again()`` is true the task is cancelled again and again: nats-py may lose a cancellation while it connects, and,
    before Python 3.12, one that comes together with the answer to a request.
    """
    cancelled: asyncio.CancelledError | None = None
    with CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait((task,), timeout=CANCEL_AGAIN)
            except asyncio.CancelledError as error:
                cancelled = error
            if again():
                task.cancel()
    if cancelled is not None:
        raise cancelled


# Why not ``asyncio.gather``: if it is cancelled after its last call has ended, its CancelledError does not say which scope
# it is of. No scope takes such an error for its own, so ``move_on_after`` and ``fail_after`` let it through.
async def outcomes(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | Exception]:
    """Run calls at once; when all have ended, return what each has returned or raised, in their order.

    If it is cancelled, it cancels them, and ends when they have ended.
    """
    tasks = [asyncio.create_task(call) for call in calls]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        with CancelScope(shield=True):
            await asyncio.wait(tasks)
        for task in tasks:
            _outcome(task)  # asyncio would report an error that no one asks for
        raise
    return [_outcome(task) for task in tasks]


def _outcome(task: asyncio.Task[T]) -> T | Exception:
    if task.cancelled():  # by something that it awaited
        return RuntimeError("a call to the servers was cancelled")
    error = task.exception()
    return error if isinstance(error, Exception) else task.result()


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run calls at once and return their results, in their order. Raises the first error, when all have ended."""
    found = await outcomes(calls)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return [each for each in found if not isinstance(each, Exception)]
