"""Spans and metrics of operations that workers on other machines send: one trace from the caller to the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from attrs import frozen
from opentelemetry import context, trace
from opentelemetry.context import Context

from rbim.jetstream.observers import (
    ClaimEnded,
    ClaimGivenUp,
    ClaimStarted,
    RequestEnded,
    RequestStarted,
    RequestWithdrawn,
)

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.metrics import Meter
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, Tracer

    from rbim.jetstream.observers import Observation
    from rbim.otel.attributes import Attributes, CommonAttributes

__all__ = ["OperationMetrics", "OperationSpans"]

CANCELLED = "cancelled"


@frozen(eq=False)
class _Open:
    """A span that is the current one of its context, and what restores the context."""

    key: str
    span: Span
    token: Token[Context]


class OperationSpans:
    """Starts and ends spans by observations, each of them the current one of its context until it ends.

    The span of a claim is a child of the span that handed the operation over, in another process, and linked to it, as the
    conventions for messaging ask.
    """

    def __init__(self, tracer: Tracer, common: CommonAttributes, propagator: TextMapPropagator) -> None:
        self._tracer = tracer
        self._common = common
        self._propagator = propagator
        self._key = context.create_key("rbim-operation")

    def record(self, observation: Observation) -> None:
        """Start or end a span; other observations do nothing."""
        match observation:
            case RequestStarted(headers=headers):
                self._enter(observation, "send", trace.SpanKind.PRODUCER)
                cast("Any", self._propagator).inject(headers)  # its types do not allow a plain dictionary
            case ClaimStarted(headers=headers):
                sent = self._propagator.extract(dict(headers), Context())  # the current span is not the sender's
                self._enter(observation, "process", trace.SpanKind.CONSUMER, sent)
            case RequestEnded() | ClaimEnded():
                self._leave(observation)
            case _:
                pass  # the metrics have it

    def _enter(
        self, started: RequestStarted | ClaimStarted, what: str, kind: trace.SpanKind, parent: Context | None = None
    ) -> None:
        attributes: Attributes = {
            **self._common.constants,
            "messaging.system": "nats",
            "messaging.operation.name": what,
            "messaging.operation.type": what,
            "messaging.destination.name": started.queue,
            "messaging.message.id": started.key,
            "rbim.operation": started.operation,
        }
        sender = trace.get_current_span(parent).get_span_context() if parent is not None else trace.INVALID_SPAN_CONTEXT
        links = [trace.Link(sender)] if sender.is_valid else []
        span = self._tracer.start_span(f"{what} {started.queue}", parent, kind, attributes, links)
        inside = trace.set_span_in_context(span, parent)  # with what else came with the message, such as baggage
        token = context.attach(inside)
        context.attach(context.set_value(self._key, _Open(started.key, span, token), inside))

    def _leave(self, ended: RequestEnded | ClaimEnded) -> None:
        opened = context.get_value(self._key)
        if not isinstance(opened, _Open) or opened.key != ended.key:
            return
        context.detach(opened.token)
        error = CANCELLED if ended.cancelled else None if ended.error is None else type(ended.error).__name__
        if error is not None:
            opened.span.set_attribute("error.type", error)
            opened.span.set_status(trace.StatusCode.ERROR)
        opened.span.end()


class OperationMetrics:
    """Counts claims, and what was withdrawn or given up."""

    def __init__(self, meter: Meter, common: CommonAttributes) -> None:
        self._common = common
        self._claims = meter.create_counter("rbim.queue.claims", "{operation}", "Operations that workers claimed.")
        self._withdrawn = meter.create_counter(
            "rbim.queue.withdrawn", "{operation}", "Operations that no worker took, and that were withdrawn."
        )
        self._given_up = meter.create_counter(
            "rbim.queue.given_up", "{operation}", "Claimed operations whose worker was not heard of again."
        )

    def record(self, observation: Observation) -> None:
        """Record one observation."""
        attributes = {
            **self._common.constants,
            "rbim.queue": observation.queue,
            "rbim.operation": observation.operation,
        }
        match observation:
            case ClaimStarted():
                self._claims.add(1, attributes)
            case RequestWithdrawn():
                self._withdrawn.add(1, attributes)
            case ClaimGivenUp():
                self._given_up.add(1, attributes)
            case _:
                pass  # starts and ends: they have spans
