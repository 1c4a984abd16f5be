"""Spans of callbacks: one for each delivery, and one for each attempt to handle an event."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from attrs import frozen
from opentelemetry import context, trace

from rbim.callbacks.observers import (
    Accepted,
    DeadLettered,
    DeliveryEnded,
    DeliveryStarted,
    Handled,
    HandlingEnded,
    HandlingFailed,
    HandlingStarted,
    HungHandler,
    LoopBlocked,
    NotEntered,
    OldToken,
    PartEnded,
    PartRestarted,
    Quarantined,
    Refused,
    Skewed,
    Spooled,
    SuspectedOfCrash,
)
from rbim.otel.metrics import CALL_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, Tracer

    from rbim.callbacks.observers import Observation
    from rbim.otel.attributes import Attributes, CommonAttributes


__all__ = ["PLATFORM_TIMEOUT", "CallbackMetrics", "CallbackSpans"]

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


PLATFORM_TIMEOUT = 5.0
"""Seconds after which the platform gives up a delivery (Delivery rules, 4)."""

HEADROOM_BUCKETS = (0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 4.75, 4.9, 4.95, 5.0)


class CallbackMetrics:
    """Records observations; called in the receiver's and in the worker's thread."""

    def __init__(self, meter: Meter, common: CommonAttributes) -> None:
        self._common = common
        self._deliveries = meter.create_counter("rbim.receiver.deliveries", "{delivery}", "Deliveries by result.")
        self._headroom = meter.create_histogram(
            "rbim.receiver.headroom",
            "s",
            "Time left of the platform's 5 seconds when a delivery was accepted.",
            explicit_bucket_boundaries_advisory=HEADROOM_BUCKETS,
        )
        self._spooled = meter.create_counter(
            "rbim.receiver.spooled", "{delivery}", "Deliveries saved in the overflow file only."
        )
        self._quarantined = meter.create_counter(
            "rbim.receiver.quarantined", "{delivery}", "Deliveries stored but not handled."
        )
        self._old = meter.create_counter("rbim.receiver.old_tokens", "{delivery}", "Deliveries signed with an older token.")
        self._skewed = meter.create_counter(
            "rbim.receiver.skewed", "{delivery}", "Authentic deliveries whose time is outside the limits."
        )
        self._handled = meter.create_histogram(
            "rbim.worker.handling.duration",
            "s",
            "Duration of successful attempts to handle an event.",
            explicit_bucket_boundaries_advisory=CALL_BUCKETS,
        )
        failed = meter.create_counter("rbim.worker.failures", "{attempt}", "Failed attempts to handle an event.")
        blocked = meter.create_counter(
            "rbim.worker.blocked", "{step}", "Steps of async handlers that blocked the event loop for too long."
        )
        hung = meter.create_counter("rbim.worker.hung", "{handler}", "Handlers that ran too long and cannot be stopped.")
        self._of_handlers = {HandlingFailed: failed, DeadLettered: failed, LoopBlocked: blocked, HungHandler: hung}
        self._dead = meter.create_counter("rbim.worker.dead_letters", "{event}", "Events that became dead letters.")
        self._crashes = meter.create_counter(
            "rbim.worker.crashes", "{event}", "Events that are handled again because a process died while it handled them."
        )
        self._ends = meter.create_counter(
            "rbim.receiver.ends", "{end}", "Times that the worker or the receiver ended by itself."
        )
        self._restarts = meter.create_counter(
            "rbim.receiver.restarts", "{restart}", "Times that the worker or the receiver was started again."
        )
        self._not_entered = meter.create_counter(
            "rbim.receiver.not_entered", "{receiver}", "Receivers that answer 503 because they were never entered."
        )

    def record(self, observation: Observation) -> None:
        """Record one observation."""
        about = self._common.of_metric("rbim.receiver", observation.receiver)
        match observation:
            case Accepted(new=new, elapsed=elapsed):
                self._deliveries.add(1, {**about, "rbim.result": "accepted" if new else "known"})
                self._headroom.record(max(0.0, PLATFORM_TIMEOUT - elapsed), about)  # 0: the platform has given up
            case Refused(reason=reason):
                self._deliveries.add(1, {**about, "rbim.result": "refused", "error.type": str(reason)})
            case Spooled(kept=True):
                self._spooled.add(1, about)
            case Spooled():
                self._deliveries.add(1, {**about, "rbim.result": "unavailable"})
            case Skewed(accepted=accepted):
                self._skewed.add(1, {**about, "rbim.result": "accepted" if accepted else "refused"})
            case Quarantined(other_content=other):
                self._quarantined.add(1, {**about, "rbim.reason": "other content" if other else "unreadable"})
            case OldToken():
                self._old.add(1, about)
            case _:
                self._record_of_parts(observation, about)

    def _record_of_parts(self, observation: Observation, about: Attributes) -> None:
        match observation:
            case Handled(elapsed=elapsed):
                self._handled.record(elapsed, about)
            case SuspectedOfCrash():
                self._crashes.add(1, about)
            case PartEnded(part=part) | PartRestarted(part=part):
                counter = self._ends if isinstance(observation, PartEnded) else self._restarts
                counter.add(1, {**about, "rbim.part": part})
            case NotEntered():
                self._not_entered.add(1, about)
            case _:
                self._record_of_handler(observation, about)

    def _record_of_handler(self, observation: Observation, about: Attributes) -> None:
        match observation:
            case DeadLettered(handler=handler, crashes=crashes):
                attributes = _by_handler(about, handler)
                self._dead.add(1, {**attributes, "rbim.reason": "crash" if crashes else "failure"})
                if not crashes:
                    self._of_handlers[DeadLettered].add(1, attributes)
            case HandlingFailed(handler=handler) | LoopBlocked(handler=handler) | HungHandler(handler=handler):
                self._of_handlers[type(observation)].add(1, _by_handler(about, handler))
            case _:
                pass  # starts and ends: they have spans only


def _by_handler(about: Attributes, handler: str) -> Attributes:
    return {**about, "rbim.handler": handler} if handler else about
