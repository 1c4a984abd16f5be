"""The metrics of calls, and the levels that are read whenever metrics are collected."""

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
"""Seconds, by the conventions for HTTP."""

CALL_BUCKETS = (*HTTP_BUCKETS, 15.0, 30.0, 60.0)
"""Seconds: a call has 30 unless told otherwise."""


class CallMetrics:
    """What is recorded of each call and each attempt; requests in flight are counted when somebody asks."""

    def __init__(self, meter: Meter) -> None:
        self._requests = meter.create_histogram(
            "http.client.request.duration",
            "s",
            "Duration of HTTP client requests: each attempt of a call is one.",
            explicit_bucket_boundaries_advisory=HTTP_BUCKETS,
        )
        self._calls = meter.create_histogram(
            "rbim.client.call.duration",
            "s",
            "Duration of calls, with their waits, attempts and pauses.",
            explicit_bucket_boundaries_advisory=CALL_BUCKETS,
        )
        self._waits = meter.create_histogram(
            "rbim.client.wait.duration",
            "s",
            "What calls that had to wait spent on rates, halts and places among those in flight.",
            explicit_bucket_boundaries_advisory=CALL_BUCKETS,
        )
        self._retries = meter.create_counter("rbim.client.retries", "{request}", "Attempts after the first of a call.")
        meter.create_observable_up_down_counter(
            "http.client.active_requests", [self._observe_active], "{request}", "Requests that are in flight."
        )
        self._active: set[ref[RequestInFlight]] = set()
        self._seen: dict[int, Attributes] = {}  # by its id; what was counted once is reported for good, were it as 0

    def began(self, request: RequestInFlight, event: AttemptStarted) -> None:
        """Count a request that leaves, until it is over or forgotten."""
        request.counted = ref(request, self._active.discard)
        self._active.add(request.counted)
        self._seen[id(request.about)] = request.about
        if event.number > 1:
            self._retries.add(1, {"rbim.operation": event.operation})

    def attempted(self, request: RequestInFlight, made: Attempt, error: str | None) -> None:
        """Record a request that is over; ``error`` is its ``error.type``."""
        if request.counted is not None:
            self._active.discard(request.counted)
        about = dict(request.about)
        if made.status is not None:
            about["http.response.status_code"] = made.status
        if error is not None:
            about["error.type"] = error
        self._requests.record(made.elapsed, about)

    def called(self, event: CallEnded, error: str | None) -> None:
        """Record a call that is over."""
        about: Attributes = {"rbim.operation": event.operation}
        if event.waited > 0:
            self._waits.record(event.waited, about)
        if error is not None:
            about = {**about, "error.type": error}
            if event.outcome is not None:
                about["rbim.outcome"] = event.outcome.value
        self._calls.record(event.elapsed, about)

    def _observe_active(self, _: CallbackOptions) -> Iterator[Observation]:
        # at one blow: other threads send
        under_way = [request for reference in tuple(self._active) if (request := reference()) is not None]
        counts = Counter(id(request.about) for request in under_way)
        for key, about in tuple(self._seen.items()):
            yield Observation(counts[key], about)


@define(eq=False, slots=False)
class RequestInFlight:
    """A request under way: what is said of it (one object for all that are alike), and how it is counted."""

    about: Attributes
    counted: ref[RequestInFlight] | None = None


# Levels, read by whatever thread collects.


