"""The receiver of callbacks: verifies each delivery, stores it, answers in time, and runs handlers afterwards.

How a delivery is answered: :mod:`rbim.callbacks.receiver.intake`. What the sink does not store in time, and in which order
it gets that later: :mod:`rbim.callbacks.receiver.spool`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, cast, get_args

from anyio import create_task_group

from rbim._support.text import one_line, quoted
from rbim.callbacks.observers import Observers
from rbim.callbacks.receiver.intake import AsgiApp, Intake
from rbim.callbacks.receiver.key_ring import KeyRing
from rbim.callbacks.receiver.replies import Health
from rbim.callbacks.receiver.spool import Spool
from rbim.callbacks.receiver.wsgi import ReceiverWsgi
from rbim.callbacks.signature import Policy
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import Resource, Router
from rbim.callbacks.worker.supervision import HostTask, Supervision
from rbim.callbacks.worker.worker import Worker
from rbim.clock import SystemClock
from rbim.dialect import Dialect
from rbim.errors import InvalidRequest, RbimError
from rbim.observers import checked
from rbim.validators import require, require_clock, require_methods, require_name, require_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from os import PathLike
    from types import TracebackType
    from typing import Self, Unpack

    from rbim.callbacks.inbox.protocols import Inbox, Sink
    from rbim.callbacks.inbox.stored import Archive
    from rbim.callbacks.receiver.key_ring import CallbackCredentials, CallbackCredentialsProvider
    from rbim.callbacks.receiver.replies import Reply
    from rbim.callbacks.signature import Headers, Keys
    from rbim.clock import Clock
    from rbim.observers import Observer

__all__ = ["Receiver", "ReceiverOptions"]

Mode = Literal["normal", "high-guarantee"]

READ_LIMIT = 1.0  # seconds for counting the waiting events
MOST_OF_LINE = 300


class ReceiverOptions(TypedDict, Generic[Resource], total=False):
    """The arguments of :class:`Receiver` that have a default, or a variable of the environment."""

    credentials: CallbackCredentials | Keys | CallbackCredentialsProvider
    grace: float
    refresh_pause: float
    name: str
    mode: Mode
    policy: Policy | None
    dialect: Dialect | None
    budget: float
    spool: str | PathLike[str] | None
    clock: Clock | None
    observers: Iterable[Observer]
    router: Router[Resource] | None
    around: Callable[[], AbstractAsyncContextManager[Resource]] | None
    concurrency: int
    timeout: float
    backoff: Backoff | None
    drain: float
    health: str | None


class Receiver(Generic[Resource]):
    """Receives callbacks, as an ASGI application (``asgi``), as a WSGI application (``wsgi``) or by :meth:`receive`.

    ``wsgi`` needs no ``async with``: it runs the receiver in a thread of its own, from the first request (or
    ``wsgi.start()``) to the end of the process (or ``wsgi.stop()``); ``wsgi.receive(headers, body)`` is :meth:`receive` for
    synchronous code.

    ``async with receiver`` enters the ``sink`` and starts to handle events if there are handlers
    (``@receiver.on(TeamKick)``, ``@receiver.fallback``; see :class:`~rbim.callbacks.Router`). Without handlers it only
    stores deliveries, and another process can handle them from the same inbox.

    An ``async def`` handler runs in the current event loop, as the rest of the application, and may use its pools and
    clients. One that blocks delays answers, and is reported (:class:`~rbim.callbacks.LoopBlocked`). A plain ``def`` runs in
    a thread. ``around`` returns an async context manager for what handlers share; its value is their
    ``HandlerContext.resource`` (``around=lambda: asyncpg.create_pool(dsn)``).

    ``credentials``: of one application or several, the current token of each first; or a provider, a plain or async function
    that returns them. A provider is asked on entering, when a delivery matches no key (which waits for the answer, within
    its ``budget``), and once in five minutes; after an answer with nothing new not for ``refresh_pause`` seconds (default:
    1). Keys that it no longer returns are accepted for ``grace`` seconds (default: one day). ``name``: stands in log records
    (``rbim_receiver``), observations and errors (default: none). ``mode``: the mode set on the platform, "normal" (default:
    what the sink does not store goes into the overflow file) or "high-guarantee" (503, the platform resends). ``policy``:
    the limits for accepted deliveries (default: the dialect's). ``dialect``: the choices that the interface leaves open; a
    ``router`` that is given has its own. ``budget``: seconds for body and sink (default: 2). ``spool``: the overflow file
    for deliveries that the sink does not store in time (default: next to the file of a :class:`~rbim.callbacks.SqliteInbox`,
    none for other sinks; needed in normal mode for a sink on a network). ``observers`` are called with each observation
    (:class:`~rbim.Observer`). At most ``concurrency`` conversations are handled at once (default: 16), each attempt for at
    most ``timeout`` seconds (default: 60); ``backoff`` decides when the next attempt follows. On leaving, running handlers
    have ``drain`` seconds (default: 10). ``health``: the path at which ``asgi`` answers a GET with the receiver's
    :meth:`health`, such as "/health" (default: none). Raises InvalidRequest for a wrong combination or value.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        credentials: CallbackCredentials | Keys | CallbackCredentialsProvider,
        sink: Sink,
        grace: float = 86_400.0,
        refresh_pause: float = 1.0,
        name: str = "",
        mode: Mode = "normal",
        policy: Policy | None = None,
        dialect: Dialect | None = None,
        budget: float = 2.0,
        spool: str | PathLike[str] | None = None,
        clock: Clock | None = None,
        observers: Iterable[Observer] = (),
        router: Router[Resource] | None = None,
        around: Callable[[], AbstractAsyncContextManager[Resource]] | None = None,
        concurrency: int = 16,
        timeout: float = 60.0,
        backoff: Backoff | None = None,
        drain: float = 10.0,
        health: str | None = None,
    ) -> None:
        require_name("name", name)
        if mode not in get_args(Mode):
            raise InvalidRequest(f"mode: use 'normal' or 'high-guarantee', not {quoted(mode)}", field="mode")
        _check_seconds("budget", budget, zero=False)
        _check_seconds("grace", grace, zero=True)
        _check_seconds("refresh_pause", refresh_pause, zero=True)
        self.clock = SystemClock() if clock is None else clock
        dialect = Dialect() if dialect is None else dialect
        _check(sink, policy=policy, dialect=dialect, clock=self.clock, router=router, backoff=backoff)
        if health is not None and not (isinstance(cast("object", health), str) and health.startswith("/")):
            raise InvalidRequest(f'health: use a path such as "/health", not {quoted(health)}', field="health")
        if spool is not None:
            require_path("spool", spool)
        if around is not None:
            require_methods("around", around, ("__call__",), "a function that returns an async context manager")
        if policy is not None:
            _check_retention(policy, sink)
        self.sink = sink
        self.router: Router[Resource] = router if router is not None else Router(dialect)
        self.on = self.router.on
        self.middleware = self.router.middleware
        self.fallback = self.router.fallback
        self.name = name
        notified = Observers(checked(observers), self.clock.monotonic, receiver=name)
        self._log = notified.log
        self._ring = KeyRing(credentials, clock=self.clock, log=notified.log, grace=grace, pause=refresh_pause)
        self._spools = mode == "normal"
        self._spool = self._spool_for(spool, budget, notified)
        self._intake = Intake(
            ring=self._ring,
            policy=policy or Policy.of(dialect),
            out_of_time=dialect.normal_out_of_time if mode == "normal" else dialect.high_guarantee_out_of_time,
            sink=sink,
            spool=self._spool,
            spools=self._spools,
            budget=budget,
            clock=self.clock,
            observers=notified,
        )
        self.asgi = AsgiApp(self._intake, self, self.health, health)
        self.wsgi = ReceiverWsgi(self, self._intake.policy.max_body, health)
        self._running: HostTask | None = None
        self._supervision = Supervision("receiver", notified, self.clock)
        self._sink_supervision = Supervision("sink", notified, self.clock)
        self._worker_supervision = Supervision("worker", notified, self.clock)
        self._worker: Worker | None = None
        self._new_worker = partial(
            Worker,
            cast("Inbox", sink),
            self.router,
            clock=self.clock,
            concurrency=concurrency,
            timeout=timeout,
            backoff=backoff or Backoff(),
            observers=notified,
            drain=drain,
            around=around,
            supervision=self._worker_supervision,
        )
        self._new_worker()  # validates them

    @classmethod
    def from_env(cls, *, sink: Sink, **options: Unpack[ReceiverOptions[Resource]]) -> Self:
        """Return a receiver with the credentials in ``RBIM_APP_ID`` and ``RBIM_APP_TOKEN`` (or ``RBIM_APP_TOKEN_FILE``).

        ``RBIM_CALLBACK_CREDENTIALS_FILE`` may name a file with more credentials (:mod:`rbim.config`). ``RBIM_DIALECT``
        has fields of the dialect, such as ``delivery_max_age=600``. ``options`` are the constructor's; they take precedence.
        Raises InvalidRequest that names a missing or wrong variable.
        """
        from rbim.config import environment

        found = environment()
        if "credentials" not in options:
            options["credentials"] = found.callback_credentials()
        if options.get("dialect") is None:
            options["dialect"] = found.dialect
        given: dict[str, Any] = dict(options)
        return cls(sink=sink, **given)

    def __repr__(self) -> str:
        return f"<Receiver {self.name}>" if self.name else "<Receiver>"

    async def __aenter__(self) -> Self:
        """Start. Raises InvalidRequest for handlers without a fallback, or with a sink that is not an inbox."""
        if self._running is not None:
            raise RuntimeError(f"{self!r} is entered already: leave it first, or create another one")
        running = HostTask(self._parts, self._supervision)
        await running.__aenter__()
        self._running = running
        self._intake.begin()
        return self

    @asynccontextmanager
    async def _parts(self) -> AsyncGenerator[None, None]:
        if self.router:
            self.router.check()
            if not hasattr(self.sink, "backlog"):
                cause = f"{type(self.sink).__name__} gives out no events; handlers need an inbox, such as SqliteInbox"
                raise InvalidRequest(cause, field="sink")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._ring)
            if self._spool is not None:
                await stack.enter_async_context(self._spool)
            await stack.enter_async_context(HostTask(self._storing, self._sink_supervision, self._is_away))
            yield

    @asynccontextmanager
    async def _storing(self) -> AsyncGenerator[None, None]:
        """Enter the sink, forward what the spool holds, and run the worker."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.sink)
            if self._spool is not None:
                forwarding = await stack.enter_async_context(create_task_group())
                stack.callback(forwarding.cancel_scope.cancel)
                forwarding.start_soon(self._spool.forward)
            if self.router:
                self._worker = self._new_worker()
                await stack.enter_async_context(self._worker)
            self._intake.sink_entered = True
            try:
                yield
            finally:
                self._intake.sink_entered = False

    def _is_away(self, error: BaseException) -> bool:
        """Return whether a sink that cannot be entered is a network's, so that the spool takes deliveries meanwhile."""
        network = isinstance(getattr(self.sink, "ready", None), bool) and self._spools
        return network and isinstance(error, Exception) and not isinstance(error, RbimError)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Answer 503 from now on, let running handlers finish, and close spool and sink. Any task may leave."""
        self._intake.end()
        if self._worker is not None:
            self._worker.stop()  # first: what ends without this leaves its events as after a death
        running, self._running = self._running, None
        if running is not None:
            await running.__aexit__(kind, error, trace)

    async def health(self) -> Health:
        """Return whether deliveries are accepted and handled, and how far handling is behind. Raises nothing.

        For a load balancer, ``asgi`` answers a GET to the constructor's ``health`` path: 200, or 503 if it is not ``ok``.
        """
        parts = (self._supervision, self._sink_supervision, self._worker_supervision)
        receiver, sink, worker = parts
        running, failure = self._running is not None and receiver.running, self._intake.failure
        waiting: int | None = None
        lag: float | None = None
        reading = ""
        if running and sink.running and hasattr(self.sink, "counts") and hasattr(self.sink, "lag"):
            archive = cast("Archive", self.sink)
            try:
                with self.clock.scope(READ_LIMIT):
                    waiting, lag = (await archive.counts()).waiting, await archive.lag()
            except Exception as error:
                self._log.warning("the waiting events could not be counted", exc_info=True)
                reading = one_line(f"{type(error).__name__}: {error}", MOST_OF_LINE)
        return Health(
            accepting=running and failure is None and (sink.running or (self._spools and self._spool is not None)),
            handling=worker.running if self.router else None,
            waiting=waiting,
            lag=lag,
            restarts=sum(part.restarts for part in parts),
            error=failure or reading or next((part.error for part in parts if part.error), ""),
        )

    async def overflow(self) -> int | None:
        """Return the number of deliveries that wait in the overflow file (``spool``) until the sink takes them.

        None without one, outside the ``async with`` block, and while the receiver restarts.
        """
        if self._spool is None or self._running is None or not self._supervision.running:
            return None
        return await self._spool.waiting()

    async def receive(self, headers: Headers, body: bytes) -> Reply:
        """Process one delivery, given its headers and its raw body as received, and return the answer.

        Never raises for any delivery. Outside the ``async with`` block nothing is stored: the answer is 503 instead of 200.
        """
        return cast("Reply", await self._intake.take(headers, body))

    def _spool_for(self, path: str | PathLike[str] | None, budget: float, observers: Observers) -> Spool | None:
        """Return the spool, or None. If none is needed but its file exists, return it so that it is emptied."""
        beside: Path | None = getattr(self.sink, "path", None)
        if path is None and beside is not None:
            path = beside.with_name(f"{beside.name}-spool")
        if path is not None and beside is not None and Path(path).resolve() == beside.resolve():
            raise InvalidRequest(f"spool: {path} is the inbox itself; use another file", field="spool")
        if path is None and self._spools and isinstance(getattr(self.sink, "ready", None), bool):
            raise InvalidRequest(
                f"spool: {type(self.sink).__name__} is reached over a network, and in normal mode a delivery that it cannot"
                ' take is lost: pass the path of an overflow file, such as spool="/var/lib/rbim/copies.spool", or set the'
                ' platform and mode= to "high-guarantee"',
                field="spool",
            )
        if path is None or not (self._spools or Path(path).exists()):
            return None
        return Spool(Path(path), self.sink, clock=self.clock, budget=budget, observers=observers)


def _check_seconds(field: str, seconds: object, *, zero: bool) -> None:
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not (cast("float", seconds) > 0 or (zero and seconds == 0)):
        form = "from 0 on" if zero else "above 0"
        raise InvalidRequest(f"{field}: use a number of seconds {form}, not {quoted(seconds)}", field=field)


def _check_retention(policy: Policy, sink: Sink) -> None:
    """Refuse limits that accept a replay after the sink has forgotten the original."""
    back, ahead = policy.back or 0.0, policy.ahead or 0.0
    if sink.durable and 0 < sink.retention < back + ahead:
        raise InvalidRequest(
            f"policy: back and ahead are {back + ahead:g} s together, but the sink recognises deliveries for"
            f" {sink.retention:g} s only (retention): replays after that would be handled again; use lower limits or a"
            " longer retention",
            field="policy",
        )


def _check(sink: object, **given: object) -> None:
    """Raise InvalidRequest for an argument of the wrong type."""
    form = 'a sink such as SqliteInbox("events.db")'
    require_methods("sink", sink, ("accept", "__aenter__", "__aexit__"), form)
    if not (hasattr(sink, "durable") and hasattr(sink, "retention")):
        require("sink", sink, (), form)
    require("dialect", given["dialect"], Dialect, "Dialect(...)")
    require_clock(given["clock"])
    for name, kind in (("policy", Policy), ("router", Router), ("backoff", Backoff)):
        if given[name] is not None:
            require(name, given[name], kind, f"{kind.__name__}(...)")
