"""The client: one transport, its limits and retry budget, and views that share them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from attrs import evolve

from rbim.client.call import Call, Exchange
from rbim.client.limits import Limits
from rbim.client.retry import Retry
from rbim.client.shared import CallSettings, SharedState
from rbim.clock import SystemClock
from rbim.credentials import Credentials
from rbim.errors import InvalidRequest
from rbim.operations.groups import Groups
from rbim.validators import require, require_clock, require_methods, require_name
from rbim.wire.codec import Codec, wrong_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self, Unpack

    from cattrs import Converter

    from rbim.client.observers import Observer, Observers
    from rbim.client.reservation import Reservation
    from rbim.client.shared import Load, Priority
    from rbim.clock import Clock
    from rbim.dialect import Dialect
    from rbim.http import Signer, Transport
    from rbim.operations.base import Operation
    from rbim.operations.call_tasks import Calls
    from rbim.operations.namespace import Namespace
    from rbim.timeouts import Deadlines

    kept = property  # jedi reads this too: of cached_property it would offer the attributes
else:
    from functools import cached_property as kept

__all__ = ["AsyncClient", "ClientOptions", "View"]

R = TypeVar("R")

TIMEOUT = 10.0
DEADLINE = 30.0
AGAIN = 5.0
"""Seconds that a cancelled call may take to clean up before it is cancelled once more."""

GRACE = 5.0
"""Seconds to wait on close for calls that ignore their cancellation."""


class View:
    """A view of a client: it has its own acting account, timeouts and retries, and shares everything else.

    ``groups`` and ``calls`` have the operations as methods; :meth:`send` takes any operation, also newly declared ones.
    A declared :class:`~rbim.operations.Namespace` is an attribute too, under its class name in lower case;
    ``MyNamespace(client)`` gives the same, with types.
    """

    def __init__(self, shared: SharedState, settings: CallSettings) -> None:
        self._shared = shared
        self._settings = settings

    def __repr__(self) -> str:
        if "_settings" not in vars(self):  # its constructor raises: a traceback may show its local variables
            return f"<{type(self).__name__}, not made>"
        user = f" as {self._settings.user_name}" if self._settings.user_name else ""
        name = f" {self.name}" if self.name else ""
        return f"<{type(self).__name__}{name} of {self._shared.codec.app_id}{user}, {self._shared.state}>"

    @property
    def name(self) -> str:
        """The client's name; empty if it has none."""
        return self._shared.name

    @property
    def dialect(self) -> Dialect:
        """The client's dialect: the choices that the interface description leaves open."""
        return self._shared.codec.dialect

    @property
    def clock(self) -> Clock:
        """The client's clock."""
        return self._shared.clock

    @property
    def priority(self) -> Priority | None:
        """The priority of this view's calls while they wait, if it was given: "normal" or "low"."""
        return self._settings.priority

    @property
    def load(self) -> Load:
        """The current load of the client and all its views: requests in flight, waiting calls, retry budget."""
        return self._shared.load

    @kept
    def groups(self) -> Groups:
        """The ten group operations."""
        return Groups(self)

    @kept
    def calls(self) -> Calls:
        """The operations on outbound-call tasks."""
        from rbim.operations.call_tasks import Calls

        return Calls(self)

    if not TYPE_CHECKING:  # so that type checkers still reject undeclared names

        def __getattr__(self, name: str) -> Namespace:
            from rbim.operations import catalogue

            kind = None if name.startswith("_") else catalogue.namespace(name)
            if kind is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return kind(self)

    async def send(self, operation: Operation[R], /) -> R:
        """Run one operation and return its answer.

        Raises InvalidRequest (before anything is sent), TransportError, ProtocolError, ApiError, DeadlineExceeded or
        ClientClosed; the error's ``outcome`` shows whether the platform may have acted.
        """
        return await Call(self._shared, self._settings, operation).run()

    async def exchange(self, operation: Operation[R], /) -> Exchange[R]:
        """Run one operation and return its answer with the raw response, the attempts and the timings."""
        call = Call(self._shared, self._settings, operation)
        return call.exchange(await call.run())

    def reserve(self, operation: Operation[R], granted: Callable[[], object], /) -> Reservation[R]:
        """Reserve a request: it waits for its place and its rates before its call begins, without a deadline.

        For senders that keep a journal: ``granted`` is called when the request has its place and may be written down, at
        once or later while another task runs; then :meth:`Reservation.send` sends it. Requests of one operation and group
        get their places in the order in which they were reserved.
        """
        from rbim.client.reservation import Reservation

        return Reservation(self._shared, self._settings, operation, granted)

    def acting_as(self, user_name: str | None) -> View:
        """Return a view whose operations act as ``user_name``, unless they name an account themselves."""
        return View(self._shared, evolve(self._settings, user_name=user_name))

    def tuned(
        self,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        retry: Retry | None = None,
        priority: Priority | None = None,
    ) -> View:
        """Return a view with other timeouts, another retry policy or another priority; None keeps the current value.

        ``timeout`` is in seconds per attempt, ``deadline`` in seconds per call. While calls wait for the client's limits,
        those of ``priority`` "normal" (default) go before those of "low", the default in jobs and fan-outs; if the oldest
        "low" one has waited for 5 seconds, it has one turn in eight.
        """
        given: dict[str, Any] = {"timeout": timeout, "deadline": deadline, "retry": retry, "priority": priority}
        return View(self._shared, evolve(self._settings, **{k: v for k, v in given.items() if v is not None}))


