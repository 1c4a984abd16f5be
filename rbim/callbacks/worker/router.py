"""The router: decorators that register handlers and middleware, and the look-up of an event's handlers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from attrs import field, frozen

from rbim._support.text import empty
from rbim.callbacks.events import Event, parse
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from rbim.callbacks.events import ConvType
    from rbim.callbacks.inbox.protocols import Claim
    from rbim.dialect import Dialect

__all__ = [
    "CallNext",
    "HandlerCall",
    "HandlerContext",
    "HandlerRoute",
    "InThread",
    "Resource",
    "Router",
    "is_async",
]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Resource = TypeVarWithDefault("Resource", default=Any)
else:
    Resource = TypeVar("Resource")

E = TypeVar("E", bound=Event)
R = TypeVar("R")

CallNext = Callable[[], Awaitable[None]]
"""The rest of an attempt: the next middleware, or the handlers."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a plain function in a thread and returns its result."""


@frozen(kw_only=True)
class HandlerContext(Generic[Resource]):
    """The context of a handler call: facts about the event that are not in its body.

    ``key`` is the same for every attempt and every delivery of the event: use it to make a handler idempotent. ``attempt``
    counts from 1. ``received`` is the time of the delivery (with a time zone), ``replays`` the number of replays after the
    event had been handled, ``number`` its place in the order of acceptance, ``app_id`` the application that signed it.
    ``resource`` is the value of the receiver's ``around`` (None without one): ``HandlerContext[Pool]`` has a ``Pool``.
    ``body`` is the body as it was sent, ``document`` its JSON object; the repr shows neither.
    """

    key: str
    attempt: int
    received: datetime
    replays: int
    number: int
    app_id: str
    resource: Resource
    body: bytes = field(default=b"", repr=False)
    document: Mapping[str, Any] = field(factory=empty, repr=False, hash=False)


@frozen(kw_only=True)
class HandlerRoute:
    """A handler and the way to call it. ``blocking``: it is a plain function, which must run in a thread.

    ``when`` is its predicate (None: it gets every event of its class).
    """

    handler: Callable[..., Any]
    blocking: bool
    wants_handling: bool
    name: str = ""
    when: Callable[..., Any] | None = None


@frozen(kw_only=True)
class HandlerCall:
    """A prepared attempt to handle one event.

    ``run`` gets the function that runs others in a thread, and returns an awaitable. ``blocking``: it is one plain function,
    which cannot be stopped. ``event`` is the name of the event's class, ``handler`` the qualified name of the function, or
    of several, separated by commas.
    """

    run: Callable[[InThread], Awaitable[Any]]
    blocking: bool = False
    event: str = ""
    handler: str = ""


class _On(Generic[E, Resource]):
    """The decorator that :meth:`Router.on` returns."""

    def __init__(self, add: Callable[[Callable[..., Any]], None]) -> None:
        self._add = add

    @overload
    def __call__(self, handler: Callable[[E], R], /) -> Callable[[E], R]: ...

    @overload
    def __call__(
        self, handler: Callable[[E, HandlerContext[Resource]], R], /
    ) -> Callable[[E, HandlerContext[Resource]], R]: ...

    def __call__(self, handler: Callable[..., Any], /) -> Callable[..., Any]:
        self._add(handler)
        return handler


