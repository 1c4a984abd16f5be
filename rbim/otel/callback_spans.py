"""Spans of callbacks: one for each delivery, and one for each attempt to handle an event."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, cast

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
from rbim.otel.metrics import CANCELLED, error_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from rbim.observers import Observation
    from rbim.otel.gauges import Attributes

__all__ = ["CallbackSpans"]

SERVER_ERROR = 500  # the lowest HTTP status that is an error of the server
MOST_FRAMES = 50
MOST_CAUSES = 5


class CallbackSpans:
    """Starts and ends spans by observations. Each span is the current one of its context until it ends.

    The span of a delivery is a child of the current span, such as that of the web framework. The span of a handler begins a
    new trace, because events are handled later.
    """

    def __init__(self, tracer: Tracer, about: Callable[[str, str], Attributes]) -> None:
        self._tracer = tracer
        self._about = about
        self._delivery = context.create_key("rbim-delivery")
        self._handling = context.create_key("rbim-handling")
        self.recorders: Mapping[type[Observation], Callable[[Any], None]] = {
            DeliveryStarted: self._start_delivery,
            Accepted: lambda seen: self._set_result("accepted" if seen.new else "known"),
            Refused: lambda seen: self._set_result("refused", str(seen.reason)),
            Spooled: lambda seen: self._set_result("spooled" if seen.kept else "unavailable"),
            DeliveryEnded: self._end_delivery,
            HandlingStarted: self._start_handling,
            HandlingEnded: self._end_handling,
        }

    def _start_delivery(self, started: DeliveryStarted) -> None:
        attributes = self._about("rbim.receiver", started.receiver)
        self._enter(self._delivery, self._tracer.start_span("rbim delivery", attributes=attributes))

    def _set_result(self, result: str, reason: str | None = None) -> None:
        opened: Any = context.get_value(self._delivery)
        if opened is not None:
            opened[0].set_attributes({"rbim.result": result} | ({"rbim.reason": reason} if reason else {}))

    def _end_delivery(self, ended: DeliveryEnded) -> None:
        span = self._leave(self._delivery)
        if span is None:
            return
        if ended.key is not None:
            span.set_attribute("rbim.key", ended.key)
        if ended.status is None:
            _fail(span, CANCELLED)
        else:
            span.set_attribute("http.response.status_code", ended.status)
            if ended.status >= SERVER_ERROR:
                _fail(span, str(ended.status))
        span.end()

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
        span = self._leave(self._handling)
        if span is None:
            return
        error = error_of(ended)
        if error is not None:
            _fail(span, error)
        if ended.error is not None and span.is_recording():
            facts = {"exception.type": _name(ended.error), "exception.stacktrace": _stack(ended.error)}
            span.add_event("exception", facts)
        span.end()

    def _enter(self, key: str, span: Span) -> None:
        inside = trace.set_span_in_context(span)
        token = context.attach(inside)
        context.attach(context.set_value(key, (span, token), inside))  # to leave, the token is needed

    def _leave(self, key: str) -> Span | None:
        """Restore the context from before the span; return None if this is another context, or none was entered."""
        opened: Any = context.get_value(key)
        if not isinstance(opened, tuple):
            return None
        span, token = cast("tuple[Span, Token[Context]]", opened)
        context.detach(token)
        return span


def _fail(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(trace.StatusCode.ERROR)


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
