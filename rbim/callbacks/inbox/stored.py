"""What every inbox on a database is: deliveries go in, a backlog gives them out, people look at what is left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

import anyio
from attrs import define, field, setters

from rbim._support.event_loops import waker
from rbim.callbacks.events import Event, class_names
from rbim.callbacks.inbox import statements as sql
from rbim.callbacks.inbox.protocols import Counts
from rbim.callbacks.inbox.statements import DEAD, QUARANTINED
from rbim.callbacks.inbox.store import LARGEST, STEP, EventFilter, InboxStore, events_of, values_of
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest
from rbim.storage.group_commit import OneOfMany, open_group_commit
from rbim.timeouts import unshielded
from rbim.validators import above_zero, or_none

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Backlog, Claim, OtherContent, StoredEvent
    from rbim.clock import Clock
    from rbim.storage.group_commit import Chain, GroupCommit

    T = TypeVar("T")

__all__ = ["WEEK", "Archive", "Commits", "DurableInbox", "StoredInbox"]

WEEK = 7 * 24 * 3600.0  # seconds


class Commits(Protocol):
    """Runs commands of a store in transactions, and reads. :class:`rbim.storage.group_commit.GroupCommit` is one."""

    async def run(self, command: Callable[[], T], *, undo: Any = None) -> T:
        """Run a command; if the caller is cancelled although it has run, the commands of ``undo(result)``, too."""
        ...

    async def query(self, reads: Callable[[], T]) -> T:
        """Run a read that may take long."""
        ...


class Archive(ABC):
    """An inbox's events for people: how many there are, and what to do with dead letters and events in quarantine.

    An inbox on servers that cannot be reached raises ConnectionError.
    """

    __slots__ = ()

    _span = 20_000  # numbers of events among which one search of `replayable` counts
    _store: InboxStore

    @property
    @abstractmethod
    def _commits(self) -> Commits:
        """The transactions of the event loop that entered the inbox."""

    async def counts(self) -> Counts:
        """Return the numbers of waiting, done, dead and quarantined events. The time grows with the number of events."""
        ((waiting, done, dead, quarantined),) = await self._rows(sql.COUNTS)
        return Counts(waiting=waiting, done=done, dead=dead, quarantined=quarantined)

    async def lag(self) -> float:
        """Return the age of the oldest waiting event in seconds; 0 if none waits. It takes longer, the more events wait."""
        rows = await self._rows(sql.OLDEST_RECEIVED)
        return max(0.0, self._store.database.clock() - rows[0][0]) if rows else 0.0

    async def dead_letters(
        self,
        limit: int = 100,
        after: int = 0,
        *,
        since: datetime | None = None,
        kind: type[Event] | str | None = None,
        conversation: str | None = None,
    ) -> list[StoredEvent]:
        """Return the oldest dead letters: at most ``limit``, with numbers above ``after`` (next page: the last number).

        ``since``: only those received since then (with a time zone). ``kind``: a class of events, including its subclasses,
        or the text of a ``msgType``. ``conversation``: its name, with or without ``app_id`` and ``/`` in front. (Default of
        each: any.) Raises InvalidRequest for an invalid argument.
        """
        return await self._letters(DEAD, _event_filter(since, kind, conversation), limit, after)

    async def quarantined(
        self,
        limit: int = 100,
        after: int = 0,
        *,
        since: datetime | None = None,
        kind: type[Event] | str | None = None,
        conversation: str | None = None,
    ) -> list[StoredEvent]:
        """Return the oldest events in quarantine; the arguments as in :meth:`dead_letters`."""
        return await self._letters(QUARANTINED, _event_filter(since, kind, conversation), limit, after)

    async def event(self, number: int) -> StoredEvent | None:
        """Return a dead letter or an event in quarantine; None if there is none with this number."""
        found = await self._events(sql.LETTER, (number,)) if _numbers_of((number,)) else []
        return found[0] if found else None

    async def newest(self, limit: int = 100, before: int | None = None, *, state: str | None = None) -> list[StoredEvent]:
        """Return the latest events, the newest first: at most ``limit``, with numbers below ``before`` (default: any).

        ``state``: only those that are ``waiting``, ``done``, ``dead`` or ``quarantined`` (default: any).
        """
        most, at = _page(limit, LARGEST if before is None else before)
        return await self._events(sql.NEWEST[None if state is None else sql.STATES.index(state)], (at, most))

    async def received(self, limit: int = 20_000) -> list[tuple[float, str]]:
        """Return when the latest events were received, in epoch seconds, and their states; the newest first."""
        return [(at, sql.STATES[state]) for at, state in await self._rows(sql.RECEIVED, (limit,))]

    async def _rows(self, statement: str, values: Any = ()) -> list[Any]:
        return await self._commits.query(partial(self._store.database.query, statement, values))

    async def _events(self, statement: str, values: Any) -> list[StoredEvent]:
        return await self._commits.query(lambda: events_of(self._store.database.query(statement, values)))

    async def _letters(self, state: int, wanted: EventFilter, limit: int, after: int) -> list[StoredEvent]:
        most, at = _page(limit, after)
        return await self._events(sql.LETTERS[state], values_of(wanted, at, limit=most))

    async def requeue(self, numbers: Iterable[int]) -> int:
        """Make dead letters, and events in quarantine that can be read now, wait again; return their number.

        Attempts count from 1 again. An event keeps its place in the order of its conversation, before all that wait behind
        it. One in quarantine whose key is known by now is handled as an event of its own.
        """
        return await self._in_steps(self._store.requeue, numbers)

    async def discard(self, numbers: Iterable[int]) -> int:
        """Delete dead letters and events in quarantine; return their number. A resend would be accepted as a new event."""
        return await self._in_steps(self._store.discard, numbers)

    async def _in_steps(self, command: Callable[[Sequence[int]], int], numbers: Iterable[int]) -> int:
        given, count = _numbers_of(numbers), 0
        for at in range(0, len(given), STEP):
            count += await self._commits.run(partial(command, given[at : at + STEP]))
        return count

    async def purge(self, *, dead: bool = True, quarantined: bool = True, before: datetime | None = None) -> int:
        """Delete all dead letters and events in quarantine, or one kind of them, in steps; return their number.

        ``before``: only those received before this time (with a time zone; default: all).
        """
        limit, count = inf if before is None else _epoch(before, "before"), 0
        for state in [DEAD] * dead + [QUARANTINED] * quarantined:
            at, more = 0, True
            while more:
                at, deleted = await self._commits.run(partial(self._store.purge_letters, state, before=limit, after=at))
                count += deleted
                more = at > 0
        return count

    async def replay(self, since: datetime | None = None, kind: type[Event] | str | None = None) -> int:
        """Make handled events, dead letters and readable events in quarantine wait again, in their old order.

        ``since``, ``kind``: as in :meth:`dead_letters`. Attempts count from 1 again.
        Returns their number; raises InvalidRequest for an invalid argument. It works in steps, so that deliveries are
        accepted meanwhile; if cancelled, it may have replayed some events.
        """
        wanted = _event_filter(since, kind)
        at, count = 0, 0
        ((last,),) = await self._rows(sql.LAST_NUMBER)
        while at < last:
            at, replayed = await self._commits.run(partial(self._store.replay, wanted, after=at, last=last))
            count += replayed
        return count

    async def replayable(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> dict[str, int]:
        """Return how many events :meth:`replay` would make wait again, by ``msgType``, the most first. Changes nothing.

        ``dead_only``: how many of them are dead letters.
        """
        wanted = _event_filter(since, kind)
        ((last,),) = await self._rows(sql.LAST_NUMBER)
        # dead letters have an index
        statement, step = (sql.DEAD_BY_TYPE, LARGEST) if dead_only else (sql.REPLAYABLE, self._span)
        found: Counter[str] = Counter()
        for at in range(0, last, step):
            found.update(dict(await self._rows(statement, values_of(wanted, at, min(at + step, last)))))
        keys: set[str] = set()
        at, more = 0, not dead_only
        while more:
            at, kinds = await self._commits.query(partial(self._store.readmissible, wanted, after=at, keys=keys))
            found.update(kinds)
            more = at > 0
        return dict(found.most_common())


def _event_filter(
    since: datetime | None,
    kind: type[Event] | str | None,
    conversation: str | None = None,
) -> EventFilter:
    """Return the filter of a caller's arguments. Raises InvalidRequest."""
    for name, text in (("kind", kind), ("conversation", conversation)):
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError:
                cause = f"{name}: characters that cannot be encoded in UTF-8 in {text!r}"
                raise InvalidRequest(cause, field=name) from None
    given = cast("object", kind)
    if not (given is None or isinstance(given, str) or (isinstance(given, type) and issubclass(given, Event))):
        raise InvalidRequest(f"kind: pass a class of events or the text of a msgType, not {kind!r}", field="kind")
    return EventFilter(
        since=-inf if since is None else _epoch(since, "since"),
        classes=None if kind is Event or not isinstance(kind, type) else class_names(kind),
        msg_type=str(kind) if isinstance(kind, str) else None,
        conversation=conversation,
    )


