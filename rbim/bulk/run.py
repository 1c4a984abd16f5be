"""A run of a job as its user holds it: entered, watched, stopped, awaited. It opens the journal, loads it, and closes it."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint
from anyio.to_thread import run_sync
from attrs import evolve, frozen

from rbim._support.task_errors import TaskErrors
from rbim.bulk.dispatcher import Dispatcher
from rbim.bulk.input.file import RowFile
from rbim.bulk.input.format import Format
from rbim.bulk.journal.journal import JobFacts, Journal
from rbim.bulk.journal.loading import Loaded, Loader, batches
from rbim.bulk.journal.lock import JobLock
from rbim.bulk.pace.controller import PaceController
from rbim.bulk.progress import RunCounts
from rbim.bulk.report.reading import read_report
from rbim.bulk.states import AccountState
from rbim.clock import SystemClock
from rbim.errors import AuthenticationError, InvalidRequest
from rbim.storage.group_commit import open_group_commit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from rbim.bulk.journal.journal import OnUnknown
    from rbim.bulk.journal.loading import Rows
    from rbim.bulk.progress import Phase, Snapshot
    from rbim.bulk.report.model import Report
    from rbim.bulk.settings import JobSettings
    from rbim.bulk.work import Work
    from rbim.clock import Clock
    from rbim.operations.namespace import Sender
    from rbim.storage.group_commit import GroupCommit

__all__ = ["Run", "RunParts", "source_of"]

INTERVAL = 0.5
"""Seconds between two snapshots."""

NOTHING = Loaded(rows=0, bad=0, duplicates=0, digest="")


@frozen(kw_only=True)
class RunParts:
    """What a job hands to its runs."""

    work: Work[Any]
    settings: JobSettings
    sender: Sender
    journal: Path
    clock: Clock


class Run:
    """One run of a job, used once: ``async with job.run(rows) as progress``, or ``report = await job.run(rows)``.

    Inside the block it yields a snapshot every half second until the job ends, the last one included. Leaving the block
    waits for the end of the job; :meth:`stop` brings it about. An error or a cancellation of the block interrupts the job at
    once: what is in flight stays open in the journal, to be resumed. A refusal of the credentials, or whatever a sender
    raises that is no error of rbim, ends the job and is raised by the block.
    """

    def __init__(
        self,
        parts: RunParts,
        *,
        rows: Rows | None = None,
        on_unknown: OnUnknown = "auto",
        retried: Sequence[AccountState] | None = None,
    ) -> None:
        self._parts = parts
        self._rows = rows
        self._on_unknown: OnUnknown = on_unknown
        self._retried = retried
        self._entered: AbstractAsyncContextManager[None] | None = None
        self._ended = anyio.Event()
        self._running: Dispatcher | None = None
        self._scope = anyio.CancelScope()
        self._tally = RunCounts(NOTHING, dict.fromkeys(AccountState, 0), parts.clock.monotonic())
        self._loader: Loader | None = None
        self._steering = PaceController(
            rates=parts.settings.rates, concurrency=parts.settings.concurrency, adaptive=parts.settings.adaptive
        )
        self._told_end = False
        self.why = ""
        """Why it ended: ``done``, ``stopped``, ``interrupted``, ``fuse``, ``no answer``, ``authentication`` or ``error``."""

    # What its user does with it.

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("a run is entered once; ask the job for another")
        self._entered = self._block()
        await self._entered.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        assert self._entered is not None  # noqa: S101  # it was entered
        return await self._entered.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, Any, Report]:
        return self._whole().__await__()

    async def _whole(self) -> Report:
        async with self:
            pass
        return await run_sync(read_report, self._parts.journal)

    def __aiter__(self) -> AsyncIterator[Snapshot]:
        return self

    async def __anext__(self) -> Snapshot:
        if self._told_end:
            raise StopAsyncIteration
        with self._parts.clock.scope(INTERVAL):
            await self._ended.wait()
        self._told_end = self._ended.is_set()
        return self.snapshot

    @property
    def began(self) -> bool:
        """Whether the input was read, so that something may have been sent."""
        return self._running is not None

    @property
    def snapshot(self) -> Snapshot:
        """How far it is now."""
        now = self._parts.clock.monotonic()
        phase: Phase = "ended" if self._ended.is_set() else "loading" if self._running is None else self._running.phase
        made = self._tally.snapshot(phase, now, self._steering.concurrency(now))
        return made if self._running is not None or self._loader is None else _loading(made, self._loader.loaded)

    def stop(self) -> None:
        """Let it end: nothing more is sent, what is in flight ends in its time."""
        if self._running is not None:
            self._running.stop()
        else:  # nothing was sent
            self.why = self.why or "stopped"
            self._scope.cancel()

    def interrupt(self) -> None:
        """End it at once: what is in flight stays open in the journal."""
        self._scope.cancel()

    # What happens meanwhile.

    @asynccontextmanager
    async def _block(self) -> AsyncGenerator[None, None]:
        tasks = anyio.create_task_group()
        failures = TaskErrors(tasks)
        try:
            async with tasks:
                tasks.start_soon(self._guarded, failures)
                with failures:
                    yield
        except anyio.get_cancelled_exc_class():
            if not failures.errors:
                raise
        if failures.errors:
            await cancel_shielded_checkpoint()  # see fan_out
            failures.raise_first()

    async def _guarded(self, failures: TaskErrors) -> None:
        try:
            with failures, self._scope:
                await self._locked()
        finally:
            self.why = self.why or "interrupted"
            self._ended.set()

    async def _locked(self) -> None:
        path = self._parts.journal
        if self._rows is None and not path.is_file():
            raise InvalidRequest(f"{path}: no such journal", field="journal")
        lock = JobLock(path)
        lock.acquire()
        try:
            journal = Journal(path, clock=self._parts.clock)
            async with open_group_commit(journal, threads=self._threads) as commits:
                await self._prepare(journal, commits)
                await self._carry_out(journal, commits)
        finally:
            lock.release()

    @property
    def _threads(self) -> bool:
        return isinstance(self._parts.clock, SystemClock)  # emulated time would not wait for one

    async def _prepare(self, journal: Journal, commits: GroupCommit) -> None:
        """See that the journal holds the job, its input, and nothing open."""
        facts = await commits.read(journal.facts)
        if self._rows is not None and (facts is None or facts.loaded is None):
            await self._load(journal, commits, self._rows)
            return
        if facts is None or facts.loaded is None:
            raise InvalidRequest(
                f"{journal.path}: its input was not read to its end, and nothing was sent: begin the job again",
                field="journal",
            )
        differences = self._differences(facts)
        if self._rows is not None:
            differences += _difference(facts.input, await self._digest(self._rows))
        if differences:
            raise InvalidRequest(f"{journal.path} holds another job: {'; '.join(differences)}", field="journal")
        await commits.run(partial(journal.recover, self._on_unknown, self._parts.settings.resend_within))
        if self._retried is not None:
            await self._retry(journal, commits, self._retried)

    async def _load(self, journal: Journal, commits: GroupCommit, rows: Rows) -> None:
        work = self._parts.work
        facts = JobFacts(
            operation=work.operation.spec.name,
            options=work.plain_options(),
            chunk=work.chunk,
            settings=self._parts.settings.as_json(),
            source={},
            created=0.0,
            loaded=None,
            input=NOTHING,
        )
        await commits.read(partial(journal.hasten, loading=True))
        self._loader = loader = await commits.run(partial(journal.create, facts, work.done_word))
        async with aclosing(batches(rows, threads=self._threads)) as read:
            async for batch in read:
                await commits.run(partial(loader.add, batch))
        await commits.read(partial(journal.hasten, loading=False))
        await commits.run(partial(journal.loaded, loader, source_of(rows)))

    async def _digest(self, rows: Rows) -> Loaded:
        self._loader = loader = Loader(None)
        async with aclosing(batches(rows, threads=self._threads)) as read:
            async for batch in read:
                loader.add(batch)
        return loader.loaded

    def _differences(self, facts: JobFacts) -> list[str]:
        work = self._parts.work
        told = {"operation": work.operation.spec.name, "chunk": work.chunk, **work.plain_options()}
        kept = {"operation": facts.operation, "chunk": facts.chunk, **facts.options}
        names = dict.fromkeys([*kept, *told])
        return [
            f"{name} is {kept.get(name)!r} there and {told.get(name)!r} here"
            for name in names
            if kept.get(name) != told.get(name)
        ]

    async def _retry(self, journal: Journal, commits: GroupCommit, states: Sequence[AccountState]) -> None:
        counts = await commits.read(journal.counts)
        waiting = counts[AccountState.WAITING] + counts[AccountState.AGAIN]
        if waiting:
            raise InvalidRequest(
                f"{journal.path}: {waiting:,} accounts have not been sent yet: resume the job first", field="journal"
            )
        await commits.run(partial(journal.retry, states))

    async def _carry_out(self, journal: Journal, commits: GroupCommit) -> None:
        parts = self._parts
        counts = await commits.read(journal.counts)
        facts = await commits.read(journal.facts)
        assert facts is not None  # noqa: S101  # it was made or found
        with anyio.CancelScope(shield=True):  # a run that was begun is ended
            await commits.run(partial(journal.begin_run, parts.settings.as_json()))
        self._tally = RunCounts(facts.input, counts, parts.clock.monotonic())
        self._running = Dispatcher(
            work=parts.work,
            sender=parts.sender,
            journal=journal,
            commits=commits,
            steering=self._steering,
            tally=self._tally,
            settings=parts.settings,
            clock=parts.clock,
        )
        self.why = "interrupted"
        try:
            self.why = await self._running.run()
        except AuthenticationError:
            self.why = "authentication"
            raise
        except Exception:
            self.why = "error"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await commits.run(partial(journal.end_run, self.why))


def source_of(rows: Rows) -> dict[str, Any]:
    """Return what the journal keeps of where rows came from: a name, and the format to write such rows in."""
    if isinstance(rows, RowFile):
        path = {} if rows.path is None else {"path": str(rows.path)}
        return {"name": rows.name, **path, "format": rows.format.to_json()}
    return {"name": "rows", "format": Format(kind="csv").to_json()}


def _difference(kept: Loaded, given: Loaded) -> list[str]:
    if kept.digest == given.digest:
        return []
    if kept.rows != given.rows:
        return [f"its input had {kept.rows:,} rows, this one has {given.rows:,}"]
    return ["its input had other rows than this one"]


def _loading(snapshot: Snapshot, loaded: Loaded) -> Snapshot:
    waiting = loaded.rows - loaded.bad - loaded.duplicates
    return evolve(snapshot, total=loaded.rows, waiting=waiting, skipped=loaded.bad, duplicate=loaded.duplicates)
