"""Metrics of calls, and levels: gauges and counters that are read whenever metrics are collected."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import anyio
from attrs import define, frozen
from opentelemetry.metrics import Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from anyio.abc import TaskGroup
    from opentelemetry.metrics import CallbackOptions, Meter

    from rbim.bulk.progress import Snapshot
    from rbim.callbacks.inbox.sqlite import SqliteInbox
    from rbim.callbacks.inbox.statements import Counts
    from rbim.client.observers import AttemptStarted, CallEnded
    from rbim.client.shared import Load
    from rbim.errors import Attempt

__all__ = ["LEVELS", "Attributes", "CallMetrics", "Level", "Levels", "Observed", "ObservedInbox", "RequestInFlight"]

Attributes = dict[str, str | int]

logger = logging.getLogger("rbim")

HTTP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""In seconds, as in the conventions for HTTP."""

CALL_BUCKETS = (*HTTP_BUCKETS, 15.0, 30.0, 60.0)
"""In seconds: the default deadline of a call is 30 s."""


class CallMetrics:
    """Records each call and each attempt; requests in flight are counted when metrics are collected."""

    def __init__(self, meter: Meter) -> None:
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

    def attempt_started(self, request: RequestInFlight, event: AttemptStarted) -> None:
        """Count a request as in flight, until it ends or is garbage-collected."""
        request.counted = ref(request, self._active.discard)
        self._active.add(request.counted)
        self._seen[id(request.attributes)] = request.attributes
        if event.number > 1:
            self._retries.add(1, {"rbim.operation": event.operation})

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
        attributes: Attributes = {"rbim.operation": event.operation}
        if event.waited > 0:
            self._waits.record(event.waited, attributes)
        if error is not None:
            attributes = {**attributes, "error.type": error}
            if event.outcome is not None:
                attributes["rbim.outcome"] = event.outcome.value
        self._calls.record(event.elapsed, attributes)

    def _observe_active(self, _: CallbackOptions) -> Iterator[Observation]:
        # the tuples are atomic copies: other threads send requests meanwhile
        in_flight = [request for reference in tuple(self._active) if (request := reference()) is not None]
        counts = Counter(id(request.attributes) for request in in_flight)
        for key, attributes in tuple(self._seen.items()):
            yield Observation(counts[key], attributes)


@define(eq=False, slots=False)
class RequestInFlight:
    """A request in flight: its attributes (one shared object for all similar requests), and its entry in the count."""

    attributes: Attributes
    counted: ref[RequestInFlight] | None = None


# Levels are read in the thread that collects metrics.


class Level(NamedTuple):
    """A metric that is read on collection: its name, unit, description and kind of source.

    ``read`` takes the source and returns one number, a number for each ``state``, or None for no value now. With ``grows``
    the metric is a counter, else a gauge.
    """

    name: str
    unit: str
    description: str
    source: str
    read: Callable[[Any], float | dict[str, float] | None]
    grows: bool = False


def _rows(now: Snapshot) -> dict[str, float]:
    return {name: getattr(now, name) for name in ROWS}


def _events(now: _Reading) -> dict[str, float]:
    return {name: getattr(now.counts, name) for name in ("waiting", "done", "dead", "quarantined")}


def _of_client(read: Callable[[Load], float]) -> Callable[[Any], float]:
    return lambda client: read(client.load)


def _of_job(read: Callable[[Snapshot], float | dict[str, float] | None]) -> Callable[[Any], Any]:
    return lambda run: read(run.snapshot)


def _of_inbox(read: Callable[[_Reading], float | dict[str, float]]) -> Callable[[Any], Any]:
    return lambda inbox: None if inbox.reading is None else read(inbox.reading)


ROWS = ("waiting", "done", "refused", "failed", "unknown", "skipped", "duplicate")
REQUEST, CALL, ROW = "{request}", "{call}", "{row}"

