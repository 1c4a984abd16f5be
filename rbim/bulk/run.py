"""Run of a job as its caller holds it: enter, watch, stop, await. It locks, opens, loads and closes the journal."""

# Life of a run
#
# NEW       made by `Job.run`, `Job.resume` or `Job.retry`; entered once
# LOADING   the lock is held and the journal is open. A new job: the input is loaded. A job in the journal: it must be the
#           same one (operation, options, input, dialect), then `recover` settles the requests that an ended run left open
# RUNNING   `begin_run` is committed; the dispatcher sends (its phases: running, halted, draining)
# ENDED     `end_run` with the reason is committed, the journal is closed, the lock is released
#
# LOADING -> ENDED   stop, interrupt or an error: this run sent nothing and is not recorded
# RUNNING -> ENDED   the dispatcher returns or raises, or the block is cancelled
#
# Always true: one process at a time holds the lock; a recorded run gets its end recorded unless the process is killed
# (its `ended` is then NULL); no request is sent before the whole input is in the journal.

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint
from anyio.to_thread import run_sync

from rbim._support.task_errors import TaskErrors
from rbim._support.text import quoted
from rbim.bulk.dispatcher import Dispatcher
from rbim.bulk.journal.facts import DIALECT
from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.loading import InputDigest, batches, load_input
from rbim.bulk.journal.lock import JobLock
from rbim.bulk.pace import Pace
from rbim.bulk.progress import RunCounts
from rbim.bulk.report.reading import read_report
from rbim.clock import SystemClock
from rbim.dialect import client_document
from rbim.errors import AuthenticationError, InvalidRequest
from rbim.storage.group_commit import open_group_commit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.bulk.journal.journal import OnUnknown, RetryFilter
    from rbim.bulk.journal.loading import Rows
    from rbim.bulk.progress import Phase, Snapshot
    from rbim.bulk.report.model import Report
    from rbim.bulk.settings import RunParts
    from rbim.storage.group_commit import GroupCommit

__all__ = ["ANOTHER_JOB", "Run"]

ANOTHER_JOB = "job"
"""The field of the error that the journal holds a job with another input or other options."""

SNAPSHOT_INTERVAL = 0.5
"""Seconds between two snapshots."""


