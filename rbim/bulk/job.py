"""Jobs: an operation for each account of an input of any length, with a journal that survives whatever happens."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from anyio.to_thread import run_sync
from attrs import frozen

from rbim.bulk.journal.journal import Journal, OnUnknown
from rbim.bulk.journal.loading import Loader, batches
from rbim.bulk.progress import FailureLimit
from rbim.bulk.report.reading import read_report
from rbim.bulk.run import Run, RunParts
from rbim.bulk.settings import JobSettings
from rbim.bulk.states import AccountState
from rbim.bulk.work import Work
from rbim.client.client import View
from rbim.client.retry import Retry
from rbim.clock import SystemClock
from rbim.dialect import Dialect
from rbim.errors import InvalidRequest
from rbim.operations import catalogue
from rbim.operations.groups import DeleteGroupMember, Invited, InviteJoinGroup, Success

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike

    from rbim.bulk.journal.journal import JobFacts
    from rbim.bulk.journal.loading import Rows
    from rbim.bulk.report.model import Report
    from rbim.client.limits import Rate
    from rbim.clock import Clock
    from rbim.operations.base import Operation
    from rbim.operations.namespace import Sender

__all__ = ["Estimate", "InviteJob", "Job", "RemoveJob", "job_facts", "open_job"]

R = TypeVar("R")

HOUR = 3600.0


@frozen(kw_only=True)
class Estimate:
    """What a job would be: its rows, those that cannot be used, duplicates, groups, and the requests for all the others.

    ``seconds`` is what the configured rates alone make them last; None without a rate.
    """

    rows: int
    bad: int
    duplicates: int
    groups: int
    requests: int
    seconds: float | None


class Job(Generic[R]):
    """``operation`` for every row of an input: a group, an account, and the account that acts if the row names one.

    ::

        job = Job(client, DeleteGroupMember, journal="leavers.journal")
        async with job.run(rows) as progress:
            async for snapshot in progress:
                print(snapshot.done, "of", snapshot.total)
        report = await job.report()

    The rows go into the ``journal`` first, a file on a local disk; then requests of at most ``chunk`` accounts (the
    dialect's ``invite_limit``; 1 where the operation takes one account) are sent, the groups in turn, each recorded before
    and after. ``options`` are further fields of every operation. ``sender`` is a client, a view of one, or anything that
    sends; retries are the job's own, so that a client's are switched off. ``dialect`` and ``clock`` are the client's unless
    told.

    At most ``concurrency`` requests are in flight (100), at most so many as every one of ``rates`` allows, and with
    ``adaptive`` no more than the platform bears. More failed requests than ``max_failures``, a count or a share (0.5; None:
    no matter how many), or no answer for ``patience`` seconds (120), end the run. With ``isolate`` so many requests may be
    spent on halving those that were refused, to find the account to blame. ``retry`` (5 attempts) says how a request of
    unknown outcome is repeated that may be. Requests that a killed run has left open are sent again if they are younger than
    ``resend_within`` seconds (0: they are reported as unknown).

    A job is resumed from its journal alone. Raises InvalidRequest.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        sender: Sender,
        operation: type[Operation[R]],
        *,
        journal: str | PathLike[str],
        options: Mapping[str, Any] | None = None,
        chunk: int | None = None,
        rates: Iterable[Rate] = (),
        concurrency: int = 100,
        adaptive: bool = True,
        max_failures: float | None = 0.5,
        patience: float = 120.0,
        isolate: int = 0,
        retry: Retry | None = None,
        resend_within: float = 0.0,
        dialect: Dialect | None = None,
        clock: Clock | None = None,
    ) -> None:
        client = sender if isinstance(sender, View) else None
        told: dict[str, Any] = {} if chunk is None else {"chunk": chunk}
        self.work: Work[R] = Work(
            operation=operation,
            options=dict(options or {}),
            dialect=dialect or (client.dialect if client is not None else Dialect()),
            **told,
        )
        self.settings = JobSettings(
            rates=tuple(rates),
            concurrency=concurrency,
            adaptive=adaptive,
            fuse=FailureLimit(max_failures),
            patience=patience,
            isolate=isolate,
            retry=retry or Retry(attempts=5),
            resend_within=resend_within,
        )
        self.journal = Path(journal).absolute()
        self._clock = clock or (client.clock if client is not None else SystemClock())
        self._sender = sender if client is None else client.tuned(retry=Retry(attempts=1))

    def _parts(self) -> RunParts:
        return RunParts(
            work=self.work,
            settings=self.settings,
            sender=self._sender,
            journal=self.journal,
            clock=self._clock,
        )

    def run(self, rows: Rows, on_unknown: OnUnknown = "auto") -> Run:
        """Return the run of the whole job; use it with ``async with``, or await it for its report.

        ``rows`` is a :class:`~rbim.bulk.RowFile` or any iterable, asynchronous ones included, of ``(group,
        account)`` or ``(group, account, acting account)``. Where the journal holds this very job already, it goes on; where
        it holds another one, InvalidRequest says what differs. ``on_unknown`` is that of :meth:`resume`.
        """
        return Run(self._parts(), rows=rows, on_unknown=on_unknown)

    def resume(self, on_unknown: OnUnknown = "auto") -> Run:
        """Return a run of what is left to do of the job in the journal.

        What an ended run has left open is sent again (``resend``), or reported as unknown (``report``); ``auto`` decides by
        ``resend_within``. Its block raises InvalidRequest where there is nothing to resume.
        """
        return Run(self._parts(), on_unknown=on_unknown)

    def retry(self, *, failed: bool = True, unknown: bool = True) -> Run:
        """Return a run that sends again only accounts that have failed, only those that are unknown, or both.

        Its block raises InvalidRequest where others still wait: resume the job first.
        """
        states = [state for state, wanted in ((AccountState.FAILED, failed), (AccountState.UNKNOWN, unknown)) if wanted]
        if not states:
            raise InvalidRequest("retry: failed accounts, unknown ones or both are meant, not neither", field="failed")
        return Run(self._parts(), retried=states)

    async def report(self) -> Report:
        """Return what has become of the job so far."""
        return await run_sync(read_report, self.journal)

    async def estimate(self, rows: Rows) -> Estimate:
        """Return what the job would be, without a journal and without sending anything.

        The rows go into a temporary file meanwhile, since duplicates must be found.
        """
        with TemporaryDirectory(prefix="rbim-") as folder:
            journal = Journal(Path(folder) / "journal", clock=self._clock)
            journal.open()
            try:
                loader = Loader(journal.database)
                async with aclosing(batches(rows)) as read:
                    async for batch in read:
                        await run_sync(journal.commit, [partial(loader.add, batch)])
                groups, requests = await run_sync(journal.planned, self.work.chunk)
            finally:
                journal.close()
        loaded = loader.loaded
        seconds = max((_lasts(rate, requests) for rate in self.settings.rates if not rate.each_group), default=None)
        return Estimate(
            rows=loaded.rows,
            bad=loaded.bad,
            duplicates=loaded.duplicates,
            groups=groups,
            requests=requests,
            seconds=seconds,
        )


