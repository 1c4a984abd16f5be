"""The client: one transport, its limits and retry budget, and views that share them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, cast

from attrs import evolve

from rbim import __version__
from rbim.client.call import Call, Exchange
from rbim.client.limits import Limits
from rbim.client.retry import Retry
from rbim.client.shared import CallSettings, SharedState
from rbim.clock import SystemClock
from rbim.credentials import Credentials
from rbim.errors import ClientClosed, InvalidRequest
from rbim.operations import catalogue
from rbim.operations.groups import Groups
from rbim.validators import require, require_clock, require_methods, require_name
from rbim.wire.codec import Codec, wrong_origin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import NoReturn, Self, Unpack

    from cattrs import Converter

    from rbim.client.observers import Observers
    from rbim.client.rotation import Rotation
    from rbim.client.shared import Load, Priority
    from rbim.clock import Clock
    from rbim.credentials import CredentialsProvider
    from rbim.dialect import Dialect
    from rbim.http import Signer, Transport
    from rbim.observers import Observer
    from rbim.operations.base import Operation
    from rbim.operations.call_tasks import Calls
    from rbim.operations.namespace import Namespace, Sender
    from rbim.timeouts import Deadlines

    kept = property  # jedi reads this too: of cached_property it would offer the attributes
else:
    from functools import cached_property as kept

__all__ = ["AsyncClient", "ClientOptions", "PreparedRequest", "Url", "View", "in_background", "prepare"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

TIMEOUT = 10.0
DEADLINE = 30.0
AGAIN = 5.0
"""Seconds that a cancelled call may take to clean up before it is cancelled once more."""

LATE_BACKSTOP = 1.5
"""The backstop of a transport that keeps its timeouts: for a second after them it may read what has arrived. Where one timer
serves all calls (:mod:`rbim.timeouts`), there is no backstop, so that such a call does not set it."""

GRACE = 5.0
"""Seconds to wait on close for calls that ignore their cancellation."""


class Url(Protocol):
    """An address as an object of another library: pydantic's ``AnyHttpUrl``, httpx's ``URL``, yarl's."""

    @property
    def scheme(self) -> str:
        """The scheme, such as ``https``."""
        ...

    @property
    def host(self) -> str | None:
        """The host."""
        ...