class Run:
    """One run of a job, used once: ``async with job.run(rows) as progress``, or ``report = await job.run(rows)``.

    Iterating it inside the block yields a snapshot every half second until the job ends, the last one included. Leaving the
    block waits for the end of the job; :meth:`stop` ends it early. An error or a cancellation of the block interrupts the
    job at once: requests in flight stay open in the journal, to be resumed. A refusal of the credentials, or an exception
    of the sender that is not an error of rbim, ends the job, and the block raises it.
    """

    def __init__(
        self,
        parts: RunParts,
        *,
        rows: Rows | None = None,
        on_unknown: OnUnknown = "auto",
        retried: RetryFilter | None = None,
        limit: int | None = None,
    ) -> None:
        if limit is not None and (not isinstance(cast("object", limit), int) or isinstance(limit, bool) or limit < 1):
            raise InvalidRequest(f"limit: use a number of accounts, at least 1, not {quoted(limit)}", field="limit")
        self._parts = parts
        self._settings_as_json = {**parts.settings.as_json(), DIALECT: client_document(parts.work.dialect)}
        self._rows = rows
        self._on_unknown: OnUnknown = on_unknown
        self._retried = retried
        self._limit = limit
        self._entered: AbstractAsyncContextManager[None] | None = None
        self._ended = anyio.Event()
        self._dispatcher: Dispatcher | None = None
        self._scope = anyio.CancelScope()
        self._input = InputDigest()
        self._counts = RunCounts(self._input, {}, parts.clock.monotonic())
        self._pace = Pace(
            rates=parts.settings.rates, concurrency=parts.settings.concurrency, adaptive=parts.settings.adaptive
        )
        self._end_yielded = False
        self.why = ""
        """Reason of the end of the run.

        ``done``, ``stopped``, ``interrupted``, ``fuse`` (the failure limit), ``not connected`` (there was never a
        connection), ``no answer`` (for ``patience`` seconds), ``no progress`` (no account was settled for ``patience``
        seconds, such as by endless throttling), ``authentication`` or ``error``; empty while the job loads,
        ``interrupted`` while it runs.
        """

    # Public interface.

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("a run can be entered once: make another with job.run() or job.resume()")
        self._entered = self._run_block()
        await self._entered.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        assert self._entered is not None  # noqa: S101  # it was entered
        return await self._entered.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, Any, Report]:
        return self._run_and_report().__await__()

    async def _run_and_report(self) -> Report:
        async with self:
            pass
        return await run_sync(read_report, self._parts.journal)

    def __aiter__(self) -> AsyncIterator[Snapshot]:
        return self

    async def __anext__(self) -> Snapshot:
        if self._end_yielded:
            raise StopAsyncIteration
        with self._parts.clock.scope(SNAPSHOT_INTERVAL):
            await self._ended.wait()
        self._end_yielded = self._ended.is_set()
        return self.snapshot

    @property
    def began(self) -> bool:
        """Whether the input was loaded, so that requests may have been sent."""
        return self._dispatcher is not None

    @property
    def snapshot(self) -> Snapshot:
        """The present progress."""
        now = self._parts.clock.monotonic()
        phase: Phase = "ended" if self._ended.is_set() else "loading" if self._dispatcher is None else self._dispatcher.phase
        cause = "" if self._dispatcher is None else self._dispatcher.cause
        return self._counts.snapshot(phase, now, self._pace.concurrency(), cause, self._pace.rate)

    def stop(self) -> None:
        """End in good order: send nothing more and wait for the requests in flight."""
        if self._dispatcher is not None:
            self._dispatcher.stop()
        else:  # nothing was sent yet
            self.why = self.why or "stopped"
            self._scope.cancel()

    def interrupt(self) -> None:
        """End at once: requests in flight stay open in the journal."""
        self._scope.cancel()

    # The task behind it.

    @asynccontextmanager
    async def _run_block(self) -> AsyncGenerator[None, None]:
        tasks = anyio.create_task_group()
        failures = TaskErrors(tasks)
        try:
            async with tasks:
                tasks.start_soon(self._run_to_end, failures)
                with failures:
                    yield
        except anyio.get_cancelled_exc_class():
            if not failures.errors:
                raise
        if failures.errors:
            await cancel_shielded_checkpoint()  # see fan_out
            failures.raise_first()

    async def _run_to_end(self, failures: TaskErrors) -> None:
        path = self._parts.journal
        try:
            with failures, self._scope:
                if self._rows is None and not path.is_file():
                    cause = "there is no journal: check the path, or begin the job first"
                    raise InvalidRequest(f"{path}: {cause}", field="journal")
                with JobLock(path):
                    journal = Journal(path, clock=self._parts.clock)
                    async with open_group_commit(journal, threads=self._threads) as commits:
                        await self._prepare(journal, commits)
                        await self._dispatch(journal, commits)
        finally:
            self.why = self.why or "interrupted"
            self._ended.set()

    @property
    def _threads(self) -> bool:
        return isinstance(self._parts.clock, SystemClock)  # emulated time does not wait for a thread

    async def _prepare(self, journal: Journal, commits: GroupCommit) -> None:
        """Load the input, or check it against the journal and settle the requests that an ended run left open."""
        path, work, rows = journal.path, self._parts.work, self._rows
        facts = await commits.read(journal.facts)
        if facts is not None:
            facts.require_accounts(path)
        if facts is None or facts.loaded is None:
            if rows is None:
                cause = "the input was not read completely and nothing was sent: begin the job again"
                raise InvalidRequest(f"{path}: {cause}", field="journal")
            await load_input(journal, commits, work, self._settings_as_json, rows, digest=self._input, threads=self._threads)
            return
        given = {"operation": work.operation.spec.name, "chunk": work.chunk, **work.plain_options()}
        kept = {"operation": facts.operation, "chunk": facts.chunk, **facts.options}
        differences = [
            f"{name} is {kept.get(name)!r} in the journal and {given.get(name)!r} here"
            for name in dict.fromkeys([*kept, *given])
            if kept.get(name) != given.get(name)
        ]
        if rows is not None:
            found = self._input
            async with aclosing(batches(rows, threads=self._threads)) as read:
                async for batch in read:
                    found.add(batch)
            if facts.input.rows != found.rows:
                differences.append(f"its input had {facts.input.rows:,} rows, this input has {found.rows:,}")
            elif facts.input.digest != found.digest:
                differences.append("its input had different rows")
        if differences:
            raise InvalidRequest(f"{path} holds another job: {'; '.join(differences)}", field=ANOTHER_JOB)
        facts.require_dialect(path, work.dialect)
        await commits.run(partial(journal.recover, self._on_unknown, self._parts.settings.resend_within))
        if self._retried is not None:
            await commits.run(partial(journal.retry, self._retried))

    async def _dispatch(self, journal: Journal, commits: GroupCommit) -> None:
        parts = self._parts
        with anyio.CancelScope(shield=True):  # a recorded run must get its end
            loaded, counts = await commits.run(partial(journal.begin_run, self._settings_as_json))
            self._counts = RunCounts(loaded, counts, parts.clock.monotonic())
        self._dispatcher = Dispatcher(
            parts, journal=journal, commits=commits, pace=self._pace, counts=self._counts, limit=self._limit
        )
        self.why = "interrupted"
        try:
            self.why = await self._dispatcher.run()
        except Exception as error:
            self.why = "authentication" if isinstance(error, AuthenticationError) else "error"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await commits.run(partial(journal.end_run, self.why))