class Level(NamedTuple):
    """A metric that is read: its name, unit and description, the kind of its source, and how it is read from that.

    ``read`` returns one number (None: there is none now), or one for each ``state``. What only grows is a counter.
    """

    name: str
    unit: str
    about: str
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
    Level("rbim.client.in_flight", REQUEST, "Requests that are in flight.", "client", _of_client(lambda n: n.in_flight)),
    Level("rbim.client.waiting", CALL, "Calls that wait for a place.", "client", _of_client(lambda n: n.waiting)),
    Level("rbim.client.calls", CALL, "Calls that run, waiting ones included.", "client", _of_client(lambda n: n.calls)),
    Level(
        "rbim.client.retries_left",
        REQUEST,
        "What the retry budget allows.",
        "client",
        _of_client(lambda n: n.retries_left),
    ),
    Level("rbim.client.halted", "s", "Time for which nothing may be sent.", "client", _of_client(lambda n: n.halted)),
    Level("rbim.job.rows", ROW, "Rows of the job's input by state.", "job", _of_job(_rows)),
    Level("rbim.job.requests", REQUEST, "Requests that have ended.", "job", _of_job(lambda n: n.requests), grows=True),
    Level("rbim.job.throttled", REQUEST, "Requests that were throttled.", "job", _of_job(lambda n: n.throttled), grows=True),
    Level("rbim.job.in_flight", REQUEST, "Requests that are in flight.", "job", _of_job(lambda n: n.in_flight)),
    Level("rbim.job.concurrency", REQUEST, "Requests that may be in flight now.", "job", _of_job(lambda n: n.concurrency)),
    Level("rbim.job.rate", "{row}/s", "Rows over the last ten seconds.", "job", _of_job(lambda n: n.rate)),
    Level(
        "rbim.job.request_rate",
        "{request}/s",
        "Requests over the last ten seconds.",
        "job",
        _of_job(lambda n: n.request_rate),
    ),
    Level("rbim.job.eta", "s", "Time until the job ends, where anybody can tell.", "job", _of_job(lambda n: n.eta)),
    Level("rbim.inbox.events", "{event}", "Events of the inbox by state.", "inbox", _of_inbox(_events)),
    Level("rbim.inbox.lag", "s", "Age of the oldest event that waits.", "inbox", _of_inbox(lambda n: n.lag)),
)


class Levels:
    """Everything that is being watched, each by its name. What nobody else keeps is forgotten."""

    def __init__(self, meter: Meter) -> None:
        self._watched: dict[Observed, None] = {}
        for level in LEVELS:
            create = meter.create_observable_counter if level.grows else meter.create_observable_gauge
            create(level.name, [self._callback(level)], level.unit, level.about)

    def watch(self, source: str, target: object, name: str) -> Observed:
        """Read the levels of a target whenever metrics are collected."""
        watched = Observed(source, ref(target, lambda _: watched.close()), {"rbim.name": name}, self._watched)
        self._watched[watched] = None
        return watched

    def _callback(self, level: Level) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for watched in tuple(self._watched):  # at one blow: other threads begin and end to watch
                target = watched.target()
                if watched.source != level.source or target is None:
                    continue
                value = level.read(target)
                if isinstance(value, dict):
                    for state, number in value.items():
                        yield Observation(number, {**watched.about, "rbim.state": state})
                elif value is not None:
                    yield Observation(value, watched.about)

        return observe


@frozen(eq=False)
class Observed:
    """Something whose levels are reported until this is closed; use it with ``with``, or let it be."""

    source: str
    target: ref[Any]
    about: dict[str, str]
    _among: dict[Observed, None]

    def close(self) -> None:
        """Report it no more."""
        self._among.pop(self, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


# An inbox is a file that has to be read, which is not done by the thread that collects.


@frozen
class _Reading:
    counts: Counts
    lag: float


@define(eq=False, slots=False)
class ObservedInbox:
    """An async context manager that counts an inbox every so many seconds of the inbox's clock."""

    levels: Levels
    inbox: SqliteInbox
    name: str
    every: float
    reading: _Reading | None = None
    _tasks: TaskGroup | None = None
    _watched: Observed | None = None

    async def __aenter__(self) -> None:
        self.reading = await self._read()
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        tasks.start_soon(self._keep_reading)
        self._tasks = tasks
        self._watched = self.levels.watch("inbox", self, self.name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self._tasks is not None  # noqa: S101  # it was entered
        assert self._watched is not None  # noqa: S101  # it was entered
        self._watched.close()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # what the block raised is not the task's to wrap

    async def _read(self) -> _Reading:
        return _Reading(await self.inbox.counts(), await self.inbox.lag())

    async def _keep_reading(self) -> None:
        while True:
            await self.inbox.clock.sleep(self.every)
            try:
                self.reading = await self._read()
            except Exception:
                self.reading = None  # better no number than an old one
                logger.warning("the inbox %s could not be counted", self.inbox.path, exc_info=True)
