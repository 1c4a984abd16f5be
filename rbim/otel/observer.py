"""OtelObserver: spans and metrics of calls, attempts and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from attrs import define

import rbim
from rbim._support.text import missing_extra
from rbim.client.observers import Observer

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("rbim.otel", missing.name, "otel"), name=missing.name) from None

from rbim.otel.attributes import CommonAttributes
from rbim.otel.callbacks import CallbackMetrics, CallbackSpans
from rbim.otel.levels import InboxReading, Levels, Polled
from rbim.otel.metrics import CallMetrics, Provider, RequestInFlight

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager
    from contextvars import Token
    from pathlib import Path

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider

    from rbim.bulk.run import Run
    from rbim.callbacks.inbox.sqlite import SqliteInbox
    from rbim.callbacks.observers import Observation
    from rbim.callbacks.receiver.receiver import Receiver
    from rbim.client.client import View
    from rbim.client.observers import AttemptEnded, AttemptStarted, CallEnded, CallStarted
    from rbim.errors import Attempt
    from rbim.jetstream.inbox import JetStreamInbox
    from rbim.otel.attributes import Attributes, Value
    from rbim.otel.levels import Observed

__all__ = ["OtelObserver"]

SCHEMA = "https://opentelemetry.io/schemas/1.34.0"
PORTS = {"http": 80, "https": 443}
CLIENT_ERROR = 400  # the lowest HTTP status that is an error
CANCELLED = "cancelled"

# Context keys that suppress other instrumentation of HTTP libraries: aiohttp's reads the first, httpx's reads both. Only
# opentelemetry-instrumentation has public names for them.
SUPPRESS_KEYS: tuple[str, ...] = tuple(
    getattr(context, name)
    for name in ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
    if hasattr(context, name)
)


@define(eq=False)
class _Attempt:
    span: Span
    request: RequestInFlight
    token: Token[Context]


@define(eq=False)
class _Call:
    """A call in progress. It is stored in the context of its task, so concurrent calls do not see each other."""

    number: int
    span: Span
    context: Context | None = None
    token: Token[Context] | None = None
    attempt: _Attempt | None = None


class OtelObserver(Observer):
    """An observer that makes OpenTelemetry spans and metrics: ``AsyncClient(observers=[OtelObserver()])``.

    One observer serves any number of clients, and receivers too (:meth:`on_callback`). The default of both providers is the
    global one of the process. During an attempt its span is the current span, between attempts that of the call, so log
    records can be correlated. Several observers of one provider add up.

    ``attributes``: constants on all spans and metrics, at most 8. The names of clients and receivers are attributes of spans
    and metrics; ``names_in_metrics=False`` leaves them out of the metrics of calls and callbacks, for hundreds of tenants.
    ``propagator``: what travels to other machines in the messages of an inbox (default: ``traceparent`` and
    ``tracestate`` of the W3C, no baggage). Nothing is ever sent to the platform.
    Raises InvalidRequest for wrong arguments; needs ``rbim[otel]``, and an SDK to export anything.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        attributes: Mapping[str, Value] | None = None,
        names_in_metrics: bool = True,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._attributes = CommonAttributes(attributes, names_in_metrics=names_in_metrics)
        self._tracer = trace.get_tracer("rbim", rbim.__version__, tracer_provider, SCHEMA)
        meter = metrics.get_meter("rbim", rbim.__version__, meter_provider, SCHEMA)
        provider = Provider(meter_provider)
        self._metrics = CallMetrics(meter, provider, self._attributes)
        self._callback_metrics = CallbackMetrics(meter, self._attributes)
        self._propagator = propagator = TraceContextTextMapPropagator() if propagator is None else propagator
        self._callback_spans = CallbackSpans(self._tracer, self._attributes, propagator)
        self._levels = Levels(meter, provider)
        self._key = context.create_key("rbim-call")
        self._requests: dict[tuple[str, str, str, str], Attributes] = {}

    # Events of the client.

    def call_started(self, event: CallStarted, /) -> None:
        """Start the span of a call, as a child of the caller's current span."""
        attributes = self._attributes.of_span("rbim.client", event.client)
        attributes |= {"rbim.operation": event.operation, "rbim.call": event.call}
        call = _Call(event.call, self._tracer.start_span(f"rbim {event.operation}", attributes=attributes))
        call.context = context.set_value(self._key, call, trace.set_span_in_context(call.span))
        call.token = context.attach(call.context)

    def attempt_started(self, event: AttemptStarted, /) -> None:
        """Start the span of an attempt, as a child of its call's span."""
        call = self._call(event.call)
        if call is None:
            return
        common = self._request_attributes(event)
        attributes = {**common, **self._attributes.of_span("rbim.client", event.client)}
        attributes |= {"rbim.operation": event.operation, "rbim.attempt": event.number}
        if event.number > 1:
            attributes["http.request.resend_count"] = event.number - 1
        name = f"{event.method} {common['url.template']}"
        span = self._tracer.start_span(name, call.context, trace.SpanKind.CLIENT, attributes)
        inside = trace.set_span_in_context(span)
        for key in SUPPRESS_KEYS:
            inside = context.set_value(key, True, inside)  # noqa: FBT003  # a context value, not a flag
        request = RequestInFlight(common)
        self._metrics.attempt_started(request, event)
        call.attempt = _Attempt(span, request, context.attach(inside))

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """End the span of an attempt; it is an error if the HTTP status is, or if no readable response came."""
        call = self._call(event.call)
        if call is None or call.attempt is None:
            return
        attempt, call.attempt = call.attempt, None
        made = event.attempt
        error = CANCELLED if event.cancelled else _error_of(made)
        self._metrics.attempt_ended(attempt.request, made, error)
        context.detach(attempt.token)
        if attempt.span.is_recording():
            outcome = None if made.outcome is None else made.outcome.value
            attributes = {"http.response.status_code": made.status, "rbim.code": made.code, "rbim.outcome": outcome}
            _set_attributes(attempt.span, attributes, error)
        attempt.span.end()

    def call_ended(self, event: CallEnded, /) -> None:
        """End the span of a call; it is an error if the call raised or was cancelled."""
        error = CANCELLED if event.cancelled else None if event.error is None else type(event.error).__name__
        self._metrics.call_ended(event, error)
        call = self._call(event.call)
        if call is None:
            return
        if call.token is not None:
            context.detach(call.token)
        if call.span.is_recording():
            attributes = {
                "rbim.attempts": len(event.attempts),
                "rbim.waited": event.waited,
                "rbim.code": event.attempts[-1].code if event.attempts else None,
                "rbim.outcome": None if event.outcome is None else event.outcome.value,
                "rbim.confirmed_by_repeat": event.confirmed_by_repeat or None,
            }
            _set_attributes(call.span, attributes, error)
        call.span.end()

    def _call(self, number: int) -> _Call | None:
        """Return the call of the current context; None in any other context, for example if a coroutine was dropped."""
        call = context.get_value(self._key)
        return call if isinstance(call, _Call) and call.number == number else None

    def _request_attributes(self, event: AttemptStarted) -> Attributes:
        """Return the attributes that all requests of a client share for one operation and one origin."""
        key = (event.method, event.origin, event.template, event.client)
        attributes = self._requests.get(key)
        if attributes is None:
            origin = urlsplit(event.origin)
            attributes = self._requests[key] = {
                **self._attributes.of_metric("rbim.client", event.client),
                "http.request.method": event.method,
                "server.address": origin.hostname or "",
                "server.port": origin.port or PORTS.get(origin.scheme, 0),
                "url.scheme": origin.scheme,
                "url.template": origin.path + event.template,
            }
        return attributes

    # Callbacks, clients, jobs and inboxes.

    def on_callback(self, observation: Observation, /) -> None:
        """Record an observation of a receiver or its worker: ``Receiver(observers=[otel.on_callback])``.

        A delivery is a span (INTERNAL), and so is each attempt to handle an event (CONSUMER), which is the current span of
        the handler: calls that it makes are its children.
        """
        self._callback_metrics.record(observation)
        self._callback_spans.record(observation)

    def inject(self, headers: dict[str, str], /) -> None:
        """Write the context of the current span into headers: ``JetStreamInbox(..., inject=otel.inject)``.

        Events then have the context of their delivery's span, and the span of their handler, on another machine, is linked
        to it.
        """
        cast("Any", self._propagator).inject(headers)  # its types do not allow a plain dictionary

    def observe_client(self, client: View, name: str | None = None) -> Observed:
        """Report the load of a client on every collection of metrics, until it is deleted or the result is closed.

        The result is also a context manager. ``name`` becomes the attribute ``rbim.client`` (default: the client's name).
        Clients of one name are one series: their loads are added, and of waits and pauses the longest counts.
        """
        name = client.name if name is None else name
        return self._levels.observe("client", client, self._level_attributes("rbim.client", name))

    def observe_job(self, run: Run, name: str = "job") -> Observed:
        """Report the progress of a job's run (rows by state, pace), in the same way as :meth:`observe_client`.

        ``name`` becomes the attribute ``rbim.job``.
        """
        return self._levels.observe("job", run, self._level_attributes("rbim.job", name))

    def observe_receiver(
        self, receiver: Receiver[Any], name: str | None = None, *, every: float = 15.0
    ) -> AbstractAsyncContextManager[None]:
        """Return a context manager that reports how many deliveries wait in a receiver's overflow file (``spool``).

        Enter the receiver first. The file is read every ``every`` seconds (default: 15). ``name`` becomes the attribute
        ``rbim.receiver`` (default: the receiver's name). Without an overflow file nothing is reported. Entering raises the
        error of a file that cannot be read.
        """
        return Polled(
            levels=self._levels,
            source="receiver",
            target=receiver,
            attributes=self._level_attributes("rbim.receiver", receiver.name if name is None else name),
            every=every,
            read=receiver.overflow,
            sleep=receiver.clock.sleep,
            label=receiver,
        )

    def observe_inbox(
        self, inbox: SqliteInbox | JetStreamInbox, name: str | None = None, *, every: float | None = 15.0
    ) -> AbstractAsyncContextManager[None]:
        """Return a context manager that reports an inbox: its events by state, and its lag.

        Enter the inbox first. It is read every ``every`` seconds (default: 15). ``name`` becomes the attribute
        ``rbim.inbox`` (default: the name of its file, or on the servers). Entering raises the error of an inbox in a file
        that cannot be counted.

        Of an inbox on servers it also reports the partitions that workers of this process own, and how many they took over
        from silent ones. To report only these, pass ``every=None``: nothing is asked, and the inbox need not be entered.
        """
        clock, remote = inbox.clock, hasattr(inbox, "ready")
        path: Path | None = getattr(inbox, "path", None)
        own = cast("JetStreamInbox", inbox).name if path is None else path.name
        return Polled(
            levels=self._levels,
            source="inbox",
            target=inbox,
            attributes=self._level_attributes("rbim.inbox", own if name is None else name),
            every=every,
            read=lambda: InboxReading.of(inbox),
            sleep=clock.sleep,
            label=own,
            remote=remote,
            ready=lambda: bool(getattr(inbox, "ready", True)),
        )

    def _level_attributes(self, key: str, name: str) -> Attributes:
        return {**self._attributes.constants, key: name} if name else {**self._attributes.constants}


def _error_of(made: Attempt) -> str | None:
    """Return ``error.type`` as in the conventions: the status from 400 on, or the error of reading the response.

    A refusal by the platform in a valid HTTP response is an error of the call, not of HTTP.
    """
    if made.status is not None and made.status >= CLIENT_ERROR:
        return str(made.status)
    return made.error if made.code is None else None


def _set_attributes(span: Span, attributes: Mapping[str, str | float | None], error: str | None) -> None:
    """Set the attributes that are not None and, if there was an error, ``error.type`` and the status."""
    known = {name: value for name, value in attributes.items() if value is not None}
    if error is not None:
        known["error.type"] = error
        span.set_status(trace.StatusCode.ERROR)
    span.set_attributes(known)