def _page(limit: int, after: int) -> tuple[int, int]:
    """Return the limit of a page and the number after which it begins, as SQLite can have them. Raises InvalidRequest."""
    if limit < 1:
        raise InvalidRequest(f"limit: use at least 1, not {limit!r}", field="limit", limit=1)
    return min(limit, LARGEST), min(max(after, 0), LARGEST)


def _numbers_of(given: Iterable[int]) -> tuple[int, ...]:
    """Return each number once, without those that no event can have."""
    return tuple(number for number in dict.fromkeys(given) if 0 < number <= LARGEST)


def _epoch(time: datetime, name: str) -> float:
    """Return a time in epoch seconds. Raises InvalidRequest if it has no time zone."""
    if not isinstance(cast("object", time), datetime) or time.tzinfo is None:
        raise InvalidRequest(f"{name}: pass a datetime with a time zone, not {time!r}", field=name)
    return time.timestamp()


class StoredInbox(Archive):
    """An inbox whose events are in the tables of :mod:`rbim.callbacks.inbox.statements`."""

    __slots__ = ()

    lease: float
    poll: float
    clock: Clock

    @abstractmethod
    def _open_backlog(self) -> AbstractAsyncContextManager[Commits]:
        """Open transactions for the event loop of a worker."""

    @asynccontextmanager
    async def backlog(self) -> AsyncGenerator[Backlog, None]:
        """Return a backlog for the event loop that enters it, in any thread. The inbox itself need not be entered.

        Events that are still claimed on leaving can be claimed again after their lease expires; at once if leases do not.
        """
        async with self._open_backlog() as commits:
            backlog = _StoredBacklog(self._store, commits, clock=self.clock, poll=self.poll)
            notify = partial(waker(), backlog.notify)
            self._store.database.listeners[notify] = None
            try:
                yield backlog
            finally:
                del self._store.database.listeners[notify]
                if self.lease == inf:
                    with anyio.CancelScope(shield=True):
                        await backlog.release_all()