def _lasts(rate: Rate, requests: int) -> float:
    return max(0, requests - rate.burst) * rate.per / rate.limit


class InviteJob(Job[Invited]):
    """Invitations of any number of accounts into any number of groups; see :class:`Job`.

    With ``needs_confirmation`` each invitee must agree. ``declared`` is the reason, at most 50 characters, ``user_name`` the
    account that acts where a row names none. What a killed run has left open is sent again if it is younger than an hour
    and needs no confirmation.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        needs_confirmation: bool = False,
        declared: str | None = None,
        user_name: str | None = None,
        **settings: Any,  # Job's
    ) -> None:
        options = {"needs_confirmation": needs_confirmation, "declared": declared, "user_name": user_name}
        settings.setdefault("resend_within", 0.0 if needs_confirmation else HOUR)
        super().__init__(sender, InviteJoinGroup, options=options, **settings)


class RemoveJob(Job[Success]):
    """Removals of any number of members from any number of groups; see :class:`Job`.

    ``user_name`` is the account that acts where a row names none. What a killed run has left open is reported as unknown:
    somebody may have been added again meanwhile.
    """

    def __init__(self, sender: Sender, *, user_name: str | None = None, **settings: Any) -> None:  # Job's
        super().__init__(sender, DeleteGroupMember, options={"user_name": user_name}, **settings)


def open_job(sender: Sender, journal: str | PathLike[str], **settings: Any) -> Job[Any]:
    """Return the job that a journal holds, to resume or to retry it.

    It is run as it was the last time, but for ``settings``, which are those of :class:`Job`. Its operation must be declared
    (imported), where it is one of one's own. Raises InvalidRequest.
    """
    path = Path(journal).absolute()
    facts = job_facts(path)
    by_name = {entry.operation.spec.name: entry.operation for entry in catalogue.entries()}
    operation = by_name.get(facts.operation)
    if operation is None:
        raise InvalidRequest(f"{path}: nobody has declared the operation {facts.operation}", field="journal")
    dialect = settings.get("dialect") or (sender.dialect if isinstance(sender, View) else Dialect())
    work = Work[Any].of(operation, facts.options, facts.chunk, dialect)
    told = JobSettings.from_json(facts.settings, by_name) | settings
    return Job(sender, work.operation, journal=path, options=work.options, chunk=work.chunk, **told)


def job_facts(path: Path) -> JobFacts:
    """Return what a journal says of its job. Raises InvalidRequest where there is none."""
    if not path.is_file():
        raise InvalidRequest(f"{path}: no such journal", field="journal")
    journal = Journal(path, clock=SystemClock())
    journal.open()
    try:
        facts = journal.facts()
    finally:
        journal.close()
    if facts is None:
        raise InvalidRequest(f"{path}: no job was begun in it", field="journal")
    return facts
