"""Jobs: one operation for each account of an input of any length, with a journal that survives crashes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from anyio.to_thread import run_sync
from attrs import field, frozen

from rbim.bulk.journal.facts import DIALECT, job_facts
from rbim.bulk.journal.journal import Journal, OnUnknown, RetryFilter
from rbim.bulk.journal.loading import InputDigest, load_input
from rbim.bulk.report.reading import read_report
from rbim.bulk.run import Run
from rbim.bulk.settings import JobSettings, RunParts
from rbim.bulk.work import AccountState, Work, options_of
from rbim.client.client import View
from rbim.client.retry import Retry
from rbim.clock import SystemClock
from rbim.dialect import Dialect
from rbim.errors import InvalidRequest
from rbim.operations import catalogue
from rbim.operations.groups import DeleteGroupMember, Invited, InviteJoinGroup, Success
from rbim.storage.group_commit import open_group_commit
from rbim.validators import require, require_clock, require_methods, require_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike
    from typing import Unpack

    from rbim.bulk.journal.loading import Rows
    from rbim.bulk.report.model import Report
    from rbim.bulk.settings import JobOptions, RunOptions
    from rbim.operations.base import Operation
    from rbim.operations.namespace import Sender

__all__ = ["Estimate", "InviteJob", "Job", "RemoveJob", "open_job"]

R = TypeVar("R")

HOUR = 3600.0


@frozen(kw_only=True)
class Estimate:
    """Size of a job: rows, rows that cannot be used, duplicates, groups, and requests for the remaining rows.

    ``seconds``: the shortest time that the configured rates allow; None without a rate for all groups.
    ``accounts_by_group``: the accounts to send for each group.
    """

    rows: int
    bad: int
    duplicates: int
    groups: int
    requests: int
    seconds: float | None
    accounts_by_group: Mapping[str, int] = field(repr=False)


class Job(Generic[R]):
    """Run ``operation`` for every row of an input: a group, an account, and optionally the acting account.

    ::

        job = Job(client, DeleteGroupMember, journal="leavers.journal")
        async with job.run(rows) as progress:
            async for snapshot in progress:
                print(snapshot.done, "of", snapshot.total)
        report = await job.report()

    The rows are stored in the ``journal`` first, a file on a local disk. Then requests of at most ``chunk`` accounts
    (default: the dialect's ``invite_limit``; 1 if the operation takes one account) are sent, the groups in turn, and each
    is recorded before and after.

    ``options``: values of the operation's other fields, for all rows. ``sender``: a client, a view of one, or an object
    with ``async def send(operation)``; a client's own retries are switched off, the job does them. ``dialect`` and
    ``clock`` default to the client's.

    ``concurrency``: requests in flight, at most (default: 100). ``rates``: limits of requests, all of which apply (default:
    none); each is a :class:`~rbim.Rate` or a text such as ``50/s``. ``adaptive``: slow down below both as the platform
    requires (default: True). The run ends early when more requests have failed than ``max_failures``, a count or a share
    of the latest requests (default: 0.5; None: no limit), when no answer came or no account was settled for ``patience``
    seconds (default: 120), or after 18 seconds without any connection. A group that is gone or full is closed: its other
    accounts are not sent, and have failed. ``isolate``: the requests that may be spent on halving refused requests, to find
    the accounts to blame (default: 0). ``retry``: how often a request of unknown outcome is sent again if it may be repeated
    (default: 5 attempts). ``resend_within``: requests that a killed run left open are sent again if they are younger than so
    many seconds (default: 0, they are reported as unknown).

    A job can be resumed from its journal alone, with the same dialect. Raises InvalidRequest.
    """

    def __init__(
        self,
        sender: Sender,
        operation: type[Operation[R]],
        *,
        journal: str | PathLike[str],
        options: Mapping[str, Any] | None = None,
        **settings: Unpack[JobOptions],
    ) -> None:
        require_methods("sender", sender, ("send",), "a client, or an object with `async def send(operation)`,")
        if not isinstance(cast("object", operation), type) or getattr(operation, "spec", None) is None:
            require("operation", operation, (), "an operation's class, such as InviteJoinGroup,")
        require_path("journal", journal)
        if options is not None:
            require("options", options, Mapping, "a mapping of fields to values")
        given: dict[str, Any] = {**settings}
        chunk, dialect, clock = (given.pop(name, None) for name in ("chunk", "dialect", "clock"))
        if dialect is not None:
            require("dialect", dialect, Dialect, "Dialect(...)")
        if clock is not None:
            require_clock(clock)
        client = sender if isinstance(sender, View) else None
        self.work: Work[R] = Work(
            operation=operation,
            options=dict(options or {}),
            dialect=dialect or (client.dialect if client is not None else Dialect()),
            **({} if chunk is None else {"chunk": chunk}),
        )
        self.settings = JobSettings(**given)
        self.journal = Path(journal).absolute()
        self._parts = RunParts(
            work=self.work,
            settings=self.settings,
            sender=sender if client is None else client.tuned(retry=Retry(attempts=1)),
            journal=self.journal,
            clock=clock or (client.clock if client is not None else SystemClock()),
        )

    def run(self, rows: Rows, on_unknown: OnUnknown = "auto", *, limit: int | None = None) -> Run:
        """Return a run of the whole job; use it with ``async with``, or await it for its report.

        ``rows``: a :class:`~rbim.bulk.RowFile` or any iterable, also an asynchronous one, of ``(group, account)`` or
        ``(group, account, acting account)``. If the journal holds this job already, the run continues it; if it holds
        another job, the block raises InvalidRequest with the differences. ``on_unknown``: see :meth:`resume`. ``limit``:
        accounts that this run begins at most (default: None, all); the journal holds all, :meth:`resume` sends the rest.
        """
        return Run(self._parts, rows=rows, on_unknown=on_unknown, limit=limit)

    def resume(self, on_unknown: OnUnknown = "auto", *, limit: int | None = None) -> Run:
        """Return a run of the rest of the job in the journal.

        ``on_unknown`` decides about requests that an ended run left open: ``resend``, ``report`` (as unknown), or ``auto``
        (default: by ``resend_within``). ``limit``: see :meth:`run`. The block raises InvalidRequest if there is nothing to
        resume.
        """
        return Run(self._parts, on_unknown=on_unknown, limit=limit)

    def retry(
        self,
        *,
        failed: bool = True,
        unknown: bool = True,
        refused: bool = False,
        reasons: Iterable[str] = (),
        groups: Iterable[str] = (),
    ) -> Run:
        """Return a run that sends accounts again: failed ones and unknown ones (default), or refused ones.

        ``reasons``: only accounts with one of these reasons, each the whole text or the code that the report has.
        ``groups``: only accounts of these groups. The block raises InvalidRequest while other accounts still wait (resume
        the job first), and if no account has one of the reasons and groups.
        """
        selected = ((AccountState.FAILED, failed), (AccountState.UNKNOWN, unknown), (AccountState.REFUSED, refused))
        states = tuple(state for state, wanted in selected if wanted)
        if not states:
            raise InvalidRequest(
                "retry: neither failed nor unknown nor refused was selected: use failed=True, for example", field="failed"
            )
        selection = RetryFilter(states, _texts("reasons", reasons), _texts("groups", groups))
        return Run(self._parts, retried=selection)

    async def report(self) -> Report:
        """Return the report of the job so far."""
        return await run_sync(read_report, self.journal)

    async def estimate(self, rows: Rows) -> Estimate:
        """Return the size of the job, without a journal and without sending anything.

        The rows go into a temporary file for the search for duplicates.
        """
        from tempfile import TemporaryDirectory

        with TemporaryDirectory(prefix="rbim-") as folder:
            journal = Journal(Path(folder) / "journal", clock=self._parts.clock)
            found = InputDigest()
            async with open_group_commit(journal) as commits:
                await load_input(journal, commits, self.work, {}, rows, digest=found)
                sizes, requests = await commits.read(journal.planned)
        seconds = (
            max(0, requests - rate.burst) * rate.per / rate.limit for rate in self.settings.rates if not rate.each_group
        )
        return Estimate(
            rows=found.rows,
            bad=found.bad,
            duplicates=found.duplicates,
            groups=len(sizes),
            requests=requests,
            seconds=max(seconds, default=None),
            accounts_by_group=sizes,
        )


def _texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    form = 'a list of texts, such as ["no such account"]'
    require_methods(name, values, ("__iter__",), form)
    texts = tuple(values)
    if isinstance(values, str):
        require(name, values, (), form)
    for each in texts:
        require(name, each, str, form)
    return texts


class InviteJob(Job[Invited]):
    """Invite any number of accounts into any number of groups; see :class:`Job`.

    ``needs_confirmation``: each invitee must agree (default: False). ``declared``: the reason, at most 50 characters.
    ``user_name``: the acting account of rows without one. Requests that a killed run left open are sent again if they are
    younger than an hour and need no confirmation.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        journal: str | PathLike[str],
        needs_confirmation: bool = False,
        declared: str | None = None,
        user_name: str | None = None,
        **settings: Unpack[JobOptions],
    ) -> None:
        options = {"needs_confirmation": needs_confirmation, "declared": declared, "user_name": user_name}
        settings.setdefault("resend_within", 0.0 if needs_confirmation else HOUR)
        super().__init__(sender, InviteJoinGroup, journal=journal, options=options, **settings)


