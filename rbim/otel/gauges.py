"""Gauges of clients, jobs, receivers and inboxes: read whenever OpenTelemetry collects metrics, in the thread that collects.

Several objects with the same attributes are one series: numbers are added up, and of ages and times the longest counts.
"""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import anyio
from attrs import frozen
from opentelemetry import metrics
from opentelemetry.metrics import Observation

from rbim._support.event_loops import spawn, waker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

    from rbim.bulk.run import Run
    from rbim.client.client import View

    Attributes = dict[str, str | bool | int | float]

__all__ = ["GAUGES", "Gauge", "Gauges", "Observed", "Reading"]

logger = logging.getLogger("rbim")

READ_TIMEOUT = 10.0  # seconds for one reading of an inbox or an overflow file


class Gauge(NamedTuple):
    """A metric: name, unit, description, and the kind of object that it is about.

    ``read`` returns a number, a number for each ``rbim.state``, or None for no value now. ``longest``: as said above.
    """

    name: str
    unit: str
    description: str
    source: str
    read: Callable[[Any], float | Mapping[str, float] | None]
    longest: bool = False


def _states(source: object, *names: str) -> dict[str, float]:
    return {name: getattr(source, name) for name in names}


def _calls(client: View) -> dict[str, float]:
    return _states(client.load, "waiting", "in_flight")


def _rows(run: Run) -> dict[str, float]:
    return _states(run.snapshot, "waiting", "done", "refused", "failed", "unknown", "skipped", "duplicate")


def _events(inbox: Reading) -> dict[str, float] | None:
    return None if (read := inbox.next) is None else _states(read[0], "waiting", "done", "dead", "quarantined")


def _lag(inbox: Reading) -> float | None:
    return None if (read := inbox.last) is None else read[1]


GAUGES = (
    Gauge("rbim.client.calls", "{call}", "Calls: waiting, in flight.", "client", _calls),
    Gauge("rbim.client.places", "{request}", "Limit of requests in flight.", "client", attrgetter("load.places")),
    Gauge("rbim.client.oldest", "s", "Age of the oldest waiting call.", "client", attrgetter("load.oldest"), longest=True),
    Gauge("rbim.client.retries_left", "{request}", "Retries left in the budget.", "client", attrgetter("load.retries_left")),
    Gauge("rbim.job.rows", "{row}", "Rows of the input by state.", "job", _rows),
    Gauge("rbim.receiver.overflow", "{delivery}", "Deliveries in the overflow file.", "receiver", attrgetter("next")),
    Gauge("rbim.inbox.events", "{event}", "Events of the inbox by state.", "inbox", _events),
    Gauge("rbim.inbox.lag", "s", "Age of the oldest waiting event.", "inbox", _lag, longest=True),
)


@frozen(eq=False)
class Observed(AbstractContextManager["Observed"]):
    """A handle of an object that is reported: :meth:`close` it, or leave its ``with`` block, to stop the reports."""

    source: str
    target: ref[Any]
    identity: int  # the same for all that report one object
    attributes: Attributes
    provider: MeterProvider | None

    def close(self) -> None:
        """Stop the reports."""
        _observed.pop(self, None)

    def __exit__(self, *_: object) -> None:
        self.close()


# All that is reported in this process, by any OtelObserver: of several gauges of one name, the SDK calls the function of the
# first one only, so each function reports the objects of all observers with its meter provider.
_observed: dict[Observed, None] = {}


def _after_fork() -> None:
    """Stop to report what is of the parent process: all but clients, which may be entered here."""
    for observed in tuple(_observed):
        if observed.source != "client":
            observed.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Gauges:
    """The gauges of one meter provider; None is the global one, whichever it is when metrics are collected."""

    def __init__(self, meter: Meter, provider: MeterProvider | None) -> None:
        self._provider = provider
        for gauge in GAUGES:
            meter.create_observable_gauge(gauge.name, [partial(_read, gauge, provider)], gauge.unit, gauge.description)

    def observe(self, source: str, target: object, attributes: Attributes, identity: object = None) -> Observed:
        """Report an object until it is deleted. In a series an ``identity`` (default: the object) counts once."""
        known = id(target if identity is None else identity)
        observed = Observed(source, ref(target, lambda _: observed.close()), known, attributes, self._provider)
        _observed[observed] = None
        return observed


def _read(gauge: Gauge, provider: MeterProvider | None, _: CallbackOptions) -> list[Observation]:
    provider = provider or metrics.get_meter_provider()
    read: dict[frozenset[tuple[str, Any]], dict[int, float]] = {}
    for observed in tuple(_observed):  # an atomic copy: other threads change it
        target = observed.target()
        its_provider = observed.provider or metrics.get_meter_provider()
        if observed.source != gauge.source or target is None or its_provider is not provider:
            continue
        value = gauge.read(target)
        if value is None:
            continue
        for state, number in {"": value}.items() if isinstance(value, (int, float)) else value.items():
            series = observed.attributes | ({"rbim.state": state} if state else {})
            read.setdefault(frozenset(series.items()), {})[observed.identity] = number
    combine: Callable[[Any], float] = max if gauge.longest else sum
    return [Observation(combine(numbers.values()), dict(series)) for series, numbers in read.items()]


class Reading:
    """An async context manager that reports what can only be read in the event loop: an inbox, an overflow file.

    Each collection of metrics reports the last reading, and begins the next one: no collection waits. The first reading
    begins on entering. One that fails, or takes more than READ_TIMEOUT, leaves no value, which is better than an old one.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]], label: object, observe: Callable[[Reading], Observed]) -> None:
        self._read = read
        self._label = label
        self._observe = observe
        self.last: Any = None  # None: no value
        self._task: object = None  # the reading at work
        self._scope: anyio.CancelScope | None = None
        self._left: anyio.Event | None = None
        self._call_soon: Callable[[Callable[[], object]], None] | None = None
        self._observed: Observed | None = None

    @property
    def next(self) -> Any:
        """The last reading; the next one begins. Any thread may ask."""
        if self._call_soon is not None:
            self._call_soon(self._begin)
        return self.last

    async def __aenter__(self) -> None:
        self._call_soon = waker()
        self._begin()
        self._observed = self._observe(self)

    async def __aexit__(self, *_: object) -> None:
        self._call_soon = None
        if self._observed is not None:
            self._observed.close()
        if self._task is not None:
            self._left = anyio.Event()
            if self._scope is not None:
                self._scope.cancel()
            with anyio.move_on_after(READ_TIMEOUT, shield=True):
                await self._left.wait()

    def _begin(self) -> None:
        if self._task is None and self._call_soon is not None:
            self._task = spawn(self._run, name="rbim-metrics")

    async def _run(self) -> None:
        try:
            with anyio.fail_after(READ_TIMEOUT) as self._scope:
                if self._call_soon is not None:  # it was not left meanwhile
                    self.last = await self._read()
        except Exception:
            self.last = None
            logger.warning("%s could not be counted; no values until the next try", self._label, exc_info=True)
        finally:
            self._task = None
            if self._left is not None:
                self._left.set()
