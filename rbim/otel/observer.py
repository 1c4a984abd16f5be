"""OtelObserver: a span for each call and for each attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from attrs import define

import rbim
from rbim._support.text import missing_extra
from rbim.client.observers import Observer

try:
    from opentelemetry import context, metrics, trace
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("rbim.otel", missing.name, "otel"), name=missing.name) from None

from rbim.otel.callback_metrics import CallbackMetrics
from rbim.otel.metrics import CallMetrics, Levels, ObservedInbox, RequestInFlight

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from rbim.bulk.run import Run
    from rbim.callbacks.inbox.sqlite import SqliteInbox
    from rbim.callbacks.observers import Observation
    from rbim.client.client import View
    from rbim.client.observers import AttemptEnded, AttemptStarted, CallEnded, CallStarted
    from rbim.errors import Attempt
    from rbim.otel.metrics import Attributes, Observed

__all__ = ["OtelObserver"]

SCHEMA = "https://opentelemetry.io/schemas/1.34.0"
PORTS = {"http": 80, "https": 443}
CLIENT_ERROR = 400  # the first HTTP status that is an error
CANCELLED = "cancelled"

# What instrumentations of HTTP libraries look for in the context; aiohttp's looks for the first, httpx's for either.
# opentelemetry-instrumentation alone has public names for it.
HANDS_OFF: tuple[str, ...] = tuple(
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
    """A call under way, kept in its own context: whatever else runs at the same time finds its own there."""

    number: int
    span: Span
    context: Context | None = None
    token: Token[Context] | None = None
    attempt: _Attempt | None = None


class OtelObserver(Observer):
    """An observer that makes spans and metrics: ``AsyncClient(observers=[OtelObserver()])``.

    One serves any number of clients, and receivers too (:meth:`told`). The providers are the process's own unless told.
    While an attempt is made its span is the current one, as is that of the call between attempts: what a logger writes
    meanwhile can be found by it. Raises nothing; needs ``rbim[otel]``, and an SDK to export anything.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
        self._tracer = trace.get_tracer("rbim", rbim.__version__, tracer_provider, SCHEMA)
        meter = metrics.get_meter("rbim", rbim.__version__, meter_provider, SCHEMA)
        self._metrics = CallMetrics(meter)
        self._copies = CallbackMetrics(meter)
        self._levels = Levels(meter)
        self._key = context.create_key("rbim-call")
        self._about: dict[tuple[str, str, str], Attributes] = {}

    # What the client tells.

    def call_started(self, event: CallStarted, /) -> None:
        """Begin the call's span below whatever span the caller is in."""
        about: Attributes = {"rbim.operation": event.operation, "rbim.call": event.call}
        call = _Call(event.call, self._tracer.start_span(f"rbim {event.operation}", attributes=about))
        call.context = context.set_value(self._key, call, trace.set_span_in_context(call.span))
        call.token = context.attach(call.context)

    def attempt_started(self, event: AttemptStarted, /) -> None:
        """Begin the attempt's span below that of its call."""
        call = self._call(event.call)
        if call is None:
            return
        about = self._request(event)
        told = {**about, "rbim.operation": event.operation, "rbim.attempt": event.number}
        if event.number > 1:
            told["http.request.resend_count"] = event.number - 1
        name = f"{event.method} {about['url.template']}"
        span = self._tracer.start_span(name, call.context, trace.SpanKind.CLIENT, told)
        inside = trace.set_span_in_context(span)
        for key in HANDS_OFF:
            inside = context.set_value(key, True, inside)  # noqa: FBT003  # a value like any other
        request = RequestInFlight(about)
        self._metrics.began(request, event)
        call.attempt = _Attempt(span, request, context.attach(inside))

    def attempt_ended(self, event: AttemptEnded, /) -> None:
        """End the attempt's span: with an error where HTTP says so, or no readable answer came."""
        call = self._call(event.call)
        if call is None or call.attempt is None:
            return
        attempt, call.attempt = call.attempt, None
        made = event.attempt
        error = CANCELLED if event.cancelled else _error_of(made)
        self._metrics.attempted(attempt.request, made, error)
        context.detach(attempt.token)
        if attempt.span.is_recording():
            outcome = None if made.outcome is None else made.outcome.value
            facts = {"http.response.status_code": made.status, "rbim.code": made.code, "rbim.outcome": outcome}
            _tell(attempt.span, facts, error)
        attempt.span.end()

    def call_ended(self, event: CallEnded, /) -> None:
        """End the call's span: with an error unless it was answered."""
        error = CANCELLED if event.cancelled else None if event.error is None else type(event.error).__name__
        self._metrics.called(event, error)
        call = self._call(event.call)
        if call is None:
            return
        if call.token is not None:
            context.detach(call.token)
        if call.span.is_recording():
            facts = {
                "rbim.attempts": len(event.attempts),
                "rbim.waited": event.waited,
                "rbim.code": event.attempts[-1].code if event.attempts else None,
                "rbim.outcome": None if event.outcome is None else event.outcome.value,
                "rbim.confirmed_by_repeat": event.confirmed_by_repeat or None,
            }
            _tell(call.span, facts, error)
        call.span.end()

    def _call(self, number: int) -> _Call | None:
        """Return the call whose context this is; None in any other, as where a coroutine was dropped half-way."""
        call = context.get_value(self._key)
        return call if isinstance(call, _Call) and call.number == number else None

    def _request(self, event: AttemptStarted) -> Attributes:
        """Return what is the same for all requests of one operation to one address."""
        key = (event.method, event.origin, event.template)
        about = self._about.get(key)
        if about is None:
            origin = urlsplit(event.origin)
            about = self._about[key] = {
                "http.request.method": event.method,
                "server.address": origin.hostname or "",
                "server.port": origin.port or PORTS.get(origin.scheme, 0),
                "url.scheme": origin.scheme,
                "url.template": origin.path + event.template,
            }
        return about

    # What else there is to watch.

    def told(self, fact: Observation, /) -> None:
        """Count a fact of a receiver or of its worker: ``Receiver(observers=[otel.told])``."""
        self._copies.told(fact)

    def observe_client(self, client: View, name: str = "client") -> Observed:
        """Report, whenever metrics are collected, what a client is busy with, until it is gone or the result is closed.

        The result is a context manager, too. ``name`` becomes the attribute ``rbim.name``: give each client its own.
        """
        return self._levels.watch("client", client, name)

    def observe_job(self, run: Run, name: str = "job") -> Observed:
        """Report how far a run of a job is, as :meth:`observe_client` does: its rows by state, and its pace."""
        return self._levels.watch("job", run, name)

    def observe_inbox(
        self, inbox: SqliteInbox, name: str | None = None, *, every: float = 15.0
    ) -> AbstractAsyncContextManager[None]:
        """Return a block in which an inbox, entered before, is counted every so many seconds, and its lag measured.

        ``name`` is that of its file unless told. Entering raises what keeps the inbox from being counted.
        """
        return ObservedInbox(self._levels, inbox, inbox.path.name if name is None else name, every)


def _error_of(made: Attempt) -> str | None:
    """Return ``error.type`` by the conventions: a status from 400 on, or what kept a whole answer from being read.

    The platform's no in a good HTTP answer is an error of the call, and none of HTTP.
    """
    if made.status is not None and made.status >= CLIENT_ERROR:
        return str(made.status)
    return made.error if made.code is None else None


def _tell(span: Span, facts: Mapping[str, str | float | None], error: str | None) -> None:
    """Write what is known, and an error, if there was one, as the conventions have it."""
    told = {name: fact for name, fact in facts.items() if fact is not None}
    if error is not None:
        told["error.type"] = error
        span.set_status(trace.StatusCode.ERROR)
    span.set_attributes(told)