class RemoveJob(Job[Success]):
    """Remove any number of members from any number of groups; see :class:`Job`.

    ``user_name``: the acting account of rows without one. Requests that a killed run left open are reported as unknown: the
    account may have been added again meanwhile.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        journal: str | PathLike[str],
        user_name: str | None = None,
        **settings: Unpack[JobOptions],
    ) -> None:
        super().__init__(sender, DeleteGroupMember, journal=journal, options={"user_name": user_name}, **settings)


def open_job(sender: Sender, journal: str | PathLike[str], **settings: Unpack[RunOptions]) -> Job[Any]:
    """Return the job that a journal holds, to resume or to retry it.

    It keeps the settings of its last run, except ``settings``, which are those of :class:`Job`. ``dialect`` defaults to the
    client's, and for a sender that is no client to the journal's. An operation of your own must be declared (imported)
    first. Raises InvalidRequest, also if the job was begun with another dialect.
    """
    require_path("journal", journal)
    path = Path(journal).absolute()
    facts = job_facts(path)
    facts.require_accounts(path)
    by_name = {entry.operation.spec.name: entry.operation for entry in catalogue.entries()}
    operation = by_name.get(facts.operation)
    if operation is None:
        raise InvalidRequest(
            f"{path}: unknown operation {facts.operation}: import the module that declares it", field="journal"
        )
    dialect = settings.pop("dialect", None) or (
        sender.dialect if isinstance(sender, View) else Dialect.from_document(facts.settings.get(DIALECT, {}))
    )
    facts.require_dialect(path, dialect)
    given: dict[str, Any] = JobSettings.from_json(facts.settings, by_name) | {**settings}
    options = options_of(operation, facts.options)
    return Job(sender, operation, journal=path, options=options, chunk=facts.chunk, dialect=dialect, **given)
