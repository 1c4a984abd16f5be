"""Spans of callbacks: one for each delivery, and one for each attempt to handle an event."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from attrs import frozen
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

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, Tracer

    from rbim.callbacks.observers import Observation
    from rbim.otel.attributes import CommonAttributes

__all__ = ["CallbackSpans"]

CANCELLED = "cancelled"
SERVER_ERROR = 500  # the lowest HTTP status that is an error of the server
MOST_FRAMES = 50
MOST_CAUSES = 5


@frozen(eq=False)
class _Open:
    """A span that is the current one of its context, and what restores the context."""

    span: Span
    token: Token[Context]


class CallbackSpans:
    """Starts and ends spans by observations. Each span is the current one of its context until it ends.

    The span of a delivery is a child of the current span, such as that of the web framework. The span of a handler begins a
    new trace: events are handled later, and after a restart by another process. Both have the key of the event. If the
    context of the delivery travelled with the event, the handler's span is linked to it.
    """

    def __init__(self, tracer: Tracer, common: CommonAttributes, propagator: TextMapPropagator) -> None:
        self._propagator = propagator
        self._tracer = tracer
        self._common = common
        self._delivery = context.create_key("rbim-delivery")
        self._handling = context.create_key("rbim-handling")

    def record(self, observation: Observation) -> None:
        """Start, change or end a span; other observations do nothing."""
        match observation:
            case DeliveryStarted(receiver=receiver):
                attributes = self._common.of_span("rbim.receiver", receiver)
                self._enter(self._delivery, self._tracer.start_span("rbim delivery", attributes=attributes))
            case Accepted(new=new):
                self._set_result("accepted" if new else "known")
            case Refused(reason=reason):
                self._set_result("refused", str(reason))
            case Spooled(kept=kept):
                self._set_result("spooled" if kept else "unavailable")
            case DeliveryEnded():
                self._end_delivery(observation)
            case HandlingStarted():
                self._start_handling(observation)
            case HandlingEnded():
                self._end_handling(observation)
            case _:
                pass  # the metrics and the log have it

    def _set_result(self, result: str, reason: str | None = None) -> None:
        opened = context.get_value(self._delivery)
        if isinstance(opened, _Open):
            opened.span.set_attribute("rbim.result", result)
            if reason is not None:
                opened.span.set_attribute("rbim.reason", reason)

    def _end_delivery(self, ended: DeliveryEnded) -> None:
        opened = self._leave(self._delivery)
        if opened is None:
            return
        span = opened.span
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
        attributes = self._common.of_span("rbim.receiver", started.receiver) | {
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
        accepted = trace.get_current_span(self._propagator.extract(dict(started.headers), root)).get_span_context()
        links = [trace.Link(accepted)] if accepted.is_valid else []
        self._enter(self._handling, self._tracer.start_span(name, root, trace.SpanKind.CONSUMER, attributes, links))

    def _end_handling(self, ended: HandlingEnded) -> None:
        opened = self._leave(self._handling)
        if opened is None:
            return
        if ended.cancelled:
            _fail(opened.span, CANCELLED)
        elif ended.error is not None:
            _fail(opened.span, type(ended.error).__name__)
            if opened.span.is_recording():
                facts = {"exception.type": _name(ended.error), "exception.stacktrace": _stack(ended.error)}
                opened.span.add_event("exception", facts)
        opened.span.end()

    def _enter(self, key: str, span: Span) -> None:
        # the context holds the entry, and the entry the token, which is known only after the context is attached
        inside = trace.set_span_in_context(span)
        token = context.attach(inside)
        context.attach(context.set_value(key, _Open(span, token), inside))

    def _leave(self, key: str) -> _Open | None:
        """Restore the context from before the span; None if this is another context, or none was entered."""
        opened = context.get_value(key)
        if not isinstance(opened, _Open):
            return None
        context.detach(opened.token)
        return opened


def _fail(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(trace.StatusCode.ERROR)


def _stack(error: BaseException) -> str:
    """Return the frames of an exception and of its causes, without messages: they quote values, such as message texts."""
    parts = [
        "".join(traceback.format_tb(each.__traceback__, limit=-MOST_FRAMES)) + _name(each) for each in _causes_of(error)
    ]
    return "\n\n".join(reversed(parts))


def _causes_of(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
