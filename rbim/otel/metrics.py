"""Metrics of calls: their durations, waits and attempts, and the requests in flight."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from attrs import define
from opentelemetry import metrics
from opentelemetry.metrics import Observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

    from rbim.client.observers import AttemptStarted, CallEnded
    from rbim.errors import Attempt
    from rbim.otel.attributes import Attributes, CommonAttributes

__all__ = ["CALL_BUCKETS", "CallMetrics", "Provider", "RequestInFlight", "Sources"]

# Sources of observable metrics: those of all observers in the process, each with its meter provider.
#
# The SDK keeps the callbacks of the first instrument of a name, and ignores those of later ones. So a callback reports the
# sources of every observer with the same provider: it makes no difference whose callback is kept.

T = TypeVar("T")


class Provider:
    """A meter provider, weakly referenced; None is the global provider, whichever it is when metrics are collected."""

    def __init__(self, provider: MeterProvider | None) -> None:
        self._given = None if provider is None else ref(provider)

    def is_same_as(self, other: Provider) -> bool:
        """Return whether both are the same provider now."""
        return self._now() == other._now()

    def _now(self) -> ref[MeterProvider]:
        return ref(metrics.get_meter_provider()) if self._given is None else self._given


class Sources(Generic[T]):
    """A set of sources; any thread may change it while another one reads it."""

    def __init__(self) -> None:
        self._all: dict[T, Provider] = {}

    def add(self, source: T, provider: Provider) -> None:
        """Report a source to a provider from now on."""
        self._all[source] = provider

    def discard(self, source: T) -> None:
        """Report a source no more."""
        self._all.pop(source, None)

    def of(self, provider: Provider) -> Iterator[T]:
        """Yield the sources of a provider."""
        for source, its in self.everything():
            if its is provider or its.is_same_as(provider):
                yield source

    def everything(self) -> tuple[tuple[T, Provider], ...]:
        """Return all sources with their providers."""
        return tuple(self._all.items())  # an atomic copy


HTTP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""In seconds, as in the conventions for HTTP."""

CALL_BUCKETS = (*HTTP_BUCKETS, 15.0, 30.0, 60.0)
"""In seconds: the default deadline of a call is 30 s."""


class CallMetrics:
    """Records each call and each attempt; requests in flight are counted when metrics are collected."""

    def __init__(self, meter: Meter, provider: Provider, common: CommonAttributes) -> None:
        self._common = common
        self._provider = provider
        self._requests = meter.create_histogram(
            "http.client.request.duration",
            "s",
            "Duration of HTTP client requests: one per attempt of a call.",
            explicit_bucket_boundaries_advisory=HTTP_BUCKETS,
        )
        self._calls = meter.create_histogram(
            "rbim.client.call.duration",
            "s",
            "Duration of calls, including waits, attempts and pauses.",
            explicit_bucket_boundaries_advisory=CALL_BUCKETS,
        )
        self._waits = meter.create_histogram(
            "rbim.client.wait.duration",
            "s",
            "Time that calls waited for the rate limiter, for a halt to end or for a place in flight, if they had to.",
            explicit_bucket_boundaries_advisory=CALL_BUCKETS,
        )
        self._retries = meter.create_counter("rbim.client.retries", "{request}", "Attempts of a call after its first.")
        meter.create_observable_up_down_counter(
            "http.client.active_requests", [self._observe_active], "{request}", "Requests in flight."
        )
        self._active: set[ref[RequestInFlight]] = set()
        self._seen: dict[int, Attributes] = {}  # by id; a series that was reported once is always reported, even as 0
        ALL.add(ref(self, ALL.discard), provider)

    def attempt_started(self, request: RequestInFlight, event: AttemptStarted) -> None:
        """Count a request as in flight, until it ends or is garbage-collected."""
        request.counted = ref(request, self._active.discard)
        self._active.add(request.counted)
        self._seen[id(request.attributes)] = request.attributes
        if event.number > 1:
            self._retries.add(1, self._of_call(event))

    def attempt_ended(self, request: RequestInFlight, made: Attempt, error: str | None) -> None:
        """Record a request that has ended; ``error`` is its ``error.type``."""
        if request.counted is not None:
            self._active.discard(request.counted)
        attributes = dict(request.attributes)
        if made.status is not None:
            attributes["http.response.status_code"] = made.status
        if error is not None:
            attributes["error.type"] = error
        self._requests.record(made.elapsed, attributes)

    def call_ended(self, event: CallEnded, error: str | None) -> None:
        """Record a call that has ended; ``error`` is its ``error.type``."""
        attributes = self._of_call(event)
        if event.waited > 0:
            self._waits.record(event.waited, attributes)
        if error is not None:
            attributes = {**attributes, "error.type": error}
            if event.outcome is not None:
                attributes["rbim.outcome"] = event.outcome.value
        self._calls.record(event.elapsed, attributes)

    def _of_call(self, event: AttemptStarted | CallEnded) -> Attributes:
        return {**self._common.of_metric("rbim.client", event.client), "rbim.operation": event.operation}

    def _observe_active(self, _: CallbackOptions) -> Iterator[Observation]:
        counts: dict[frozenset[tuple[str, object]], tuple[int, Attributes]] = {}
        for reference in ALL.of(self._provider):
            if (each := reference()) is not None:
                for count, attributes in each.active():
                    key = frozenset(attributes.items())
                    counts[key] = counts.get(key, (0,))[0] + count, attributes
        return (Observation(count, attributes) for count, attributes in counts.values())

    def active(self) -> Iterator[tuple[int, Attributes]]:
        """Yield the number of requests in flight of each series."""
        # the tuples are atomic copies: other threads send requests meanwhile
        in_flight = [request for reference in tuple(self._active) if (request := reference()) is not None]
        counts = Counter(id(request.attributes) for request in in_flight)
        for key, attributes in tuple(self._seen.items()):
            yield counts[key], attributes

    def forget_active(self) -> None:
        """Count no request as in flight."""
        self._active.clear()


ALL: Sources[ref[CallMetrics]] = Sources()
"""The metrics of every observer in the process."""


def _after_fork() -> None:
    """Forget the requests of the parent process: they do not end here."""
    for reference, _ in ALL.everything():
        if (each := reference()) is not None:
            each.forget_active()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@define(eq=False, slots=False)
class RequestInFlight:
    """A request in flight: its attributes (one shared object for all similar requests), and its entry in the count."""

    attributes: Attributes
    counted: ref[RequestInFlight] | None = None
