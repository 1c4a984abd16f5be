"""Which handler an event goes to: decorators that register, and a look-up. Nothing here calls a handler by itself."""

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

__all__ = ["HandlerCall", "HandlerCalls", "HandlerContext", "HandlerRoute", "Router"]

E = TypeVar("E", bound=Event)
R = TypeVar("R")


@frozen(kw_only=True)
class HandlerContext:
    """What a handler may want to know besides the event.

    ``key`` is the same for every attempt and every copy of the event: what a handler does twice under one key it does once
    too often. ``attempt`` counts from 1, ``received`` is when the delivery came (with a time zone), ``replays`` how often
    the event was asked for again after it had been handled, ``number`` its place in the order of acceptance, ``app_id`` the
    application that signed it.
    """

    key: str
    attempt: int
    received: datetime
    replays: int
    number: int
    app_id: str


@frozen(kw_only=True)
class HandlerRoute:
    """A handler, and how it is called: ``blocking`` where it is a plain function, which needs a thread of its own."""

    handler: Callable[..., Any]
    blocking: bool
    wants_handling: bool

    def call(self, event: Event, handling: HandlerContext) -> Any:
        """Call the handler. What it returns is to be awaited, unless it is ``blocking`` and returned nothing of the kind."""
        return self.handler(event, handling) if self.wants_handling else self.handler(event)


@frozen(kw_only=True)
class HandlerCall:
    """What a worker does with one event: ``run`` gives what is to be awaited, or does it all where it is ``blocking``."""

    run: Callable[[], Any]
    blocking: bool = False


class HandlerCalls(Protocol):
    """What tells a worker what to do with events: a :class:`Router`, or something that forwards them."""

    def check(self) -> None:
        """Raise InvalidRequest where there may be events that nothing can be done with."""
        ...

    def call(self, claim: Claim, /) -> HandlerCall:
        """Return what is to be done. What it raises counts as the event's last attempt."""
        ...


class _On(Generic[E]):
    """The decorator that :meth:`Router.on` returns."""

    def __init__(self, add: Callable[[HandlerRoute], None]) -> None:
        self._add = add

    @overload
    def __call__(self, handler: Callable[[E], R], /) -> Callable[[E], R]: ...

    @overload
    def __call__(self, handler: Callable[[E, HandlerContext], R], /) -> Callable[[E, HandlerContext], R]: ...

    def __call__(self, handler: Callable[..., Any], /) -> Callable[..., Any]:
        self._add(_route(handler))
        return handler


class Router:
    """The handlers of a receiver, each for a class of events.

    ::

        router = Router()

        @router.on(TeamKick)
        async def kicked(event: TeamKick) -> None: ...

        @router.on(Text, conv_type=ConvType.TEAM)
        def said_in_a_group(event: Text, handling: Handling) -> None: ...

        @router.fallback
        async def anything_else(event: Event) -> None: ...

    A handler is ``async def``, or a plain ``def`` that runs in a thread and may block. It takes the event, and the
    :class:`HandlerContext` where it has a second parameter without a default or one named ``handling``. It has succeeded
    when it returns and failed when it raises; an event may be handled more than once. Decorators return the function
    unchanged.

    The most specific handler has the event: that of its own class, then those of the classes above (``Message``,
    ``Notification``, ``UnknownEvent``, ``Event``); for one class, that of the ``conv_type`` before the one without.
    """

    def __init__(self) -> None:
        self._routes: dict[tuple[type, str | None], HandlerRoute] = {}
        self._fallback: HandlerRoute | None = None

    def __bool__(self) -> bool:
        """Whether there is any handler."""
        return bool(self._routes) or self._fallback is not None

    def on(self, kind: type[E], /, *, conv_type: ConvType | str | None = None) -> _On[E]:
        """Register a handler for the events of a class, or for those of them in one kind of conversation.

        Raises InvalidRequest where there is one already, or where it can never be called.
        """
        _check(kind, conv_type)

        def add(route: HandlerRoute) -> None:
            if (kind, conv_type) in self._routes:
                where = f" with conv_type={conv_type}" if conv_type else ""
                raise InvalidRequest(f"on(): {kind.__name__}{where} has a handler already", field="kind")
            self._routes[kind, conv_type] = route

        return _On(add)

    @overload
    def fallback(self, handler: Callable[[Event], R], /) -> Callable[[Event], R]: ...

    @overload
    def fallback(self, handler: Callable[[Event, HandlerContext], R], /) -> Callable[[Event, HandlerContext], R]: ...

    def fallback(self, handler: Callable[..., Any], /) -> Callable[..., Any]:
        """Register the handler of the events that no other is for. Raises InvalidRequest where there is one already."""
        if self._fallback is not None:
            raise InvalidRequest("fallback: there is one already", field="handler")
        self._fallback = _route(handler)
        return handler

    def check(self) -> None:
        """Raise InvalidRequest where an event could have no handler: there is no fallback."""
        if self._fallback is None:
            raise InvalidRequest(
                "the router has no fallback for the events that no handler is for; decorate one with @router.fallback: "
                "async def anything_else(event: Event) -> None",
                field="router",
            )

    def find(self, event: Event) -> HandlerRoute:
        """Return the route of an event. Raises InvalidRequest where there is none, which :meth:`check` rules out."""
        for kind in type(event).__mro__:
            route = self._routes.get((kind, event.conv_type)) or self._routes.get((kind, None))
            if route is not None:
                return route
        self.check()
        assert self._fallback is not None  # noqa: S101  # checked
        return self._fallback

    def call(self, claim: Claim, /) -> HandlerCall:
        """Return the call of a claimed event's handler. Raises CallbackRejected where the body cannot be read."""
        event = parse(claim.body)
        route = self.find(event)
        handling = HandlerContext(
            key=claim.key,
            attempt=claim.attempt,
            received=claim.received,
            replays=claim.replays,
            number=claim.number,
            app_id=claim.app_id,
        )
        return HandlerCall(run=partial(route.call, event, handling), blocking=route.blocking)


def _check(kind: object, conv_type: object) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        raise InvalidRequest(f"on(): a class of events is needed, as in @router.on(Text), not {kind!r}", field="kind")
    if conv_type is not None and not (isinstance(conv_type, str) and conv_type):
        raise InvalidRequest(f"on(): conv_type is one of ConvType, not {conv_type!r}", field="conv_type")


def _route(handler: Callable[..., Any]) -> HandlerRoute:
    name = getattr(handler, "__qualname__", repr(handler))
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        raise InvalidRequest(f"{name}: a function is needed whose parameters can be told", field="handler") from None
    two = _binds(signature, 2)
    if not two and not _binds(signature, 1):
        raise InvalidRequest(f"{name}: a handler takes (event) or (event, handling), not {signature}", field="handler")
    wants_handling = two and (not _binds(signature, 1) or _second(signature) == "handling")
    return HandlerRoute(handler=handler, blocking=not _is_async(handler), wants_handling=wants_handling)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _second(signature: inspect.Signature) -> str | None:
    return next(iter(list(signature.parameters)[1:2]), None)


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