class View:
    """A view of a client: it has its own acting account, timeouts and retries, and shares everything else.

    ``groups`` and ``calls`` have the operations as methods; :meth:`send` takes any operation, also newly declared ones.
    A declared :class:`~rbim.operations.Namespace` is an attribute too, under its class name in lower case;
    ``MyNamespace(client)`` gives the same, with types.
    """

    def __init__(self, shared: SharedState, settings: CallSettings) -> None:
        self._shared = shared
        self._settings = settings

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled; make one in the other process (AsyncClient.from_env)")

    def __repr__(self) -> str:
        if "_settings" not in vars(self):  # its constructor raises: a traceback may show its local variables
            return f"<{type(self).__name__}, not made>"
        user = f" as {self._settings.user_name}" if self._settings.user_name else ""
        name = f" {self.name}" if self.name else ""
        return f"<{type(self).__name__}{name} of {self._shared.codec.app_id or '?'}{user}, {self._shared.state}>"

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
        return await Call(self._shared, self._settings, operation).send()

    async def exchange(self, operation: Operation[R], /) -> Exchange[R]:
        """Run one operation and return its answer with the raw response, the attempts and the timings."""
        call = Call(self._shared, self._settings, operation)
        return call.exchange(await call.send())

    def prepare(self, operation: Operation[R], leaves: Callable[[], Awaitable[object]], /) -> PreparedRequest[R]:
        """Prepare a request: ``await prepared.send()`` waits for its turn without a deadline, and sends it.

        For senders that keep a journal of their own. ``leaves`` is awaited once, when the request has its place and its
        tokens: it writes the intent down, and the request leaves when it returns; the deadline of the call begins then. It
        holds a place meanwhile: if it takes long, let it raise. Then nothing is sent, place and tokens are given back, and
        the error is raised; prepare the request again. What raises before, such as InvalidRequest or ClientClosed, comes
        without a call of ``leaves``.
        """
        return Call(self._shared, self._settings, operation, leaves)

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
        those of ``priority`` "normal" (default) go before those of "low", the default in jobs and fan-outs; one turn in
        eight is one of a "low" call.
        """
        given: dict[str, Any] = {"timeout": timeout, "deadline": deadline, "retry": retry, "priority": priority}
        return View(self._shared, evolve(self._settings, **{k: v for k, v in given.items() if v is not None}))


class ClientOptions(TypedDict, total=False):
    """The arguments of :class:`AsyncClient`, for functions that pass them on."""

    base_url: str | Url
    call_base_url: str | Url | None
    credentials: Credentials | CredentialsProvider | None
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
    user_agent: str


class AsyncClient(View):
    """The client of one application.

    - ``base_url``: URL of the group operations (``https://host:8883``); ``call_base_url``: URL of the call tasks (default:
      ``base_url``). Texts, or URL objects of pydantic, httpx or yarl.
    - ``credentials`` or ``signer``: exactly one of them. The credentials may be a function that returns them, also an async
      one: it is called on entering, and again when the platform refuses the credentials (:mod:`rbim.client.rotation`).
    - ``user_name``: the acting account of operations that name none.
    - ``transport``: sends the requests; or its name: ``httpx`` (default), ``auto``, ``asyncio``, ``aiohttp``, ``httpx2``.
      ``dialect``: the choices that the interface leaves open.
    - ``limits``: requests in flight at once (default: 100) and rates (default: none).
    - ``timeout``: seconds for one attempt (default: 10); ``deadline``: seconds for the whole call with waits and retries
      (default: 30); ``retry``: the retry policy (default: at most 3 attempts).
    - ``clock``: for tests; ``observers``: receive events of calls and attempts; ``hooks``: called with each cattrs
      converter, for the types of newly declared operations.
    - ``name``: the client's name in logs, events, spans, metrics and errors, for a process with several (default: none).
    - ``user_agent``: text to add to the ``User-Agent`` of requests, ``rbim/... python/3.11 httpx/0.28.1`` (default: none).

    Use it with ``async with``, once, and share it between any number of tasks. On exit, calls in flight end with
    ``ClientClosed``.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        base_url: str | Url,
        call_base_url: str | Url | None = None,
        credentials: Credentials | CredentialsProvider | None = None,
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
        user_agent: str = "",
    ) -> None:
        from rbim.dialect import Dialect

        dialect = Dialect() if dialect is None else dialect
        require("dialect", dialect, Dialect, "Dialect(...)")
        base_url, call_base_url = cast("str", _url_text(base_url)), _url_text(call_base_url)
        wrong = wrong_origin(base_url, call_base_url, dialect.api_version)
        if wrong is not None:
            base_url = call_base_url = ""  # a traceback with local variables must not show a password in it
            raise wrong
        limits = Limits() if limits is None else limits
        retry = Retry() if retry is None else retry
        clock = SystemClock() if clock is None else clock
        require_name("name", name)
        require("user_agent", user_agent, str, "a text")
        if not (user_agent.isascii() and user_agent.isprintable()):
            raise InvalidRequest("user_agent: a text of printable ASCII is needed, such as 'shop/1.2'", field="user_agent")
        require("limits", limits, Limits, "Limits(concurrency=..., rates=[...])")
        require_clock(clock)
        if hooks is not None:
            require_methods("hooks", hooks, ("__call__",), "a function of a cattrs converter")

        def sign_with(credentials: Credentials) -> Signer:
            from rbim.wire.signing import AppSigner

            return AppSigner(credentials, clock=clock, zone=dialect.zone)

        signer = _signer_of(credentials, signer, sign_with)
        transport = _transport_of(transport)
        shared = SharedState(
            transport=transport,
            signer=cast("Signer", signer),  # a provider is asked before the first call
            codec=Codec(
                app_id="" if signer is None else signer.app_id,
                base_url=base_url,
                call_base_url=call_base_url,
                dialect=dialect,
                clock=clock,
                hooks=hooks,
                user_agent=partial(_user_agent_of, transport, user_agent),
            ),
            clock=clock,
            limits=limits,
            observers=_observers_of(observers),
            name=name,
        )
        self._rotation: Rotation | None = None
        if signer is None:
            from rbim.client.rotation import Rotation

            self._rotation = Rotation(cast("CredentialsProvider", credentials), shared, sign_with)
        settings = CallSettings(user_name=user_name, timeout=timeout, deadline=deadline, retry=retry)
        super().__init__(shared, settings)
        self._deadlines: Deadlines | None = None

    @classmethod
    def from_env(cls, **options: Unpack[ClientOptions]) -> Self:
        """Return a client configured from environment variables.

        ``RBIM_BASE_URL``, ``RBIM_APP_ID`` and ``RBIM_APP_TOKEN`` (or ``RBIM_APP_TOKEN_FILE``, a file that holds only the
        token) are required. ``RBIM_CALL_BASE_URL``, ``RBIM_USER_NAME``, ``RBIM_USER_AGENT``,
        ``RBIM_TRANSPORT``, ``RBIM_CONCURRENCY``, ``RBIM_RATES`` (``50/s,600/min``), ``RBIM_TIMEOUT``, ``RBIM_DEADLINE`` and
        ``RBIM_DIALECT`` (``zone=+08:00,invite_limit=5``) are optional. ``options`` are constructor arguments; they take
        precedence. ``limits`` replaces concurrency and rates. Raises InvalidRequest that names the missing or
        wrong variable, and ModuleNotFoundError with the pip command if the transport needs an extra.
        """
        from rbim.config import environment

        return environment().make(cls, options)

    async def __aenter__(self) -> Self:
        from rbim.timeouts import deadlines_of  # imports asyncio

        if self._shared.state != "new":
            raise RuntimeError("a client is entered once: create a new one")
        self._shared.state = "opening"
        try:
            if self._rotation is not None:
                await self._rotation.begin()
            await self._shared.transport.__aenter__()
        except BaseException:
            self._shared.state = "new"
            raise
        self._deadlines = deadlines_of(self._shared.clock, again=AGAIN)
        if self._deadlines is not None:
            self._shared.wait, self._shared.admission.deadlines = self._deadlines.run, self._deadlines
        # declared by its own class: a subclass or a wrapper may wait outside of the transport's timers
        if vars(type(self._shared.transport)).get("keeps_timeouts"):
            self._shared.backstop = LATE_BACKSTOP if self._deadlines is None else inf
        self._shared.admission.open()
        self._shared.state = "open"
        return self

    async def open(self) -> Self:
        """Enter the client, for code that has no block: the same as ``async with``. Leave it with :meth:`aclose`."""
        return await self.__aenter__()

    async def aclose(self) -> None:
        """Leave the client, as at the end of ``async with``; nothing happens if it was not entered, or was left."""
        await self.__aexit__(None, None, None)

    async def warm_up(self) -> None:
        """Prepare everything that a first call of each operation needs, so that no call stalls the event loop for it.

        It imports modules and compiles converters, some tens of milliseconds in small steps, and opens no connection.
        Raises ClientClosed outside the client's ``async with`` block.
        """
        if self._shared.state != "open":
            raise ClientClosed("the client is not open: warm it up in its `async with` block")

        from anyio.lowlevel import checkpoint

        shared = self._shared
        for entry in catalogue.entries():
            shared.codec.prepare(entry.operation)
            await checkpoint()
        prepare = getattr(shared.transport, "warm_up", None)
        if prepare is not None:
            await prepare(*dict.fromkeys(shared.codec.origins.values()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        shared = self._shared
        if shared.state == "opening":
            raise RuntimeError("the client is being opened by another task: leave it after that")
        if shared.state != "open":  # the transport is left once: other clients may use it
            return
        shared.state = "closing"
        with _shield(self._deadlines):  # also a cancelled task closes everything
            try:
                shared.admission.refuse_all()
                for scope in tuple(shared.scopes):
                    scope.cancel()
                if self._deadlines is not None:
                    self._deadlines.end()
                if shared.running:
                    from anyio import Event

                    shared.all_ended = Event()
                    with shared.clock.scope(GRACE):
                        await shared.all_ended.wait()
            finally:  # asyncio's Task.cancel() passes every shield of anyio
                try:
                    await shared.transport.__aexit__(kind, error, trace)
                finally:
                    shared.state = "closed"
                    shared.admission.close()
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


def _url_text(url: str | Url | None) -> str | None:
    """Return an address as text; anything else is left as it is, for the codec to refuse."""
    named = not isinstance(url, (str, type)) and hasattr(url, "scheme") and hasattr(url, "host")
    return str(url) if named else cast("str | None", url)


def _signer_of(credentials: object, signer: Signer | None, sign_with: Callable[[Credentials], Signer]) -> Signer | None:
    """Return the signer; None for a provider. Raises InvalidRequest unless either credentials or a signer is given."""
    if signer is not None and credentials is None:
        require_methods("signer", signer, ("sign",), "a signer such as AppSigner(credentials)")
        require("signer.app_id", getattr(signer, "app_id", None), str, "a text")
        return signer
    if credentials is None or signer is not None:
        raise InvalidRequest(
            "credentials: give either credentials=Credentials(app_id=..., app_token=...) or signer=, not both",
            field="credentials",
        )
    if callable(credentials) and not isinstance(credentials, (Credentials, type)):
        return None
    require("credentials", credentials, Credentials, "Credentials(app_id=..., app_token=...)")
    return sign_with(cast("Credentials", credentials))


def _observers_of(observers: Iterable[Observer]) -> Observers | None:
    """Return the observers; None if there are none. Raises InvalidRequest."""
    if observers == ():
        return None
    from rbim.observers import checked

    listed = checked(observers)
    if not listed:
        return None
    from rbim.client.observers import Observers

    return Observers(listed)


def _user_agent_of(transport: object, own: str) -> str:
    """Return the ``User-Agent`` of requests over this transport, which is open, with the client's ``own`` text."""
    python = f"python/{sys.version_info[0]}.{sys.version_info[1]}"
    return " ".join(filter(None, (f"rbim/{__version__}", python, getattr(transport, "library_version", ""), own)))


def _transport_of(given: Transport | str | None) -> Transport:
    """Return a transport, also one that is given by its name."""
    if given is not None and not isinstance(given, str):
        form = "a transport, such as HttpxTransport(), or a name, such as 'httpx',"
        require_methods("transport", given, ("send", "__aenter__", "__aexit__"), form)
        return given
    from rbim.transports.auto import transport_named

    return transport_named("httpx" if given is None else given)


class PreparedRequest(Protocol[R_co]):
    """A request that is sent once; ``rbim.client.call.Call`` is one."""

    @property
    def may_have_acted(self) -> bool:
        """Whether the platform may have acted on the request."""
        ...

    async def send(self) -> R_co:
        """Send the request, once, and return its answer. Raises what the sender raises."""
        ...


class _Unlimited(Generic[R]):
    """A request of a sender that is no client: it leaves as soon as it is sent."""

    def __init__(self, sender: Sender, op: Operation[R], leaves: Callable[[], Awaitable[object]]) -> None:
        self._sender = sender
        self._op = op
        self._leaves = leaves
        self.may_have_acted = False

    async def send(self) -> R:
        await self._leaves()
        self.may_have_acted = True
        return await self._sender.send(self._op)


def in_background(sender: Sender) -> Sender:
    """Return a sender whose calls have low priority, if it is a client or a view without a priority of its own."""
    view = _view(sender)
    return sender if view is None or view.priority is not None else view.tuned(priority="low")


def prepare(sender: Sender, op: Operation[R], leaves: Callable[[], Awaitable[object]]) -> PreparedRequest[R]:
    """Prepare a request; ``leaves`` is awaited before it leaves, see :meth:`rbim.View.prepare`."""
    view = _view(sender)
    return _Unlimited(sender, op, leaves) if view is None else view.prepare(op, leaves)


def _view(sender: Sender) -> View | None:
    """Return a client or a view; None for another sender, also for a class of its own that sends in another way."""
    return sender if isinstance(sender, View) and type(sender).send is View.send else None
