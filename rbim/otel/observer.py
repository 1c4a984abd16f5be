"""OtelObserver: spans and metrics of calls, attempts and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from attrs import define

import rbim
from rbim._support.text import missing_extra, quoted
from rbim.client.observers import AttemptEnded, AttemptStarted, CallEnded, CallStarted
from rbim.errors import InvalidRequest
from rbim.validators import require

try:
    from opentelemetry import context, metrics, trace
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("rbim.otel", missing.name, "otel"), name=missing.name) from None

from collections.abc import Mapping

from rbim.otel.callback_spans import CallbackSpans
from rbim.otel.gauges import Gauges, Reading
from rbim.otel.metrics import CANCELLED, Metrics, error_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from rbim.bulk.run import Run
    from rbim.callbacks.inbox.protocols import Counts
    from rbim.callbacks.inbox.stored import Archive
    from rbim.callbacks.receiver.receiver import Receiver
    from rbim.client.client import View
    from rbim.errors import Attempt
    from rbim.observers import Observation
    from rbim.otel.gauges import Attributes, Observed

__all__ = ["OtelObserver"]

SCHEMA = "https://opentelemetry.io/schemas/1.34.0"
PORTS = {"http": 80, "https": 443}
CLIENT_ERROR = 400  # the lowest HTTP status that is an error

# Context keys that suppress other instrumentation of HTTP libraries: aiohttp's reads the first, httpx's reads both. Only
# opentelemetry-instrumentation has public names for them.
SUPPRESS_KEYS: tuple[str, ...] = tuple(
    getattr(context, name)
    for name in ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
    if hasattr(context, name)
)


@define(eq=False)
class _CallSpan:
    """A call in progress. It is stored in the context of its task, so concurrent calls do not see each other."""

    number: int
    span: Span
    context: Context | None = None
    token: Token[Context] | None = None
    attempt: tuple[Span, Attributes, Token[Context]] | None = None  # in flight, with the attributes of its request


class OtelObserver:
    """An observer that makes OpenTelemetry spans and metrics, of any number of clients and receivers.

    The default of both providers is the global one of the process. A call is a span (INTERNAL), and so is each of its
    attempts (CLIENT), a delivery (INTERNAL), and each attempt to handle an event (CONSUMER), which is the current span of
    the handler: calls that it makes are its children. During an attempt its span is the current span, between attempts that
    of the call, so log records can be correlated.

    ``attributes``: constants on all spans and metrics. The names of clients and receivers are attributes of spans and
    metrics; ``names_in_metrics=False`` leaves them out of the metrics of calls and callbacks, for hundreds of tenants.
    Nothing is ever sent to the platform.
    Raises InvalidRequest for wrong arguments; needs ``rbim[otel]``, and an SDK to export anything.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        attributes: Mapping[str, str | bool | int | float] | None = None,
        names_in_metrics: bool = True,
    ) -> None:
        require("names_in_metrics", names_in_metrics, bool, "True or False")
        self._constants = _checked({} if attributes is None else attributes)
        self._tracer = trace.get_tracer("rbim", rbim.__version__, tracer_provider, SCHEMA)
        meter = metrics.get_meter("rbim", rbim.__version__, meter_provider, SCHEMA)
        self._names_in_metrics = names_in_metrics
        self._metrics = Metrics(meter, self._about_in_metrics)
        self._gauges = Gauges(meter, meter_provider)
        self._key = context.create_key("rbim-call")
        self._requests: dict[tuple[str, str, str, str], Attributes] = {}
        calls: dict[type[Observation], Callable[[Any], None]] = {
            CallStarted: self._call_started,
            AttemptStarted: self._attempt_started,
            AttemptEnded: self._attempt_ended,
            CallEnded: self._call_ended,
        }
        self._recorders: dict[type[Observation], list[Callable[[Any], None]]] = {}
        # metrics first: the span that ends is still the current one
        for recorders in (self._metrics.recorders, calls, CallbackSpans(self._tracer, self._about).recorders):
            for kind, record in recorders.items():
                self._recorders.setdefault(kind, []).append(record)

    def observes(self, kind: type[Observation], /) -> bool:
        """Return whether observations of this class make spans or metrics."""
        return kind in self._recorders

    def __call__(self, observation: Observation, /) -> None:
        """Record an observation of a client, a receiver or a worker."""
        for record in self._recorders.get(type(observation), ()):
            record(observation)

    def _about(self, key: str, name: str) -> Attributes:
        """Return the attributes for the name of a client, job, receiver or inbox, as a new dictionary."""
        return {**self._constants, key: name} if name else {**self._constants}

    def _about_in_metrics(self, key: str, name: str) -> Attributes:
        return self._about(key, name if self._names_in_metrics else "")

    def _call_started(self, started: CallStarted) -> None:
        attributes = self._about("rbim.client", started.client)
        attributes |= {"rbim.operation": started.operation, "rbim.call": started.call}
        call = _CallSpan(started.call, self._tracer.start_span(f"rbim {started.operation}", attributes=attributes))
        call.context = context.set_value(self._key, call, trace.set_span_in_context(call.span))
        call.token = context.attach(call.context)

    def _attempt_started(self, started: AttemptStarted) -> None:
        call = self._call(started.call)
        if call is None:
            return
        request = self._request_attributes(started)
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

    def _attempt_ended(self, ended: AttemptEnded) -> None:
        """End the span of an attempt; it is an error if the HTTP status is, or if no readable response came."""
        call = self._call(ended.call)
        if call is None or call.attempt is None:
            return
        (span, request, token), call.attempt = call.attempt, None
        made = ended.attempt
        error = CANCELLED if ended.cancelled else _error_of(made)
        self._metrics.attempt_ended(request, made, error)
        context.detach(token)
        if span.is_recording():
            outcome = None if made.outcome is None else made.outcome.value
            attributes = {"http.response.status_code": made.status, "rbim.code": made.code, "rbim.outcome": outcome}
            _set_attributes(span, attributes, error)
        span.end()

    def _call_ended(self, ended: CallEnded) -> None:
        """End the span of a call; it is an error if the call raised or was cancelled."""
        call = self._call(ended.call)
        if call is None:
            return
        if call.token is not None:
            context.detach(call.token)
        if call.span.is_recording():
            attributes = {
                "rbim.attempts": len(ended.attempts),
                "rbim.waited": ended.waited,
                "rbim.code": ended.attempts[-1].code if ended.attempts else None,
                "rbim.outcome": None if ended.outcome is None else ended.outcome.value,
                "rbim.confirmed_by_repeat": ended.confirmed_by_repeat or None,
            }
            _set_attributes(call.span, attributes, error_of(ended))
        call.span.end()

    def _call(self, number: int) -> _CallSpan | None:
        """Return the call of the current context; None in any other context, for example if a coroutine was dropped."""
        call = context.get_value(self._key)
        return call if isinstance(call, _CallSpan) and call.number == number else None

    def _request_attributes(self, started: AttemptStarted) -> Attributes:
        """Return the attributes that all requests of a client share for one operation and one origin."""
        key = (started.method, started.origin, started.template, started.client)
        attributes = self._requests.get(key)
        if attributes is None:
            origin = urlsplit(started.origin)
            attributes = self._requests[key] = {
                **self._about_in_metrics("rbim.client", started.client),
                "http.request.method": started.method,
                "server.address": origin.hostname or "",
                "server.port": origin.port or PORTS.get(origin.scheme, 0),
                "url.scheme": origin.scheme,
                "url.template": origin.path + started.template,
            }
        return attributes

    def observe_client(self, client: View, name: str | None = None) -> Observed:
        """Report the load of a client on every collection of metrics, until it is deleted or the result is closed.

        The result is also a context manager. ``name`` becomes the attribute ``rbim.client`` (default: the client's name).
        Clients of one name are one series: their loads are added, and of waits the longest counts.
        """
        return self._gauges.observe("client", client, self._about("rbim.client", client.name if name is None else name))

    def observe_job(self, run: Run, name: str = "job") -> Observed:
        """Report the rows of a job's run by state, in the same way as :meth:`observe_client`.

        ``name`` becomes the attribute ``rbim.job``.
        """
        return self._gauges.observe("job", run, self._about("rbim.job", name))

    def observe_receiver(self, receiver: Receiver[Any], name: str | None = None) -> AbstractAsyncContextManager[None]:
        """Return a context manager that reports how many deliveries wait in a receiver's overflow file (``spool``).

        Enter the receiver first. Each collection of metrics reports the number that was read after the one before.
        ``name`` becomes the attribute ``rbim.receiver`` (default: the receiver's name). Without an overflow file nothing is
        reported.
        """
        about = self._about("rbim.receiver", receiver.name if name is None else name)
        observe = self._gauges.observe
        return Reading(receiver.overflow, receiver, lambda reading: observe("receiver", reading, about, receiver))

    def observe_inbox(self, inbox: Archive, name: str | None = None) -> AbstractAsyncContextManager[None]:
        """Return a context manager that reports an inbox: its events by state, and its lag.

        Enter the inbox first. Each collection of metrics reports the numbers that were read after the one before. ``name``
        becomes the attribute ``rbim.inbox`` (default: the name of its file, or its own). An inbox that cannot be counted
        has no values until it can.
        """
        path = getattr(inbox, "path", None)
        own = str(getattr(inbox, "name", "") if path is None else path.name)
        about = self._about("rbim.inbox", own if name is None else name)
        observe = self._gauges.observe

        async def read() -> tuple[Counts, float]:
            counts = await inbox.counts()
            return counts, await inbox.lag() if counts.waiting else 0.0

        return Reading(read, f"the inbox {own}", lambda reading: observe("inbox", reading, about, inbox))


def _checked(attributes: Mapping[str, Any]) -> Attributes:
    require("attributes", attributes, Mapping, "a mapping such as {'deployment.environment.name': 'test'}")
    for key, value in attributes.items():
        if not isinstance(cast("object", key), str) or not key or not isinstance(value, (str, bool, int, float)):
            reason = (
                f"attributes: a name with a text, number or boolean is needed, not {quoted(key)} with {type(value).__name__}"
            )
            raise InvalidRequest(reason, field="attributes")
    return dict(attributes)


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