class Router(Generic[Resource]):
    """The handlers of a receiver, each for a class of events.

    ::

        router = Router()

        @router.on(TeamKick)
        async def kicked(event: TeamKick) -> None: ...

        @router.on(Text, conv_type=ConvType.TEAM)
        def said_in_a_group(event: Text, handling: HandlerContext) -> None: ...

        @router.on(Text, when=lambda event: event.body.startswith("/"))
        async def command(event: Text) -> None: ...

        @router.fallback
        async def anything_else(event: Event) -> None: ...

    A handler is ``async def``, or a plain ``def`` that runs in a thread and may block. It gets the event, and also the
    :class:`HandlerContext` if it has a second parameter without a default or one named ``handling``. It succeeds by
    returning and fails by raising; an event may be handled more than once. Decorators return the function unchanged.

    The most specific handlers get the event: those of the event's class, then those of its base classes (``Message``,
    ``Notification``, ``UnknownEvent``, ``Event``); within one class, those whose ``when`` is true before those without a
    ``when``, then those for its ``conv_type`` before those without. Several that are equally specific are called one after
    the other, in the order of registration. They are one attempt, with one timeout: if one fails, those after it are not
    called, and the next attempt calls all of them again.

    :meth:`middleware` runs around the handlers of every event. A ``Router[Pool]`` is for a receiver whose ``around`` gives
    a ``Pool``.
    ``dialect`` has the unit of ``msgTimestamp`` (default: milliseconds).
    """

    def __init__(self, dialect: Dialect | None = None) -> None:
        self._dialect = dialect
        self._routes: dict[type, dict[tuple[bool, str | None], list[HandlerRoute]]] = {}
        self._fallback: HandlerRoute | None = None
        self._middleware: list[Callable[..., Awaitable[Any]]] = []

    def __bool__(self) -> bool:
        """Whether there is any handler."""
        return bool(self._routes) or self._fallback is not None

    def on(
        self, kind: type[E], /, *, conv_type: ConvType | str | None = None, when: Callable[[E], object] | None = None
    ) -> _On[E, Resource]:
        """Register a handler for the events of a class; with ``conv_type``, only for one kind of conversation.

        ``when`` is a predicate: a plain function of the event that returns whether the handler wants it. It runs in the
        event loop, so it must not wait. If it raises, the attempt has failed.

        Raises InvalidRequest if the handler is registered already for the same events, or if ``kind``, ``conv_type``,
        ``when`` or the handler's signature is invalid.
        """
        _check(kind, conv_type, when)

        def add(handler: Callable[..., Any]) -> None:
            route = _route(handler, when)
            routes = self._routes.setdefault(kind, {}).setdefault((when is not None, conv_type), [])
            if route in routes:
                raise InvalidRequest(f"on(): {route.name} is registered already for these events", field="handler")
            routes.append(route)

        return _On(add)

    def middleware(
        self, function: Callable[[Event, HandlerContext[Resource], CallNext], Awaitable[R]], /
    ) -> Callable[[Event, HandlerContext[Resource], CallNext], Awaitable[R]]:
        """Register an ``async def`` function that runs around the handlers of every event, the first one outermost.

        It gets the event, the :class:`HandlerContext` and ``call_next``, and runs the handlers with ``await call_next()``.
        It belongs to the attempt: an exception that it raises or lets pass is a failure. Without the call, the event counts
        as handled. Raises InvalidRequest for another function.

        ::

            @router.middleware
            async def timed(event: Event, handling: HandlerContext, call_next: CallNext) -> None:
                began = time.perf_counter()
                await call_next()
                log.info("%s took %.3f s", event.msg_type, time.perf_counter() - began)
        """
        form = "a middleware is an async function of (event, handling, call_next)"
        if not (is_async(function) and _binds(_signature(function), 3)):
            raise InvalidRequest(f"middleware: {form}, not {function!r}", field="function")
        self._middleware.append(function)
        return function

    @overload
    def fallback(self, handler: Callable[[Event], R], /) -> Callable[[Event], R]: ...

    @overload
    def fallback(
        self, handler: Callable[[Event, HandlerContext[Resource]], R], /
    ) -> Callable[[Event, HandlerContext[Resource]], R]: ...

    def fallback(self, handler: Callable[..., Any], /) -> Callable[..., Any]:
        """Register the handler for all other events. Raises InvalidRequest if there is one already."""
        if self._fallback is not None:
            raise InvalidRequest("fallback: there is one already; register one only", field="handler")
        self._fallback = _route(handler, None)
        return handler

    def check(self) -> None:
        """Raise InvalidRequest if there is no fallback: an event could have no handler."""
        if self._fallback is None:
            raise InvalidRequest(
                "the router has no fallback for events without a handler; add one: "
                "@router.fallback async def anything_else(event: Event) -> None",
                field="router",
            )

    def find(self, event: Event) -> tuple[HandlerRoute, ...]:
        """Return the routes of an event. Raises InvalidRequest if there is none; :meth:`check` rules that out."""
        for kind in type(event).__mro__:
            levels = self._routes.get(kind, {})
            for level in product((True, False), (event.conv_type, None)) if levels else ():
                found = tuple(route for route in levels.get(level, ()) if route.when is None or route.when(event))
                if found:
                    return found
        self.check()
        assert self._fallback is not None  # noqa: S101  # checked
        return (self._fallback,)

    def handler_call(self, claim: Claim, resource: Any = None, /) -> HandlerCall:
        """Return the handler call for a claimed event. Raises CallbackRejected if its body cannot be read: a dead letter."""
        event = parse(claim.body, dialect=self._dialect)
        kind = type(event).__name__
        handling = HandlerContext(
            key=claim.key,
            attempt=claim.attempt,
            received=claim.received,
            replays=claim.replays,
            number=claim.number,
            app_id=claim.app_id,
            resource=resource,
            body=claim.body,
            document=event.document,
        )
        try:
            routes = self.find(event)
        except BaseException as error:  # a predicate failed: the attempt fails like one whose handler does
            return HandlerCall(run=partial(_fail, error), event=kind)
        names = ", ".join(route.name for route in routes)
        first, *others = routes
        if not (others or self._middleware):
            return HandlerCall(
                run=partial(_call, first, event, handling), blocking=first.blocking, event=kind, handler=names
            )
        run = partial(_call_all, routes, event, handling)
        for function in reversed(self._middleware):
            run = partial(_call_around, function, event, handling, run)
        return HandlerCall(run=run, event=kind, handler=names)