class ClientOptions(TypedDict, total=False):
    """The arguments of :class:`AsyncClient`, for functions that pass them on."""

    base_url: str
    call_base_url: str | None
    credentials: Credentials | None
    signer: Signer | None
    user_name: str | None
    transport: Transport | str | None
    dialect: Dialect | None
    limits: Limits | None
    timeout: float
    deadline: float
    retry: Retry | None
    clock: Clock | None
    observers: Iterable[Observer]
    hooks: Callable[[Converter], None] | None
    name: str


class AsyncClient(View):
    """The client of one application.

    - ``base_url``: URL of the group operations (``https://host:8883``); ``call_base_url``: URL of the call tasks (default:
      ``base_url``).
    - ``credentials`` or ``signer``: exactly one of them.
    - ``user_name``: the acting account of operations that name none.
    - ``transport``: sends the requests; or its name: ``httpx`` (default), ``auto``, ``asyncio``, ``aiohttp``, ``pyreqwest``,
      ``httpx2``. ``dialect``: the choices that the interface leaves open.
    - ``limits``: requests in flight at once (default: 100) and rates (default: none).
    - ``timeout``: seconds for one attempt (default: 10); ``deadline``: seconds for the whole call with waits and retries
      (default: 30); ``retry``: the retry policy (default: at most 3 attempts).
    - ``clock``: for tests; ``observers``: receive events of calls and attempts; ``hooks``: called with each cattrs
      converter, for the types of newly declared operations.
    - ``name``: the client's name in logs, events, spans, metrics and errors, for a process with several (default: none).

    Use it with ``async with``, once, and share it between any number of tasks. On exit, calls in flight end with
    ``ClientClosed``.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        base_url: str,
        call_base_url: str | None = None,
        credentials: Credentials | None = None,
        signer: Signer | None = None,
        user_name: str | None = None,
        transport: Transport | str | None = None,
        dialect: Dialect | None = None,
        limits: Limits | None = None,
        timeout: float = TIMEOUT,
        deadline: float = DEADLINE,
        retry: Retry | None = None,
        clock: Clock | None = None,
        observers: Iterable[Observer] = (),
        hooks: Callable[[Converter], None] | None = None,
        name: str = "",
    ) -> None:
        dialect = _dialect(dialect)
        wrong = wrong_origin(base_url, call_base_url, dialect.version)
        if wrong is not None:
            base_url = call_base_url = ""  # a traceback with local variables must not show a password in it
            raise wrong
        limits = Limits() if limits is None else limits
        retry = Retry() if retry is None else retry
        clock = SystemClock() if clock is None else clock
        _check(limits=limits, clock=clock, hooks=hooks, name=name)
        signer = _signer(credentials, signer, clock, dialect)
        shared = SharedState(
            transport=_transport(transport),
            signer=signer,
            codec=Codec(
                app_id=signer.app_id,
                base_url=base_url,
                call_base_url=call_base_url,
                dialect=dialect,
                clock=clock,
                hooks=hooks,
            ),
            clock=clock,
            limits=limits,
            observers=_observers(observers),
            name=name,
        )
        settings = CallSettings(user_name=user_name, timeout=timeout, deadline=deadline, retry=retry)
        super().__init__(shared, settings)
        self._deadlines: Deadlines | None = None

    @classmethod
    def from_env(cls, **options: Unpack[ClientOptions]) -> Self:
        """Return a client configured from environment variables.

        ``RBIM_BASE_URL``, ``RBIM_APP_ID`` and ``RBIM_APP_TOKEN`` (or ``RBIM_APP_TOKEN_FILE``, a file that holds only the
        token) are required. ``RBIM_CALL_BASE_URL``, ``RBIM_USER_NAME``, ``RBIM_TRANSPORT``, ``RBIM_CONCURRENCY``,
        ``RBIM_RATES`` (``50/s,600/min``), ``RBIM_TIMEOUT`` and ``RBIM_DEADLINE`` are optional, and so is one for each field
        of the dialect, such as ``RBIM_VERSION``. ``options`` are constructor arguments; they take precedence, and their
        variables are not read. ``limits`` replaces concurrency and rates. Raises InvalidRequest that names the missing or
        wrong variable, and ModuleNotFoundError with the pip command if the transport needs an extra.
        """
        from rbim.client.settings import Environment, client_arguments

        environment = Environment()
        arguments = client_arguments(options, environment, environment.needed)
        try:
            return cls(**arguments)
        except InvalidRequest as error:
            if error.field not in options and (variable := environment.source(error.field)) is not None:
                error.add_note(f"{error.field} is from: environment variable {variable}")
            raise

    async def __aenter__(self) -> Self:
        from rbim.timeouts import deadlines_of  # imports asyncio

        if self._shared.state != "new":
            raise RuntimeError("a client is entered once: create a new one")
        self._shared.state = "opening"
        try:
            await self._shared.transport.__aenter__()
        except BaseException:
            self._shared.state = "new"
            raise
        self._deadlines = deadlines_of(self._shared.clock, again=AGAIN)
        if self._deadlines is not None:
            self._shared.scope = self._shared.admission.scope = self._deadlines.scope
            # declared by its own class: a subclass or a wrapper may wait outside of the transport's timers
            self._shared.timed_by_transport = bool(vars(type(self._shared.transport)).get("keeps_timeouts"))
        self._shared.state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._shared.state = "closing"
        with _shield(self._deadlines):  # also a cancelled task closes everything
            try:
                await _end(self._shared, kind, error, trace)
            finally:
                self._shared.state = "closed"
                if self._deadlines is not None:
                    self._deadlines.close()


def _shield(deadlines: Deadlines | None) -> AbstractContextManager[object]:
    """Return a block that no cancel scope around it cancels; ``deadlines`` is None except on asyncio.

    On asyncio only anyio has such scopes: while nothing has imported it, there is none.
    """
    if deadlines is not None and "anyio" not in sys.modules:
        return nullcontext()
    from anyio import CancelScope

    return CancelScope(shield=True)


async def _end(shared: SharedState, *error: Any) -> None:
    """End the running calls, and leave the transport with this exception."""
    for scope in tuple(shared.scopes):
        scope.cancel()
    try:
        if not shared.timed_by_transport:
            await _calls_ended(shared)
    finally:  # asyncio's Task.cancel() passes every shield of anyio
        try:
            await shared.transport.__aexit__(*error)
        finally:
            await _calls_ended(shared)


async def _calls_ended(shared: SharedState) -> None:
    """Wait until no call is running; all waits together last GRACE seconds at most."""
    if shared.running and shared.all_ended is None:
        from anyio import Event

        shared.all_ended = Event()
        with shared.clock.scope(GRACE):
            await shared.all_ended.wait()


def _signer(credentials: Credentials | None, signer: Signer | None, clock: Clock, dialect: Dialect) -> Signer:
    if signer is not None and credentials is None:
        require_methods("signer", signer, ("sign",), "a signer such as AppSigner(credentials)")
        require("signer.app_id", getattr(signer, "app_id", None), str, "a text")
        return signer
    if credentials is None or signer is not None:
        raise InvalidRequest(
            "credentials: give either credentials=Credentials(app_id=..., app_token=...) or signer=, not both",
            field="credentials",
        )
    require("credentials", credentials, Credentials, "Credentials(app_id=..., app_token=...)")
    from rbim.wire.signing import AppSigner

    return AppSigner(credentials, clock=clock, zone=dialect.zone)


def _dialect(dialect: Dialect | None) -> Dialect:
    from rbim.dialect import Dialect

    if dialect is None:
        return Dialect()
    require("dialect", dialect, Dialect, "Dialect(...)")
    return dialect


def _check(*, limits: object, clock: object, hooks: object, name: object) -> None:
    require_name("name", name)
    require("limits", limits, Limits, "Limits(concurrency=..., rates=[...])")
    require_clock(clock)
    if hooks is not None:
        require_methods("hooks", hooks, ("__call__",), "a function of a cattrs converter")


EVENTS = ("call_started", "attempt_started", "attempt_ended", "call_ended")


def _observers(observers: Iterable[Observer]) -> Observers | None:
    require_methods("observers", observers, ("__iter__",), "a list of observers, such as [LoggingObserver()],")
    listed = tuple(observers)
    for each in listed:
        if isinstance(each, type) or not any(hasattr(each, name) for name in EVENTS):
            require_methods("observers", each, EVENTS, "a list of observers, such as [LoggingObserver()],")
    if not listed:
        return None
    from rbim.client.observers import Observers

    return Observers(listed)


def _transport(given: Transport | str | None) -> Transport:
    if given is not None and not isinstance(given, str):
        form = "a transport, such as HttpxTransport(), or a name, such as 'httpx',"
        require_methods("transport", given, ("send", "__aenter__", "__aexit__"), form)
        return given
    from rbim.transports.by_name import transport_named

    return transport_named("httpx" if given is None else given)