def _clock(given: Clock | None) -> Clock:
    return SystemClock() if given is None else given


@define(eq=False, on_setattr=setters.frozen)
class DurableInbox(StoredInbox):
    """An inbox that outlives its process, with a group commit for each event loop: a file, or a database on a server."""

    retention: float = field(default=WEEK, kw_only=True, validator=above_zero)
    dead_retention: float | None = field(default=None, kw_only=True, validator=or_none(above_zero))
    lease: float = field(default=30.0, kw_only=True, validator=above_zero)
    poll: float = field(default=0.25, kw_only=True, validator=above_zero)
    clock: Clock = field(default=None, kw_only=True, converter=_clock, repr=False)
    _database: Any = field(init=False, repr=False, on_setattr=setters.NO_OP)  # each kind of inbox has its own
    _store: InboxStore = field(init=False, repr=False, on_setattr=setters.NO_OP)
    _opened: AbstractAsyncContextManager[GroupCommit] | None = field(
        init=False, repr=False, default=None, on_setattr=setters.NO_OP
    )
    _group_commit: GroupCommit | None = field(init=False, repr=False, default=None, on_setattr=setters.NO_OP)
    _commands: ClassVar[type[InboxStore]] = InboxStore

    def __attrs_post_init__(self) -> None:
        self._store = self._commands(
            self._database, retention=self.retention, lease=self.lease, dead_retention=self.dead_retention
        )

    @property
    def durable(self) -> bool:
        """Always True: accepted deliveries survive the end of the process."""
        return True

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise RuntimeError("this inbox is entered already: leave it first, or create another one")
        self._opened = open_group_commit(self._database)
        try:
            self._group_commit = await self._opened.__aenter__()
        except BaseException:
            self._opened = None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._opened is None:
            return None
        try:
            return await self._opened.__aexit__(kind, error, trace)
        finally:
            self._opened = self._group_commit = None

    @property
    def _commits(self) -> GroupCommit:
        if self._group_commit is None:
            raise RuntimeError("this inbox is not entered: use it inside `async with inbox`")
        return self._group_commit

    def _open_backlog(self) -> AbstractAsyncContextManager[GroupCommit]:
        return open_group_commit(self._database)

    @unshielded
    async def accept(self, delivery: Delivery, /, *, chain: Chain | None = None) -> bool | OtherContent:
        """Store a delivery durably; return True if it is new, False if its key was accepted before.

        If the key is known and the content differs, apart from ``resendFlag``, it is kept in quarantine (OtherContent).

        If cancelled before its transaction begins, the delivery is not accepted; later it may be accepted or not. Waits
        while another process writes. Deliveries are stored in the order of the calls; those of one ``chain`` without a gap:
        once one of them was not stored, the later ones are not either. Raises the error of the earlier delivery, and what
        the database raises if it cannot store (a full disk, for example): ``sqlite3.Error``, or ConnectionError on a server.
        """
        return await self._commits.run(OneOfMany(self._store.accept_all, delivery, chain))