LEVELS = (
    Level("rbim.client.places", REQUEST, "Requests that may be in flight.", "client", _of_client(lambda n: n.places)),
    Level("rbim.client.in_flight", REQUEST, "Requests in flight.", "client", _of_client(lambda n: n.in_flight)),
    Level(
        "rbim.client.waiting",
        CALL,
        "Calls that wait for a place in flight, a rate or a halt.",
        "client",
        _of_client(lambda n: n.waiting),
    ),
    Level("rbim.client.oldest", "s", "Age of the oldest waiting call.", "client", _of_client(lambda n: n.oldest)),
    Level(
        "rbim.client.refused",
        CALL,
        "Calls whose request could not leave in time for their deadline.",
        "client",
        _of_client(lambda n: n.refused),
        grows=True,
    ),
    Level(
        "rbim.client.attempt_time",
        "s",
        "Usual time of an attempt, as learned while calls wait.",
        "client",
        _of_client(lambda n: n.attempt_time),
    ),
    Level("rbim.client.calls", CALL, "Calls in progress, including waiting ones.", "client", _of_client(lambda n: n.calls)),
    Level(
        "rbim.client.retries_left",
        REQUEST,
        "Retries left in the retry budget.",
        "client",
        _of_client(lambda n: n.retries_left),
    ),
    Level("rbim.client.halted", "s", "Time until requests may be sent again.", "client", _of_client(lambda n: n.halted)),
    Level("rbim.job.rows", ROW, "Rows of the job's input by state.", "job", _of_job(_rows)),
    Level("rbim.job.requests", REQUEST, "Requests that have ended.", "job", _of_job(lambda n: n.requests), grows=True),
    Level("rbim.job.throttled", REQUEST, "Throttled requests.", "job", _of_job(lambda n: n.throttled), grows=True),
    Level("rbim.job.in_flight", REQUEST, "Requests in flight.", "job", _of_job(lambda n: n.in_flight)),
    Level("rbim.job.concurrency", REQUEST, "Requests that may be in flight now.", "job", _of_job(lambda n: n.concurrency)),
    Level("rbim.job.rate", "{row}/s", "Rows per second, over the last ten seconds.", "job", _of_job(lambda n: n.rate)),
    Level(
        "rbim.job.request_rate",
        "{request}/s",
        "Requests per second, over the last ten seconds.",
        "job",
        _of_job(lambda n: n.request_rate),
    ),
    Level("rbim.job.eta", "s", "Estimated time until the job ends, if known.", "job", _of_job(lambda n: n.eta)),
    Level("rbim.inbox.events", "{event}", "Events of the inbox by state.", "inbox", _of_inbox(_events)),
    Level("rbim.inbox.lag", "s", "Age of the oldest waiting event.", "inbox", _of_inbox(lambda n: n.lag)),
)


class Levels:
    """The observed clients, jobs and inboxes. They are weakly referenced: a collected one is no longer reported."""

    def __init__(self, meter: Meter) -> None:
        self._observed: dict[Observed, None] = {}
        for level in LEVELS:
            create = meter.create_observable_counter if level.grows else meter.create_observable_gauge
            create(level.name, [self._callback(level)], level.unit, level.description)

    def observe(self, source: str, target: object, name: str) -> Observed:
        """Report the levels of a target whenever metrics are collected."""
        observed = Observed(source, ref(target, lambda _: observed.close()), {"rbim.name": name}, self._observed)
        self._observed[observed] = None
        return observed

    def _callback(self, level: Level) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for observed in tuple(self._observed):  # an atomic copy: other threads add and remove
                target = observed.target()
                if observed.source != level.source or target is None:
                    continue
                value = level.read(target)
                if isinstance(value, dict):
                    for state, number in value.items():
                        yield Observation(number, {**observed.attributes, "rbim.state": state})
                elif value is not None:
                    yield Observation(value, observed.attributes)

        return observe


@frozen(eq=False)
class Observed:
    """A handle of a reported target: :meth:`close` it, or leave its ``with`` block, to stop the reports."""

    source: str
    target: ref[Any]
    attributes: dict[str, str]
    _registry: dict[Observed, None]

    def close(self) -> None:
        """Stop the reports."""
        self._registry.pop(self, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


# An inbox is a file. It is read by a task, not by the thread that collects metrics.


@frozen
class _Reading:
    counts: Counts
    lag: float


@define(eq=False, slots=False)
class ObservedInbox:
    """An async context manager that counts an inbox every ``every`` seconds of the inbox's clock."""

    levels: Levels
    inbox: SqliteInbox
    name: str
    every: float
    reading: _Reading | None = None
    _tasks: TaskGroup | None = None
    _observed: Observed | None = None

    async def __aenter__(self) -> None:
        self.reading = await self._read()
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        tasks.start_soon(self._keep_reading)
        self._tasks = tasks
        self._observed = self.levels.observe("inbox", self, self.name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self._tasks is not None  # noqa: S101  # it was entered
        assert self._observed is not None  # noqa: S101  # it was entered
        self._observed.close()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # an error of the block is not passed on: the group would wrap it

    async def _read(self) -> _Reading:
        return _Reading(await self.inbox.counts(), await self.inbox.lag())

    async def _keep_reading(self) -> None:
        while True:
            await self.inbox.clock.sleep(self.every)
            try:
                self.reading = await self._read()
            except Exception:
                self.reading = None  # no value is better than an old one
                logger.warning(
                    "the inbox %s could not be counted; its metrics have no value until the next try",
                    self.inbox.path,
                    exc_info=True,
                )
