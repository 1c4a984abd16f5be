"""Spans: of a call and each of its attempts, of a delivery, and of each attempt to handle an event."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from attrs import define
from opentelemetry import context, trace

from rbim.callbacks.observers import (
    Accepted,
    DeliveryEnded,
    DeliveryStarted,
    HandlingEnded,
    HandlingStarted,
    Refused,
    Spooled,
)
from rbim.client.observers import AttemptEnded, AttemptStarted, CallEnded, CallStarted
from rbim.otel.metrics import CANCELLED, error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from rbim.observers import Observation
    from rbim.otel.gauges import Attributes
    from rbim.otel.metrics import Metrics

__all__ = ["Spans"]

CLIENT_ERROR, SERVER_ERROR = 400, 500  # the lowest HTTP statuses that are errors of a request, and of a server
MOST_FRAMES = 50
MOST_CAUSES = 5

# Context keys that suppress other instrumentation of HTTP libraries: aiohttp's reads the first, httpx's reads both. Only
# opentelemetry-instrumentation has public names for them.
SUPPRESS_KEYS: tuple[str, ...] = tuple(
    getattr(context, name)
    for name in ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
    if hasattr(context, name)
)


@define(eq=False)
class _Entered:
    """A span that is the current one of its context, where this object is stored: concurrent ones do not see each other.

    ``number`` is that of a call, ``attempt`` its attempt in flight, with the attributes of the request.
    """

    span: Span
    number: int
    context: Context | None = None
    token: Token[Context] | None = None
    attempt: tuple[Span, Attributes, Token[Context]] | None = None


class Spans:
    """Starts and ends spans by observations.

    The spans of a call, a delivery and a handler are each the current one of their context until they end. That of a
    delivery is a child of the current span, such as that of the web framework; that of a handler begins a new trace, because
    events are handled later. ``about`` returns the attributes for the name of a client or receiver; ``metrics`` get the
    requests.
    """

    def __init__(self, tracer: Tracer, about: Callable[[str, str], Attributes], metrics: Metrics) -> None:
        self._tracer = tracer
        self._about = about
        self._metrics = metrics
        self._call = context.create_key("rbim-call")
        self._delivery = context.create_key("rbim-delivery")
        self._handling = context.create_key("rbim-handling")
        self.recorders: Mapping[type[Observation], Callable[[Any], None]] = {
            CallStarted: self._start_call,
            AttemptStarted: self._start_attempt,
            AttemptEnded: self._end_attempt,
            CallEnded: self._end_call,
            DeliveryStarted: self._start_delivery,
            Accepted: lambda seen: self._set_result("accepted" if seen.new else "known"),
            Refused: lambda seen: self._set_result("refused", str(seen.reason)),
            Spooled: lambda seen: self._set_result("spooled" if seen.kept else "unavailable"),
            DeliveryEnded: self._end_delivery,
            HandlingStarted: self._start_handling,
            HandlingEnded: self._end_handling,
        }

    def _start_call(self, started: CallStarted) -> None:
        attributes = self._about("rbim.client", started.client)
        attributes |= {"rbim.operation": started.operation, "rbim.call": started.call}
        self._enter(
            self._call, self._tracer.start_span(f"rbim {started.operation}", attributes=attributes), number=started.call
        )

    def _start_attempt(self, started: AttemptStarted) -> None:
        call = _entered(self._call, started.call)
        if call is None:
            return
        request = self._metrics.request_of(started)
        attributes = {**request, **self._about("rbim.client", started.client)}
        attributes |= {"rbim.operation": started.operation, "rbim.attempt": started.number}
        if started.number > 1:
            attributes["http.request.resend_count"] = started.number - 1
        name = f"{started.method} {request['url.template']}"
        span = self._tracer.start_span(name, call.context, trace.SpanKind.CLIENT, attributes)
        inside = trace.set_span_in_context(span)
        for key in SUPPRESS_KEYS:
            inside = context.set_value(key, True, inside)  # noqa: FBT003  # a context value, not a flag
        call.attempt = (span, request, context.attach(inside))

    def _end_attempt(self, ended: AttemptEnded) -> None:
        """End the span of an attempt: an error as in the conventions, that is from status 400 on or without an answer.

        A refusal by the platform in a valid HTTP response is an error of the call, not of HTTP.
        """
        call = _entered(self._call, ended.call)
        if call is None or call.attempt is None:
            return
        (span, request, token), call.attempt = call.attempt, None
        made = ended.attempt
        if ended.cancelled:
            error: str | None = CANCELLED
        elif made.status is not None and made.status >= CLIENT_ERROR:
            error = str(made.status)
        else:
            error = made.error if made.code is None else None
        self._metrics.attempt_ended(request, made, error)
        context.detach(token)
        outcome = None if made.outcome is None else made.outcome.value
        _end(span, {"http.response.status_code": made.status, "rbim.code": made.code, "rbim.outcome": outcome}, error)

    def _end_call(self, ended: CallEnded) -> None:
        """End the span of a call; it is an error if the call raised or was cancelled."""
        attributes = {
            "rbim.attempts": len(ended.attempts),
            "rbim.waited": ended.waited,
            "rbim.code": ended.attempts[-1].code if ended.attempts else None,
            "rbim.outcome": None if ended.outcome is None else ended.outcome.value,
            "rbim.confirmed_by_repeat": ended.confirmed_by_repeat or None,
        }
        _end(_leave(self._call, ended.call), attributes, error_of(ended))

    def _start_delivery(self, started: DeliveryStarted) -> None:
        attributes = self._about("rbim.receiver", started.receiver)
        self._enter(self._delivery, self._tracer.start_span("rbim delivery", attributes=attributes))

    def _set_result(self, result: str, reason: str | None = None) -> None:
        delivery = _entered(self._delivery)
        if delivery is not None:
            delivery.span.set_attributes({"rbim.result": result} | ({"rbim.reason": reason} if reason else {}))

    def _end_delivery(self, ended: DeliveryEnded) -> None:
        status = ended.status
        error = CANCELLED if status is None else str(status) if status >= SERVER_ERROR else None
        _end(_leave(self._delivery), {"rbim.key": ended.key, "http.response.status_code": status}, error)

    def _start_handling(self, started: HandlingStarted) -> None:
        attributes = self._about("rbim.receiver", started.receiver) | {
            "messaging.system": "rbim",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "rbim.key": started.key,
            "rbim.attempt": started.attempt,
            "rbim.event": started.event,
            "rbim.handler": started.handler,
        }
        root = trace.set_span_in_context(trace.INVALID_SPAN)  # the current span is that of the application's start, or none
        name = f"process {started.event}"
        self._enter(self._handling, self._tracer.start_span(name, root, trace.SpanKind.CONSUMER, attributes))

    def _end_handling(self, ended: HandlingEnded) -> None:
        span = _leave(self._handling)
        if span is not None and ended.error is not None and span.is_recording():
            facts = {"exception.type": _name(ended.error), "exception.stacktrace": _stack(ended.error)}
            span.add_event("exception", facts)
        _end(span, {}, error_of(ended))

    def _enter(self, key: str, span: Span, number: int = 0) -> None:
        entered = _Entered(span, number)
        entered.context = context.set_value(key, entered, trace.set_span_in_context(span))
        entered.token = context.attach(entered.context)


def _entered(key: str, number: int = 0) -> _Entered | None:
    """Return what was entered in the current context; None in any other one, for example if a coroutine was dropped."""
    found = context.get_value(key)
    return found if isinstance(found, _Entered) and found.number == number else None


def _leave(key: str, number: int = 0) -> Span | None:
    """Restore the context from before the span; return None if this is another context, or none was entered."""
    entered = _entered(key, number)
    if entered is None:
        return None
    if entered.token is not None:
        context.detach(entered.token)
    return entered.span


def _end(span: Span | None, attributes: Mapping[str, str | float | None], error: str | None) -> None:
    """Set the attributes that are not None and, if there was an error, ``error.type`` and the status; end the span."""
    if span is None:
        return
    known = {name: value for name, value in attributes.items() if value is not None}
    if error is not None:
        known["error.type"] = error
        span.set_status(trace.StatusCode.ERROR)
    span.set_attributes(known)
    span.end()


def _stack(error: BaseException) -> str:
    """Return the frames of an exception and of its causes, without messages: they quote values, such as message texts."""
    parts: list[str] = []
    each: BaseException | None = error
    while each is not None and len(parts) < MOST_CAUSES:
        parts.append("".join(traceback.format_tb(each.__traceback__, limit=-MOST_FRAMES)) + _name(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return "\n\n".join(reversed(parts))


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
