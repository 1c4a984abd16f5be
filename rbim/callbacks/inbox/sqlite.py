"""The durable inbox: an SQLite file that threads and processes of one machine can share."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
from anyio import move_on_after
from attrs import Factory, define, field, setters

from rbim._support.event_loops import waker
from rbim.callbacks.inbox.arguments import LARGEST, epoch, event_filter, numbers_of, page
from rbim.callbacks.inbox.statements import InboxStore
from rbim.callbacks.inbox.tables import INBOX
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest
from rbim.storage.commands import OneOfMany
from rbim.storage.group_commit import open_group_commit
from rbim.timeouts import unshielded
from rbim.validators import above_zero, or_none

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
    from datetime import datetime
    from os import PathLike
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.events.types import Event
    from rbim.callbacks.inbox.protocols import Backlog, Claim, Counts, DeadLetter, OtherContent
    from rbim.clock import Clock
    from rbim.storage.group_commit import Chain, GroupCommit
    from rbim.storage.sqlite import FileKind

__all__ = ["WEEK", "SqliteInbox"]

WEEK = 7 * 24 * 3600.0  # seconds
STEP = 500  # events that one transaction requeues or deletes
SPAN = 20_000  # numbers among which one search counts


def _path(given: str | PathLike[str]) -> Path:
    try:
        text = Path(given)
    except TypeError:
        text = Path()
    if not text.name:
        raise InvalidRequest(f"path: pass the path of a file, not {given!r}", field="path")
    return text.absolute()  # so that a change of the working directory does not change the file


def _clock(given: Clock | None) -> Clock:
    return SystemClock() if given is None else given


def _store(inbox: SqliteInbox) -> InboxStore:
    return InboxStore(
        inbox.path,
        retention=inbox.retention,
        dead_retention=inbox.dead_retention,
        lease=inbox.lease,
        clock=inbox.clock,
        kind=inbox.kind,
    )


@define(eq=False, on_setattr=setters.frozen)
class SqliteInbox:
    """An inbox in an SQLite file, created if missing (its directory must exist). For asyncio and trio.

    ``retention``: seconds after handling for which resends of an event are recognised (default: 7 days). The event is
    deleted and overwritten an hour later, while a worker or receiver runs. ``dead_retention``: seconds for which dead
    letters and events in quarantine are kept (default: None, until they are replayed, requeued or discarded); they are
    deleted within minutes, 500 a minute at most. ``lease``: seconds that a claim holds without renewal (default: 30).
    ``poll``: seconds between two checks for changes by other processes (default: 0.25). Due times, leases and the
    retention use ``clock``; all processes that share the file should agree on the time.

    Accepted events survive a crash of the process and of the machine. Entering opens the file and raises InvalidRequest if
    it belongs to another application or a newer rbim, or is not a database. Leaving completes pending transactions. Except
    for :meth:`backlog`, its methods are for the event loop that entered it.
    """

    kind: ClassVar[FileKind] = INBOX  # its mark and its tables
    path: Path = field(converter=_path)
    retention: float = field(default=WEEK, kw_only=True, validator=above_zero)
    dead_retention: float | None = field(default=None, kw_only=True, validator=or_none(above_zero))
    lease: float = field(default=30.0, kw_only=True, validator=above_zero)
    poll: float = field(default=0.25, kw_only=True, validator=above_zero)
    clock: Clock = field(default=None, kw_only=True, converter=_clock, repr=False)
    _store: InboxStore = field(init=False, repr=False, default=Factory(_store, takes_self=True))
    _accept_all: Callable[[Sequence[Delivery]], Sequence[bool | OtherContent]] = field(
        init=False, repr=False, default=Factory(lambda self: self._store.accept_all, takes_self=True)
    )
    _entered: AsyncExitStack | None = field(init=False, repr=False, default=None, on_setattr=setters.NO_OP)
    _group_commit: GroupCommit | None = field(init=False, repr=False, default=None, on_setattr=setters.NO_OP)

    @property
    def durable(self) -> bool:
        """Always True: accepted deliveries survive the end of the process."""
        return True

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("this inbox is entered already: leave it first, or create another one")
        self._entered = AsyncExitStack()
        try:
            self._group_commit = await self._entered.enter_async_context(open_group_commit(self._store))
        except BaseException:
            self._entered = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        entered = self._entered
        if entered is None:
            return None
        try:
            return await entered.__aexit__(kind, error, trace)
        finally:
            self._entered = self._group_commit = None

    @property
    def _open(self) -> GroupCommit:
        if self._group_commit is None:
            raise RuntimeError("this inbox is not entered: use it inside `async with inbox`")
        return self._group_commit

    @unshielded
    async def accept(self, delivery: Delivery, /, *, chain: Chain | None = None) -> bool | OtherContent:
        """Store a delivery durably; return True if it is new, False if its key was accepted before.

        If the key is known and the content differs, apart from ``resendFlag``, it is kept in quarantine (OtherContent).

        If cancelled before its transaction begins, the delivery is not accepted; later it may be accepted or not. Waits
        while another process writes. Deliveries are stored in the order of the calls; those of one ``chain`` without a gap:
        once one of them was not stored, the later ones are not either. Raises ``sqlite3.Error`` if the file cannot be
        written, for example on a full disk, and the error of the earlier delivery.
        """
        return await self._open.run(OneOfMany(self._accept_all, delivery), chain=chain)

    @asynccontextmanager
    async def backlog(self) -> AsyncGenerator[Backlog, None]:
        """Return a backlog for the event loop that enters it, in any thread. The inbox itself need not be entered.

        Events that are still claimed on leaving can be claimed again after their lease expires.
        """
        async with open_group_commit(self._store) as commits:
            backlog = _Backlog(self._store, commits, clock=self.clock, poll=self.poll)
            listener = partial(waker(), backlog.notify)
            self._store.listen(listener)
            try:
                yield backlog
            finally:
                self._store.unlisten(listener)

    async def counts(self) -> Counts:
        """Return the numbers of waiting, done, dead and quarantined events. The time grows with the number of events."""
        return await self._open.query(self._store.archive.counts)

    async def lag(self) -> float:
        """Return the age of the oldest waiting event in seconds; 0 if none waits.

        The time grows with the number of waiting events.
        """
        oldest = await self._open.query(self._store.archive.oldest)
        return 0.0 if oldest is None else max(0.0, self.clock.now().timestamp() - oldest)

    async def conversations(self, limit: int) -> set[str]:
        """Return at most ``limit`` conversations with waiting events."""
        return await self._open.read(partial(self._store.conversations, limit))

    async def dead_letters(
        self,
        limit: int = 100,
        after: int = 0,
        *,
        since: datetime | None = None,
        kind: type[Event] | str | None = None,
        conversation: str | None = None,
    ) -> list[DeadLetter]:
        """Return the oldest dead letters: at most ``limit``, with numbers above ``after`` (next page: the last number).

        ``since``: only those received since then (with a time zone). ``kind``: a class of events, including its subclasses,
        or the text of a ``msgType``. ``conversation``: its name, with or without ``app_id`` and ``/`` in front. (Default of
        each: any.) Raises InvalidRequest for an invalid argument.
        """
        wanted = event_filter(since, kind, conversation)
        return await self._open.query(partial(self._store.archive.dead_letters, wanted, *page(limit, after)))

    async def quarantined(
        self,
        limit: int = 100,
        after: int = 0,
        *,
        since: datetime | None = None,
        kind: type[Event] | str | None = None,
        conversation: str | None = None,
    ) -> list[DeadLetter]:
        """Return the oldest events in quarantine; the arguments as in :meth:`dead_letters`."""
        wanted = event_filter(since, kind, conversation)
        return await self._open.query(partial(self._store.archive.quarantined, wanted, *page(limit, after)))

    async def event(self, number: int) -> DeadLetter | None:
        """Return a dead letter or an event in quarantine; None if there is none with this number."""
        return await self._open.read(partial(self._store.archive.letter, number)) if numbers_of((number,)) else None

    async def requeue(self, numbers: Iterable[int], *, dead: bool = True, quarantined: bool = True) -> int:
        """Make dead letters, and events in quarantine that can be read now, wait again; return their number.

        Attempts count from 1 again. An event keeps its place in the order of its conversation, before all that wait behind
        it. One in quarantine whose key is known by now is handled as an event of its own.
        With False for ``dead`` or ``quarantined``, numbers of that kind are left out.
        """
        return await self._in_steps(partial(self._store.archive.requeue, dead=dead, quarantined=quarantined), numbers)

    async def discard(self, numbers: Iterable[int], *, dead: bool = True, quarantined: bool = True) -> int:
        """Delete dead letters and events in quarantine; return their number. A resend would be accepted as a new event.

        With False for ``dead`` or ``quarantined``, numbers of that kind are left out.
        """
        return await self._in_steps(partial(self._store.archive.discard, dead=dead, quarantined=quarantined), numbers)

    async def _in_steps(self, command: Callable[[Sequence[int]], int], numbers: Iterable[int]) -> int:
        given, count = numbers_of(numbers), 0
        for at in range(0, len(given), STEP):
            count += await self._open.run(partial(command, given[at : at + STEP]))
        return count

    async def purge(self, *, dead: bool = True, quarantined: bool = True, before: datetime | None = None) -> int:
        """Delete all dead letters and events in quarantine, or one kind of them; return their number.

        ``before``: only those received before this time (with a time zone; default: all). It works in steps, so that
        deliveries are accepted meanwhile. Raises InvalidRequest for an invalid ``before``.
        """
        limit, count = inf if before is None else epoch(before, "before"), 0
        for state in [2] * dead + [3] * quarantined:
            at, more = 0, True
            while more:
                at, deleted = await self._open.run(partial(self._store.archive.purge_letters, state, before=limit, after=at))
                count += deleted
                more = at > 0
        return count

    async def replay(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> int:
        """Make events wait again, in their old order, and return their number.

        Replays done events and dead letters that were received since ``since`` (with a time zone; default: all) and are of
        ``kind``: a class of events, including its subclasses, or the text of a ``msgType`` (default: any). Events in
        quarantine are checked again and replayed if they can be read now. ``dead_only`` limits the replay to dead letters.
        Attempts count from 1 again. It works in steps, so that deliveries are accepted meanwhile; if cancelled, it may have
        replayed some events. Raises InvalidRequest for an invalid ``since`` or ``kind``.
        """
        wanted = event_filter(since, kind, dead_only=dead_only)
        at, count = 0, 0
        last = await self._open.read(self._store.archive.last)
        while at < last:
            at, replayed = await self._open.run(partial(self._store.archive.replay, wanted, after=at, last=last))
            count += replayed
        return count

    async def replayable(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> dict[str, int]:
        """Return how many events :meth:`replay` would make wait again, by ``msgType``, the most first. Changes nothing.

        The time grows with the number of events; deliveries are accepted meanwhile. Raises InvalidRequest as ``replay``.
        """
        wanted, archive = event_filter(since, kind, dead_only=dead_only), self._store.archive
        last = await self._open.read(archive.last)
        step = LARGEST if dead_only else SPAN  # dead letters have an index
        found: Counter[str] = Counter()
        for at in range(0, last, step):
            until = min(at + step, last)
            found.update(dict(await self._open.query(partial(archive.replayable, wanted, after=at, until=until))))
        keys: set[str] = set()
        at, more = 0, not dead_only
        while more:
            at, kinds = await self._open.query(partial(archive.readmissible, wanted, after=at, keys=keys))
            found.update(kinds)
            more = at > 0
        return dict(found.most_common())


class _Backlog:
    """The waiting events of the file, for one event loop."""

    def __init__(self, store: InboxStore, commits: GroupCommit, *, clock: Clock, poll: float) -> None:
        self._store = store
        self._group_commit = commits
        self._clock = clock
        self._poll = poll
        self._held: set[int] = set()  # fences of this backlog's own leases: wait() must not wait for them to expire
        self._news = anyio.Event()

    def notify(self) -> None:
        """Make ``wait`` check again. Call it in the event loop's thread."""
        self._news.set()

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        if limit < 1:
            return ()
        claims = await self._group_commit.run(
            partial(self._store.claim, limit, frozenset(self._held)), undo=self._release_commands
        )
        self._held.update(claim.fence for claim in claims)
        return claims

    def _release_commands(self, claims: Iterable[Claim]) -> Iterable[Callable[[], Any]]:
        return [partial(self._store.release, claim) for claim in claims]

    async def begin(self, claim: Claim, /) -> None:
        await self._group_commit.run(partial(self._store.begin, claim))

    async def absolve(self, claims: Sequence[Claim], /) -> None:
        if claims:
            await self._group_commit.run(partial(self._store.absolve, tuple(claims)))

    async def clear(self, claim: Claim, /) -> None:
        await self._group_commit.run(partial(self._store.clear, claim))

    async def done(self, claims: Sequence[Claim], /, *, more: int) -> Sequence[Claim]:
        return await self._settle(claims[0], partial(self._store.done, tuple(claims), more=more))

    async def dead_letter(self, claim: Claim, /, *, error: str, more: int) -> Sequence[Claim]:
        return await self._settle(claim, partial(self._store.dead_letter, claim, error=error, more=more))

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        await self._settle(claim, partial(self._store.retry, claim, error=error, pause=pause))

    async def release(self, claim: Claim, /) -> None:
        await self._settle(claim, partial(self._store.release, claim))

    async def _settle(self, claim: Claim, command: Callable[[], Sequence[Claim] | None]) -> Sequence[Claim]:
        following: Sequence[Claim] | None = None
        try:
            following = await self._group_commit.run(command, undo=lambda following: self._release_commands(following[:1]))
        finally:
            if not following:
                self._held.discard(claim.fence)
        return following or ()

    async def renew(self, claims: Sequence[Claim], /) -> Sequence[Claim]:
        return await self._group_commit.run(partial(self._store.renew, tuple(claims))) if claims else ()

    async def wait(self) -> None:
        while True:
            if self._news.is_set():
                self._news = anyio.Event()
            news = self._news  # taken before the read: a change that the read misses sets it
            if self._store.purge_due():
                with suppress(sqlite3.Error):  # a full disk, for example: the next look is in a minute
                    await self._group_commit.run(self._store.look_for_old)
            ready, due = await self._group_commit.read(partial(self._store.availability, frozenset(self._held)))
            if ready:
                return
            with nullcontext() if due is None or due == inf else self._clock.scope(due), move_on_after(self._poll):
                await news.wait()
