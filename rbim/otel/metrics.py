"""Metrics of calls and callbacks: counters and histograms, recorded from observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rbim.callbacks.observers import (
    Accepted,
    DeadLettered,
    HandlingEnded,
    HungHandler,
    LoopBlocked,
    NotEntered,
    OldToken,
    PartEnded,
    PartRestarted,
    Quarantined,
    Refused,
    RetriedAlone,
    Skewed,
    Spooled,
)
from rbim.client.observers import CallEnded
from rbim.errors import Throttled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.metrics import Meter

    from rbim.client.observers import AttemptStarted
    from rbim.errors import Attempt
    from rbim.observers import Observation
    from rbim.otel.gauges import Attributes

__all__ = ["CANCELLED", "INCIDENTS", "Metrics", "error_of"]

CANCELLED = "cancelled"
PORTS = {"http": 80, "https": 443}
PLATFORM_TIMEOUT = 5.0  # seconds after which the platform gives up a delivery (Delivery rules, 4)
HEADROOM_BUCKETS = (0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 4.75, 4.9, 4.95, 5.0)
HTTP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # as in the conventions
CALL_BUCKETS = (*HTTP_BUCKETS, 15.0, 30.0, 60.0)  # the default deadline of a call is 30 s


def error_of(ended: CallEnded | HandlingEnded) -> str | None:
    """Return ``error.type`` of a call or handler; None if it succeeded."""
    return CANCELLED if ended.cancelled else None if ended.error is None else type(ended.error).__name__


class Metrics:
    """The instruments, and the functions that record observations in them.

    ``about`` returns the attributes for the name of a client (``rbim.client``) or receiver (``rbim.receiver``).
    """

    def __init__(self, meter: Meter, about: Callable[[str, str], Attributes]) -> None:
        self._about = about
        self._of_requests: dict[tuple[str, str, str, str], Attributes] = {}

        def histogram(name: str, description: str, buckets: tuple[float, ...]) -> Any:  # its class is the API's own
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=buckets)

        self._requests = histogram("http.client.request.duration", "Duration of requests: one per attempt.", HTTP_BUCKETS)
        self._calls = histogram("rbim.client.call.duration", "Duration of calls, with waits and pauses.", CALL_BUCKETS)
        self._deliveries = meter.create_counter("rbim.receiver.deliveries", "{delivery}", "Deliveries by result.")
        headroom = "Time left of the platform's 5 seconds when a delivery was accepted."
        self._headroom = histogram("rbim.receiver.headroom", headroom, HEADROOM_BUCKETS)
        incidents = "What needs a look: overflows, quarantine, wrong clocks, dead letters, ends and hangs."
        self._incidents = meter.create_counter("rbim.receiver.incidents", "{incident}", incidents)
        self._handling = histogram("rbim.worker.handling.duration", "Duration of attempts to handle an event.", CALL_BUCKETS)
        self.recorders: Mapping[type[Observation], Callable[[Any], None]] = {
            CallEnded: self._call_ended,
            Accepted: self._accepted,
            Refused: self._refused,
            HandlingEnded: self._handling_ended,
            **dict.fromkeys(INCIDENTS, self._incident),
        }

    def request_of(self, started: AttemptStarted) -> Attributes:
        """Return the attributes that all requests of a client share for one operation and one origin."""
        key = (started.method, started.origin, started.template, started.client)
        attributes = self._of_requests.get(key)
        if attributes is None:
            origin = urlsplit(started.origin)
            attributes = self._of_requests[key] = {
                **self._about("rbim.client", started.client),
                "http.request.method": started.method,
                "server.address": origin.hostname or "",
                "server.port": origin.port or PORTS.get(origin.scheme, 0),
                "url.scheme": origin.scheme,
                "url.template": origin.path + started.template,
            }
        return attributes

    def attempt_ended(self, request: Attributes, made: Attempt, error: str | None) -> None:
        """Record a request that has ended; ``error`` is its ``error.type``."""
        attributes = dict(request)
        if made.status is not None:
            attributes["http.response.status_code"] = made.status
        if error is not None:
            attributes["error.type"] = error
        if made.error == Throttled.__name__:
            attributes["rbim.throttled"] = True
        self._requests.record(made.elapsed, attributes)

    def _call_ended(self, ended: CallEnded) -> None:
        attributes = self._about("rbim.client", ended.client)
        attributes["rbim.operation"] = ended.operation
        error = error_of(ended)
        if error is not None:
            attributes["error.type"] = error
            if ended.outcome is not None:
                attributes["rbim.outcome"] = ended.outcome.value
        self._calls.record(ended.elapsed, attributes)

    def _accepted(self, accepted: Accepted) -> None:
        about = self._about("rbim.receiver", accepted.receiver)
        self._headroom.record(max(0.0, PLATFORM_TIMEOUT - accepted.elapsed), about)  # 0: the platform has given up
        self._deliveries.add(1, {**about, "rbim.result": "accepted" if accepted.new else "known"})

    def _refused(self, refused: Refused) -> None:
        about = self._about("rbim.receiver", refused.receiver)
        self._deliveries.add(1, {**about, "rbim.result": "refused", "error.type": str(refused.reason)})

    def _handling_ended(self, ended: HandlingEnded) -> None:
        attributes = self._about("rbim.receiver", ended.receiver) | {"rbim.handler": ended.handler}
        error = error_of(ended)
        self._handling.record(ended.elapsed, attributes if error is None else {**attributes, "error.type": error})

    def _incident(self, observation: Any) -> None:  # one of INCIDENTS
        kind: type[Any] = observation.__class__
        about = self._about("rbim.receiver", observation.receiver)
        if kind is Spooled and not observation.kept:
            self._deliveries.add(1, {**about, "rbim.result": "unavailable"})
        else:
            known = {name: value for name, value in INCIDENTS[kind](observation).items() if value}
            self._incidents.add(1, {**about, "rbim.observation": kind.__name__, **known})


# The observations that are counted in `rbim.receiver.incidents`, and their attributes.
INCIDENTS: dict[type[Observation], Callable[[Any], dict[str, str]]] = {
    Spooled: lambda _: {},
    Skewed: lambda skewed: {"rbim.result": "accepted" if skewed.accepted else "refused"},
    OldToken: lambda _: {},
    Quarantined: lambda put: {"rbim.reason": "other content" if put.other_content else "unreadable"},
    DeadLettered: lambda dead: {"rbim.handler": dead.handler, "rbim.reason": "crash" if dead.crashes else "failure"},
    HungHandler: lambda hung: {"rbim.handler": hung.handler},
    LoopBlocked: lambda blocked: {"rbim.handler": blocked.handler},
    RetriedAlone: lambda _: {},
    PartEnded: lambda ended: {"rbim.part": ended.part},
    PartRestarted: lambda restarted: {"rbim.part": restarted.part},
    NotEntered: lambda _: {},
}