class _StoredBacklog:
    """The waiting events of a store, for one event loop."""

    def __init__(self, store: InboxStore, commits: Commits, *, clock: Clock, poll: float) -> None:
        self._store = store
        self._commits = commits
        self._clock = clock
        self._poll = poll
        self._held: dict[int, Claim] = {}  # by fence, of this backlog's own leases: wait() must not wait for their ends
        self._changes = 0
        self._seen = -1  # the number of changes before the last claim or look of wait()
        self._due = inf  # when a conversation can be claimed next, as they have found: in epoch seconds
        self._waiting: set[anyio.CancelScope] = set()

    def notify(self) -> None:
        """Make ``wait`` check again. Call it in the event loop's thread."""
        self._changes += 1
        for scope in self._waiting:
            scope.cancel()

    async def release_all(self) -> None:
        """Give back everything that is still claimed."""
        for claim in self._held.values():
            await self._commits.run(partial(self._store.release, claim))

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        if limit < 1 or any(claim.crashes for claim in self._held.values()):
            self._seen = -1  # wait() looks, and other tasks go on meanwhile
            return ()
        self._seen, self._due = self._changes, 0.0
        command = partial(self._claim, limit, frozenset(self._held))
        claims = await self._commits.run(command, undo=self._release_undone)
        self._held.update((claim.fence, claim) for claim in reversed(claims))
        return claims

    def _claim(self, limit: int, held: frozenset[int]) -> list[Claim]:
        claims = self._store.claim(limit, held)
        self._look(held.union(claim.fence for claim in claims))
        return claims

    def _look(self, held: frozenset[int]) -> None:
        self._due = self._store.database.now + self._store.due(held)

    def _release_undone(self, claims: Sequence[Claim]) -> Iterable[Callable[[], Any]]:
        leases = {claim.fence: claim for claim in reversed(claims)}
        return [partial(self._store.release, claim) for claim in leases.values()]

    async def begin(self, claim: Claim, /) -> None:
        await self._commits.run(partial(self._store.begin, claim))

    async def discount(self, claims: Sequence[Claim], /) -> None:
        if claims:
            await self._commits.run(partial(self._store.discount, tuple(claims)))
        for claim in claims:
            if claim.fence in self._held:
                self._held[claim.fence] = claim

    async def done(self, claims: Sequence[Claim], /, *, more: int) -> Sequence[Claim]:
        return await self._settle(claims[0], OneOfMany(self._store.done_all, (tuple(claims), more)))

    async def dead_letter(self, claim: Claim, /, *, error: str, more: int) -> Sequence[Claim]:
        return await self._settle(claim, partial(self._store.dead_letter, claim, error=error, more=more))

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        await self._settle(claim, partial(self._store.retry, claim, error=error, pause=pause))

    async def release(self, claim: Claim, /, *, died: bool = False) -> None:
        await self._settle(claim, partial(self._store.release, claim, died=died))

    async def _settle(self, claim: Claim, command: Callable[[], Any]) -> Sequence[Claim]:
        following: Sequence[Claim] | None = None
        try:
            following = await self._commits.run(command, undo=self._release_undone)
        finally:
            if following:
                self._held[claim.fence] = following[0]
            else:
                self._held.pop(claim.fence, None)
        return following or ()

    async def renew(self, claims: Sequence[Claim], /) -> Sequence[Claim]:
        return await self._commits.run(partial(self._store.renew, tuple(claims))) if claims else ()

    async def wait(self) -> None:
        while True:
            if self._seen != (changes := self._changes):
                await self._commits.run(partial(self._look, frozenset(self._held)))
                self._seen = changes
            due = self._due - self._store.database.clock()
            if due <= 0:
                self._seen = -1
                return
            with anyio.move_on_after(self._poll) as scope:
                self._waiting.add(scope)
                try:
                    if self._seen == self._changes:  # else it may not have seen a change
                        await (anyio.sleep_forever() if due == inf else self._clock.sleep(due))
                finally:
                    self._waiting.discard(scope)
            if self._seen != self._changes:
                return
            self._seen = -1  # another process may have changed something, or it is time
