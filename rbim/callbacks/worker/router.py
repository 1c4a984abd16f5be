"""The router: decorators that register handlers, and the look-up of an event's handler. Nothing here calls one."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from attrs import frozen

from rbim.callbacks.events.parsing import parse
from rbim.callbacks.events.types import Event
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from rbim.callbacks.events.enums import ConvType
    from rbim.callbacks.inbox.protocols import Claim
    from rbim.dialect import Dialect

__all__ = ["HandlerCall", "HandlerCalls", "HandlerContext", "HandlerRoute", "Resource", "Router", "is_async"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Resource = TypeVarWithDefault("Resource", default=Any)
else:
    Resource = TypeVar("Resource")

E = TypeVar("E", bound=Event)
R = TypeVar("R")


@frozen(kw_only=True)
class HandlerContext(Generic[Resource]):
    """The context of a handler call: facts about the event that are not in its body.

    ``key`` is the same for every attempt and every delivery of the event: use it to make a handler idempotent. ``attempt``
    counts from 1. ``received`` is the time of the delivery (with a time zone), ``replays`` the number of replays after the
    event had been handled, ``number`` its place in the order of acceptance, ``app_id`` the application that signed it.
    ``resource`` is the value of the receiver's ``around`` (None without one): ``HandlerContext[Pool]`` has a ``Pool``.
    """

    key: str
    attempt: int
    received: datetime
    replays: int
    number: int
    app_id: str
    resource: Resource


@frozen(kw_only=True)
class HandlerRoute:
    """A handler and the way to call it. ``blocking``: it is a plain function, which must run in a thread."""

    handler: Callable[..., Any]
    blocking: bool
    wants_handling: bool
    name: str = ""

    def call(self, event: Event, handling: HandlerContext) -> Any:
        """Call the handler. The caller must await the result if it is awaitable, as it always is if not ``blocking``."""
        return self.handler(event, handling) if self.wants_handling else self.handler(event)


@frozen(kw_only=True)
class HandlerCall:
    """A prepared call of a handler with one event: ``run`` returns an awaitable, or does all the work if ``blocking``.

    ``event`` is the name of the event's class, ``handler`` the function's qualified name.
    """

    run: Callable[[], Any]
    blocking: bool = False
    event: str = ""
    handler: str = ""


class HandlerCalls(Protocol):
    """The source of a worker's handler calls: a :class:`Router`, or an object that forwards events."""

    def check(self) -> None:
        """Raise InvalidRequest if some event could have no handler."""
        ...

    def handler_call(self, claim: Claim, resource: Any = None, /) -> HandlerCall:
        """Return the handler call for a claimed event. If this raises, the event becomes a dead letter at once."""
        ...


class _On(Generic[E, Resource]):
    """The decorator that :meth:`Router.on` returns."""

    def __init__(self, add: Callable[[HandlerRoute], None]) -> None:
        self._add = add

    @overload
    def __call__(self, handler: Callable[[E], R], /) -> Callable[[E], R]: ...

    @overload
    def __call__(
        self, handler: Callable[[E, HandlerContext[Resource]], R], /
    ) -> Callable[[E, HandlerContext[Resource]], R]: ...

    def __call__(self, handler: Callable[..., Any], /) -> Callable[..., Any]:
        self._add(_route(handler))
        return handler


