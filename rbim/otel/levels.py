"""Levels of clients, jobs, receivers and inboxes: gauges and counters that are read whenever metrics are collected.

They are read in the thread that collects. Several objects with the same attributes are one series: what can be added up is
added up, and of ages and times the longest counts.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import anyio
from attrs import define, frozen
from opentelemetry.metrics import Observation

from rbim.otel.metrics import Sources

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType
    from typing import Self

    from anyio.abc import TaskGroup
    from opentelemetry.metrics import CallbackOptions, Meter

    from rbim.bulk.progress import Snapshot
    from rbim.callbacks.inbox.protocols import Archive, Counts
    from rbim.client.shared import Load
    from rbim.otel.attributes import Attributes
    from rbim.otel.metrics import Provider

__all__ = ["LEVELS", "InboxReading", "Level", "Levels", "Observed", "Polled"]

logger = logging.getLogger("rbim")

Series = frozenset[tuple[str, object]]
"""The attributes of a series as a key."""


class Level(NamedTuple):
    """A metric that is read on collection: its name, unit, description and kind of source.

    ``read`` takes the source and returns one number, a number for each ``state``, or None for no value now. With ``grows``
    the metric is a counter, else a gauge. Of several sources in one series the numbers are added, or the ``longest`` time
    counts.
    """

    name: str
    unit: str
    description: str
    source: str
    read: Callable[[Any], float | dict[str, float] | None]
    grows: bool = False
    longest: bool = False


def _rows(now: Snapshot) -> dict[str, float]:
    return {name: getattr(now, name) for name in ROWS}


def _events(now: InboxReading) -> dict[str, float]:
    return {name: getattr(now.counts, name) for name in ("waiting", "done", "dead", "quarantined")}


def _of_client(read: Callable[[Load], float]) -> Callable[[Any], float]:
    return lambda client: read(client.load)


def _of_job(read: Callable[[Snapshot], float | dict[str, float] | None]) -> Callable[[Any], Any]:
    return lambda run: read(run.snapshot)


def _of_inbox(read: Callable[[InboxReading], float | dict[str, float]]) -> Callable[[Any], Any]:
    return lambda inbox: None if inbox.reading is None else read(inbox.reading)


def _overflow(receiver: Polled) -> float | None:
    number: float | None = receiver.reading
    return number


def _of_owner(name: str) -> Callable[[Any], float | None]:
    """Of an inbox on servers, what this process does with its partitions; an inbox in a file has none."""
    return lambda inbox: getattr(inbox.target, name, None)


ROWS = ("waiting", "done", "refused", "failed", "unknown", "skipped", "duplicate")
REQUEST, CALL, ROW, PARTITION = "{request}", "{call}", "{row}", "{partition}"

PATIENCE = 10.0
"""Seconds for the reading of what is on servers."""

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
    Level(
        "rbim.client.oldest", "s", "Age of the oldest waiting call.", "client", _of_client(lambda n: n.oldest), longest=True
    ),
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
        longest=True,
    ),
    Level("rbim.client.calls", CALL, "Calls in progress, including waiting ones.", "client", _of_client(lambda n: n.calls)),
    Level(
        "rbim.client.retries_left",
        REQUEST,
        "Retries left in the retry budget.",
        "client",
        _of_client(lambda n: n.retries_left),
    ),
    Level(
        "rbim.client.halted",
        "s",
        "Time until requests may be sent again.",
        "client",
        _of_client(lambda n: n.halted),
        longest=True,
    ),
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
    Level(
        "rbim.job.eta", "s", "Estimated time until the job ends, if known.", "job", _of_job(lambda n: n.eta), longest=True
    ),
    Level(
        "rbim.receiver.overflow",
        "{delivery}",
        "Deliveries that wait in the overflow file.",
        "receiver",
        _overflow,
    ),
    Level("rbim.inbox.events", "{event}", "Events of the inbox by state.", "inbox", _of_inbox(_events)),
    Level("rbim.inbox.lag", "s", "Age of the oldest waiting event.", "inbox", _of_inbox(lambda n: n.lag), longest=True),
    Level("rbim.inbox.partitions", PARTITION, "Partitions that this process owns.", "inbox", _of_owner("owned")),
    Level(
        "rbim.inbox.takeovers",
        PARTITION,
        "Partitions that this process took over from silent workers.",
        "inbox",
        _of_owner("takeovers"),
        grows=True,
    ),
)


class Levels:
    """What is observed: clients, jobs, receivers, inboxes. Weakly: a collected one is no longer reported."""

    def __init__(self, meter: Meter, provider: Provider) -> None:
        self._provider = provider
        for level in LEVELS:
            create = meter.create_observable_counter if level.grows else meter.create_observable_gauge
            create(level.name, [_Readings(level, provider)], level.unit, level.description)

    def observe(self, source: str, target: object, attributes: Attributes, identity: object = None) -> Observed:
        """Report the levels of a target whenever metrics are collected.

        Within a series each ``identity`` (default: the target) is counted once.
        """
        observed = Observed(
            source, ref(target, lambda _: observed.close()), ref(target if identity is None else identity), attributes
        )
        OBSERVED.add(observed, self._provider)
        return observed


@frozen(eq=False)
class Observed:
    """A handle of a reported target: :meth:`close` it, or leave its ``with`` block, to stop the reports."""

    source: str
    target: ref[Any]
    identity: ref[Any]
    attributes: Attributes

    def close(self) -> None:
        """Stop the reports."""
        OBSERVED.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


OBSERVED: Sources[Observed] = Sources()
"""The targets of every observer in the process."""


def _after_fork() -> None:
    """Forget what is of the parent process: all but clients, which may be entered here."""
    for observed, _ in OBSERVED.everything():
        if observed.source != "client":
            observed.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Readings:
    """The callback of one level: reads all targets of a provider, and combines those of one series."""

    def __init__(self, level: Level, provider: Provider) -> None:
        self._level = level
        self._provider = provider
        self._totals: dict[Series, float] = {}
        self._last: dict[tuple[Series, ref[Any]], float] = {}

    def __call__(self, _: CallbackOptions) -> list[Observation]:
        read: dict[Series, dict[ref[Any], float]] = {}
        attributes: dict[Series, Attributes] = {}
        for observed in OBSERVED.of(self._provider):
            target = observed.target()
            if observed.source != self._level.source or target is None:
                continue
            for its, value in _values(self._level.read(target), observed.attributes):
                series = frozenset(its.items())
                attributes[series] = its
                read.setdefault(series, {})[observed.identity] = value
        combined = self._grown(read) if self._level.grows else {key: self._combined(each) for key, each in read.items()}
        return [Observation(value, attributes[series]) for series, value in combined.items()]

    def _combined(self, values: dict[ref[Any], float]) -> float:
        return max(values.values()) if self._level.longest else sum(values.values())

    def _grown(self, read: dict[Series, dict[ref[Any], float]]) -> dict[Series, float]:
        """Add up counters. The sum does not fall when one of several targets is gone."""
        last, self._last = self._last, {(key, who): value for key, each in read.items() for who, value in each.items()}
        self._totals = {
            key: self._totals.get(key, 0) + sum(max(0, value - last.get((key, who), 0)) for who, value in each.items())
            for key, each in read.items()
        }
        return self._totals


def _values(value: float | dict[str, float] | None, attributes: Attributes) -> Iterator[tuple[Attributes, float]]:
    if isinstance(value, dict):
        for state, number in value.items():
            yield {**attributes, "rbim.state": state}, number
    elif value is not None:
        yield attributes, value


# Overflow files and inboxes are files and servers. They are read by a task, not by the thread that collects metrics.


@frozen
class InboxReading:
    """The numbers of an inbox."""

    counts: Counts
    lag: float

    @classmethod
    async def of(cls, inbox: Archive) -> Self:
        """Read an inbox."""
        counts = await inbox.counts()
        return cls(counts, await inbox.lag() if counts.waiting else 0.0)  # servers are asked about each partition


@define(eq=False, slots=False, kw_only=True)
class Polled:
    """An async context manager that reads a target every ``every`` seconds of ``sleep``, and reports the last reading.

    The first reading is made on entering, so that entering raises its error; of a ``remote`` target it is made later, and
    none takes longer than PATIENCE. While ``ready`` is False nothing is read, and there is no value. Without ``every``
    nothing is ever read: only levels are reported that the target itself knows.
    """

    levels: Levels
    source: str
    target: Any
    attributes: Attributes
    every: float | None
    read: Callable[[], Awaitable[Any]]
    sleep: Callable[[float], Awaitable[None]]
    label: object
    remote: bool = False
    ready: Callable[[], bool] = lambda: True
    reading: Any = None
    _tasks: TaskGroup | None = None
    _observed: Observed | None = None

    async def __aenter__(self) -> None:
        if self.every is not None and not self.remote:
            self.reading = await self.read()
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        if self.every is not None:
            tasks.start_soon(self._keep_reading, self.every)
        self._tasks = tasks
        self._observed = self.levels.observe(self.source, self, self.attributes, self.target)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self._tasks is not None  # noqa: S101  # it was entered
        assert self._observed is not None  # noqa: S101  # it was entered
        self._observed.close()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # an error of the block is not passed on: the group would wrap it

    async def _keep_reading(self, every: float) -> None:
        if self.remote:
            await self._read_again()
        while True:
            await self.sleep(every)
            await self._read_again()

    async def _read_again(self) -> None:
        if not self.ready():
            self.reading = None
            return
        try:
            with anyio.fail_after(PATIENCE if self.remote else None):
                self.reading = await self.read()
        except Exception:
            self.reading = None  # no value is better than an old one
            logger.warning(
                "the %s %s could not be counted; its metrics have no value until the next try",
                self.source,
                self.label,
                exc_info=True,
            )
