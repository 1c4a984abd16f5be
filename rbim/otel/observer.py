"""OtelObserver: spans and metrics of calls, attempts and callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import rbim
from rbim._support.text import missing_extra, quoted
from rbim.errors import InvalidRequest
from rbim.validators import require

try:
    from opentelemetry import metrics, trace
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(missing_extra("rbim.otel", missing.name, "otel"), name=missing.name) from None

from collections.abc import Mapping

from rbim.otel.gauges import Gauges, Reading
from rbim.otel.metrics import Metrics
from rbim.otel.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from rbim.bulk.run import Run
    from rbim.callbacks.inbox.protocols import Counts
    from rbim.callbacks.inbox.stored import Archive
    from rbim.callbacks.receiver.receiver import Receiver
    from rbim.client.client import View
    from rbim.observers import Observation
    from rbim.otel.gauges import Attributes, Observed

__all__ = ["OtelObserver"]

SCHEMA = "https://opentelemetry.io/schemas/1.34.0"


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
        tracer = trace.get_tracer("rbim", rbim.__version__, tracer_provider, SCHEMA)
        meter = metrics.get_meter("rbim", rbim.__version__, meter_provider, SCHEMA)
        recording = Metrics(meter, lambda key, name: self._about(key, name if names_in_metrics else ""))
        self._gauges = Gauges(meter, meter_provider)
        self._recorders: dict[type[Observation], list[Callable[[Any], None]]] = {}
        # metrics first: the span that ends is still the current one
        for recorders in (recording.recorders, Spans(tracer, self._about, recording).recorders):
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
