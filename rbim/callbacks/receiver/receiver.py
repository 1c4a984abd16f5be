"""The receiver of message copies: verifies each delivery, makes it safe, answers in time, and has it handled afterwards.

**In time.** The platform gives up after 5 seconds (Delivery rules, 4). The body must be there, and the sink must have taken
it, within the ``budget``, 2 seconds unless told; then the spool has one second.

**When the sink is too slow, or fails.** In normal mode the platform never tries again, so the delivery goes into the spool,
a local file, and is answered 200; the spool hands it to the sink as soon as that takes it. In high-guarantee mode it is
answered 503, and the platform resends. Where a slow sink took it all the same, it is known by its key and handled once.

**Late resends.** Whether a resend is signed anew is not known. So an authentic delivery that is older than the policy allows
is accepted if its body says that it is a resend, and the sink remembers what it took for at least as long.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from rbim.callbacks.observers import Observers
from rbim.callbacks.receiver.asgi import ReceiverApp
from rbim.callbacks.receiver.intake import Intake
from rbim.callbacks.receiver.replies import Reply
from rbim.callbacks.receiver.spool import Spool
from rbim.callbacks.signature import Policy, keys_of
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import Router
from rbim.callbacks.worker.runner import WorkerTask, WorkerThread
from rbim.callbacks.worker.worker import Worker
from rbim.clock import SystemClock
from rbim.credentials import callback_credentials_from_env
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.inbox.protocols import Inbox, Sink
    from rbim.callbacks.observers import Observation
    from rbim.callbacks.signature import Headers, Keys
    from rbim.clock import Clock
    from rbim.credentials import Credentials

__all__ = ["Receiver"]

Mode = Literal["normal", "high-guarantee"]


class Receiver:
    """Receives message copies. Framework-free (:meth:`receive`), and an ASGI application (``asgi``).

    ``async with receiver`` enters the ``sink``, and starts to handle events if there are handlers
    (``@receiver.on(TeamKick)``, ``@receiver.fallback``; see :class:`~rbim.callbacks.Router`). Without any it only
    accepts, and a process that has them works on the same inbox. Handlers run in a thread and an event loop of their own, so
    that one that blocks delays no answer; ``around`` is a callable that gives an async context manager, entered there, for
    what they share (``around=lambda: client``). With ``own_thread=False`` they run in the receiver's loop, where one that
    blocks does delay answers.

    ``credentials`` are one application's or several's, the current token of each first. ``mode`` is that of the copy, as set
    on the platform. ``policy`` says what is accepted. ``budget`` is in seconds. ``spool`` is the file for what the sink does
    not take in time: unless told, beside that of a :class:`~rbim.callbacks.SqliteInbox`, and none for other sinks.
    ``late_resends=False`` refuses resends outside the policy's window. ``observers`` are called with each fact
    (:mod:`rbim.callbacks.observers`). At most ``concurrency`` conversations are handled at once, each attempt for at most
    ``timeout`` seconds; ``backoff`` says when the next one is made. On leaving, running handlers have ``drain`` seconds.
    Raises InvalidRequest for what makes no sense.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        credentials: Credentials | Iterable[Credentials] | Keys,
        sink: Sink,
        mode: Mode = "normal",
        policy: Policy | None = None,
        budget: float = 2.0,
        spool: str | Path | None = None,
        late_resends: bool = True,
        clock: Clock | None = None,
        observers: Iterable[Callable[[Observation], object]] = (),
        router: Router | None = None,
        around: Callable[[], AbstractAsyncContextManager[object]] | None = None,
        own_thread: bool = True,
        concurrency: int = 16,
        timeout: float = 60.0,
        backoff: Backoff | None = None,
        drain: float = 10.0,
    ) -> None:
        if mode not in get_args(Mode):
            raise InvalidRequest(f"mode: 'normal' or 'high-guarantee' is needed, not {mode!r}", field="mode")
        if not budget > 0:
            raise InvalidRequest(f"budget: a number of seconds above 0 is needed, not {budget!r}", field="budget")
        self.sink = sink
        self.clock = clock or SystemClock()
        self.router = router if router is not None else Router()
        self.on = self.router.on
        self.fallback = self.router.fallback
        watch = Observers(observers)
        self._spool = self._spool_for(spool, budget, needed=mode == "normal")
        self._intake = Intake(
            keys=keys_of(credentials),
            policy=policy or Policy(),
            late_resends=late_resends,
            sink=sink,
            spool=self._spool,
            spools=mode == "normal",
            budget=budget,
            clock=self.clock,
            watch=watch,
        )
        self.asgi = ReceiverApp(self._intake, self)
        self._running: AsyncExitStack | None = None
        self._around = around
        self._own_thread = own_thread
        self._handling: dict[str, Any] = {
            "clock": self.clock,
            "concurrency": concurrency,
            "timeout": timeout,
            "backoff": backoff or Backoff(),
            "watch": watch,
            "drain": drain,
        }

    @classmethod
    def from_env(cls, **options: Any) -> Self:  # the constructor's own
        """Make a receiver with the credentials of ``RBIM_APP_ID`` and ``RBIM_APP_TOKEN`` (or ``RBIM_APP_TOKEN_FILE``).

        ``RBIM_CALLBACK_CREDENTIALS_FILE`` may name a file with more (:mod:`rbim.credentials`). ``options`` are the
        constructor's. Raises InvalidRequest that names the variable that is missing.
        """
        if "credentials" not in options:
            options["credentials"] = callback_credentials_from_env()
        return cls(**options)

    async def __aenter__(self) -> Self:
        """Raises InvalidRequest where there are handlers and no fallback, or handlers and a sink that gives nothing out."""
        if self._running is not None:
            raise RuntimeError("this receiver is entered already")
        worker = self._worker() if self.router else None
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.sink)
            if self._spool is not None:
                await stack.enter_async_context(self._spool)
            if worker is not None:
                runs = WorkerThread if self._own_thread else WorkerTask
                await stack.enter_async_context(runs(worker, around=self._around))
            self._running = stack.pop_all()
        self._intake.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Answer 503 from now on, let handlers finish, and leave spool and sink."""
        self._intake.end()
        running, self._running = self._running, None
        if running is not None:
            await running.__aexit__(kind, error, trace)

    async def receive(self, headers: Headers, body: bytes) -> Reply:
        """Take one delivery, with its headers and its raw body as they came, and return what to answer.

        Nothing that comes makes it raise. Outside the ``async with`` block the answer is 503.
        """
        began = self.clock.monotonic()
        judged = self._intake.judge(headers, body)
        return judged if isinstance(judged, Reply) else await self._intake.take(judged, began)

    def _spool_for(self, path: str | Path | None, budget: float, *, needed: bool) -> Spool | None:
        """Return the spool; where none is needed, one that is left over, to be emptied."""
        beside: Path | None = getattr(self.sink, "path", None)
        if path is None and beside is not None:
            path = beside.with_name(f"{beside.name}-spool")
        if path is not None and beside is not None and Path(path).resolve() == beside.resolve():
            raise InvalidRequest(f"spool: {path} is the inbox itself", field="spool")
        if path is None or not (needed or Path(path).exists()):
            return None
        return Spool(Path(path), self.sink, clock=self.clock, budget=budget)

    def _worker(self) -> Worker:
        self.router.check()
        if not hasattr(self.sink, "backlog"):
            raise InvalidRequest(
                f"{type(self.sink).__name__} gives out no events: handlers need an inbox, such as SqliteInbox", field="sink"
            )
        return Worker(cast("Inbox", self.sink), self.router, **self._handling)