class Router(Generic[Resource]):
    """The handlers of a receiver, each for a class of events.

    ::

        router = Router()

        @router.on(TeamKick)
        async def kicked(event: TeamKick) -> None: ...

        @router.on(Text, conv_type=ConvType.TEAM)
        def said_in_a_group(event: Text, handling: HandlerContext) -> None: ...

        @router.fallback
        async def anything_else(event: Event) -> None: ...

    A handler is ``async def``, or a plain ``def`` that runs in a thread and may block. It gets the event, and also the
    :class:`HandlerContext` if it has a second parameter without a default or one named ``handling``. It succeeds by
    returning and fails by raising; an event may be handled more than once. Decorators return the function unchanged.

    The most specific handler gets the event: that of the event's class, then those of its base classes (``Message``,
    ``Notification``, ``UnknownEvent``, ``Event``); within one class, the one for its ``conv_type`` before the one without.
    A ``Router[Pool]`` is for a receiver whose ``around`` gives a ``Pool``.
    ``dialect`` has the unit of ``msgTimestamp`` (default: milliseconds).
    """

    def __init__(self, dialect: Dialect | None = None) -> None:
        self._dialect = dialect
        self._routes: dict[tuple[type, str | None], HandlerRoute] = {}
        self._fallback: HandlerRoute | None = None

    def __bool__(self) -> bool:
        """Whether there is any handler."""
        return bool(self._routes) or self._fallback is not None

    def on(self, kind: type[E], /, *, conv_type: ConvType | str | None = None) -> _On[E, Resource]:
        """Register a handler for the events of a class; with ``conv_type``, only for one kind of conversation.

        Raises InvalidRequest if there is one already, or if ``kind``, ``conv_type`` or the handler's signature is invalid.
        """
        _check(kind, conv_type)

        def add(route: HandlerRoute) -> None:
            if (kind, conv_type) in self._routes:
                where = f" with conv_type={conv_type}" if conv_type else ""
                raise InvalidRequest(f"on(): {kind.__name__}{where} has a handler already; register one only", field="kind")
            self._routes[kind, conv_type] = route

        return _On(add)

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
        self._fallback = _route(handler)
        return handler

    def check(self) -> None:
        """Raise InvalidRequest if there is no fallback: an event could have no handler."""
        if self._fallback is None:
            raise InvalidRequest(
                "the router has no fallback for events without a handler; add one: "
                "@router.fallback async def anything_else(event: Event) -> None",
                field="router",
            )

    def find(self, event: Event) -> HandlerRoute:
        """Return the route of an event. Raises InvalidRequest if there is none; :meth:`check` rules that out."""
        for kind in type(event).__mro__:
            route = self._routes.get((kind, event.conv_type)) or self._routes.get((kind, None))
            if route is not None:
                return route
        self.check()
        assert self._fallback is not None  # noqa: S101  # checked
        return self._fallback

    def handler_call(self, claim: Claim, resource: Any = None, /) -> HandlerCall:
        """Return the handler call for a claimed event. Raises CallbackRejected if its body cannot be read."""
        event = parse(claim.body, dialect=self._dialect)
        route = self.find(event)
        handling = HandlerContext(
            key=claim.key,
            attempt=claim.attempt,
            received=claim.received,
            replays=claim.replays,
            number=claim.number,
            app_id=claim.app_id,
            resource=resource,
        )
        return HandlerCall(
            run=partial(route.call, event, handling),
            blocking=route.blocking,
            event=type(event).__name__,
            handler=route.name,
        )


def _check(kind: object, conv_type: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        raise InvalidRequest(f"on(): pass a class of events, as in @router.on(Text), not {kind!r}", field="kind")
    if conv_type is not None and not (isinstance(conv_type, str) and conv_type):
        raise InvalidRequest(f"on(): conv_type: pass a member of ConvType, not {conv_type!r}", field="conv_type")


def _route(handler: Callable[..., Any]) -> HandlerRoute:
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        raise InvalidRequest(f"{name}: its parameters cannot be inspected; pass a function", field="handler") from None
    two = _binds(signature, 2)
    if not two and not _binds(signature, 1):
        raise InvalidRequest(f"{name}: a handler takes (event) or (event, handling), not {signature}", field="handler")
    wants_handling = two and (not _binds(signature, 1) or _second_parameter(signature) == "handling")
    return HandlerRoute(handler=handler, blocking=not is_async(handler), wants_handling=wants_handling, name=name)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _second_parameter(signature: inspect.Signature) -> str | None:
    return next(iter(list(signature.parameters)[1:2]), None)


def is_async(handler: Callable[..., Any]) -> bool:
    """Return whether a function, or an object that can be called, is declared with ``async def``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