def _call(route: HandlerRoute, event: Event, handling: HandlerContext, in_thread: InThread) -> Awaitable[Any]:
    call = partial(route.handler, event, handling) if route.wants_handling else partial(route.handler, event)
    awaitable: Awaitable[Any] = in_thread(call) if route.blocking else call()
    return awaitable


async def _call_all(routes: tuple[HandlerRoute, ...], event: Event, handling: HandlerContext, in_thread: InThread) -> None:
    for route in routes:
        result = await _call(route, event, handling, in_thread)
        if inspect.isawaitable(result):  # a decorator hid the async function
            await result


async def _call_around(
    function: Callable[..., Awaitable[Any]],
    event: Event,
    handling: HandlerContext,
    run: Callable[[InThread], Awaitable[Any]],
    in_thread: InThread,
) -> None:
    await function(event, handling, partial(run, in_thread))


async def _fail(error: BaseException, _: InThread) -> None:
    raise error


def _check(kind: object, conv_type: object, when: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        raise InvalidRequest(f"on(): pass a class of events, as in @router.on(Text), not {kind!r}", field="kind")
    if conv_type is not None and not (isinstance(conv_type, str) and conv_type):
        raise InvalidRequest(f"on(): conv_type: pass a member of ConvType, not {conv_type!r}", field="conv_type")
    if when is not None and (not callable(when) or is_async(when)):
        raise InvalidRequest(f"on(): when: pass a plain function of the event, not {when!r}", field="when")


def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(handler)
    except (TypeError, ValueError):
        name = _name(handler)
        raise InvalidRequest(f"{name}: its parameters cannot be inspected; pass a function", field="handler") from None


def _name(handler: object) -> str:
    name: str = getattr(handler, "__qualname__", type(handler).__qualname__)
    return name


def _route(handler: Callable[..., Any], when: Callable[..., Any] | None) -> HandlerRoute:
    signature, name = _signature(handler), _name(handler)
    two = _binds(signature, 2)
    if not two and not _binds(signature, 1):
        raise InvalidRequest(f"{name}: a handler takes (event) or (event, handling), not {signature}", field="handler")
    wants_handling = two and (not _binds(signature, 1) or [*signature.parameters][1:2] == ["handling"])
    return HandlerRoute(handler=handler, blocking=not is_async(handler), wants_handling=wants_handling, name=name, when=when)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def is_async(handler: Callable[..., Any]) -> bool:
    """Return whether a function, or an object that can be called, is declared with ``async def``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
