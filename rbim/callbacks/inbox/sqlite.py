"""The durable sink: an SQLite file that several threads and processes of one machine may fill and empty together."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import anyio
from anyio import move_on_after
from attrs import Factory, define, field, setters

from rbim._support.event_loops import waker
from rbim.callbacks.events.types import Event, class_names
from rbim.callbacks.inbox.statements import INBOX, Counts, DeadLetter, InboxStore, ReplayFilter
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest
from rbim.storage.group_commit import open_group_commit
from rbim.validators import above_zero

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
    from os import PathLike
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Backlog, Claim
    from rbim.clock import Clock
    from rbim.storage.group_commit import GroupCommit
    from rbim.storage.sqlite import FileKind

__all__ = ["SqliteInbox"]

WEEK = 7 * 24 * 3600.0


def _path(given: str | PathLike[str]) -> Path:
    try:
        text = Path(given)
    except TypeError:
        text = Path()
    if not text.name:
        raise InvalidRequest(f"path: the path of a file is needed, not {given!r}", field="path")
    return text.absolute()  # a change of the working directory does not make it another file


def _clock(given: Clock | None) -> Clock:
    return SystemClock() if given is None else given


def _store(inbox: SqliteInbox) -> InboxStore:
    return InboxStore(inbox.path, retention=inbox.retention, lease=inbox.lease, clock=inbox.clock, kind=inbox.kind)


@define(eq=False, on_setattr=setters.frozen)
class SqliteInbox:
    """An inbox in a file, which is made if it is not there (its directory must be). asyncio and trio.

    ``retention`` is the seconds for which an event that was handled is known when it comes again, ``lease`` those for which
    a claim holds unless it is renewed, ``poll`` those between two looks at what other processes did. Due times, leases and
    the retention go by ``clock``; all processes that share the file should agree on the time.

    What it accepted survives a crash of the process and of the machine. Entering it opens the file: InvalidRequest where
    that is another application's, a newer rbim's or no database. Leaving it completes what is pending. Its methods are for
    the event loop that entered it, but for :meth:`backlog`.
    """

    kind: ClassVar[FileKind] = INBOX  # what the file says it is
    path: Path = field(converter=_path)
    retention: float = field(default=WEEK, kw_only=True, validator=above_zero)
    lease: float = field(default=30.0, kw_only=True, validator=above_zero)
    poll: float = field(default=0.25, kw_only=True, validator=above_zero)
    clock: Clock = field(default=None, kw_only=True, converter=_clock, repr=False)
    _store: InboxStore = field(init=False, repr=False, default=Factory(_store, takes_self=True))
    _entered: AsyncExitStack | None = field(init=False, repr=False, default=None, on_setattr=setters.NO_OP)
    _commits: GroupCommit | None = field(init=False, repr=False, default=None, on_setattr=setters.NO_OP)

    @property
    def durable(self) -> bool:
        """True: what it accepted survives the end of the process."""
        return True

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("this inbox is entered already")
        self._entered = AsyncExitStack()
        try:
            self._commits = await self._entered.enter_async_context(open_group_commit(self._store))
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
            self._entered = self._commits = None

    @property
    def _open(self) -> GroupCommit:
        if self._commits is None:
            raise RuntimeError("an inbox is used inside `async with inbox`")
        return self._commits

    async def accept(self, delivery: Delivery, /) -> bool:
        """Return once the delivery is durable: True where it is new, False where its key was accepted before.

        Cancelled before its transaction has begun, it is not accepted; after that, it may be or not. Waits while another
        process writes. Raises ``sqlite3.Error`` where the file cannot be written, for instance because the disk is full.
        """
        return await self._open.run(partial(self._store.accept, delivery))

    @asynccontextmanager
    async def backlog(self) -> AsyncGenerator[Backlog, None]:
        """Give a backlog to the event loop that enters it, in any thread. The inbox itself need not be entered.

        What is still claimed when it is left can be claimed again once its lease is over.
        """
        async with open_group_commit(self._store) as commits:
            backlog = _Backlog(self._store, commits, clock=self.clock, poll=self.poll)
            listener = partial(waker(), backlog.ring)
            self._store.listen(listener)
            try:
                yield backlog
            finally:
                self._store.unlisten(listener)

    async def counts(self) -> Counts:
        """Count what waits, is done, is dead and is in quarantine. Takes longer the more there is."""
        return await self._open.read(self._store.counts)

    async def lag(self) -> float:
        """Return for how many seconds the oldest event that waits has been here; 0 where none waits.

        Takes longer the more wait.
        """
        oldest = await self._open.read(self._store.oldest)
        return 0.0 if oldest is None else max(0.0, self.clock.now().timestamp() - oldest)

    async def conversations(self, limit: int) -> set[str]:
        """Return the conversations in which something waits, at most ``limit`` of them."""
        return await self._open.read(partial(self._store.conversations, limit))

    async def dead_letters(self, limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """Return the oldest dead events, at most ``limit``, with numbers above ``after`` (the last one's, for more)."""
        return await self._open.read(partial(self._store.dead_letters, _limit(limit), after))

    async def quarantined(self, limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """Return the oldest events in quarantine, as :meth:`dead_letters` does the dead ones."""
        return await self._open.read(partial(self._store.quarantined, _limit(limit), after))

    async def replay(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> int:
        """Have events handled again, in their old order, and return how many.

        All those done and dead that were received ``since`` then (with a time zone) and are of a ``kind``: a class of
        events with those derived from it, or the text of a ``msgType``. Those in quarantine are examined anew, and handled
        if they can be read by now. ``dead_only`` leaves out all but the dead ones. Attempts count from 1 again. Made in
        steps, so that deliveries are accepted meanwhile: cancelled, it may have replayed some.
        """
        wish = ReplayFilter(since=_since(since), classes=_classes(kind), msg_type=_msg_type(kind), dead_only=dead_only)
        at, count = 0, 0
        last = await self._open.read(self._store.last)
        while at < last:
            at, replayed = await self._open.run(partial(self._store.replay, wish, after=at, last=last))
            count += replayed
        return count


class _Backlog:
    """What waits in the file, for one event loop."""

    def __init__(self, store: InboxStore, commits: GroupCommit, *, clock: Clock, poll: float) -> None:
        self._store = store
        self._commits = commits
        self._clock = clock
        self._poll = poll
        self._held: set[int] = set()  # fences of our own leases: waiting for them to run out would be waiting for ourselves
        self._news = anyio.Event()

    def ring(self) -> None:
        """Wake who waits, to have another look. In the event loop's thread."""
        self._news.set()

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        if limit < 1:
            return ()
        claims = await self._commits.run(partial(self._store.claim, limit), undo=self._released)
        self._held.update(claim.fence for claim in claims)
        return claims

    def _released(self, claims: Iterable[Claim]) -> Iterable[Callable[[], Any]]:
        return [partial(self._store.release, claim) for claim in claims]

    async def done(self, claim: Claim, /, *, more: bool) -> Claim | None:
        return await self._settle(claim, partial(self._store.done, claim, more=more))

    async def bury(self, claim: Claim, /, *, error: str, more: bool) -> Claim | None:
        return await self._settle(claim, partial(self._store.bury, claim, error=error, more=more))

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        await self._settle(claim, partial(self._store.retry, claim, error=error, pause=pause))

    async def release(self, claim: Claim, /) -> None:
        await self._settle(claim, partial(self._store.release, claim))

    async def _settle(self, claim: Claim, command: Callable[[], Claim | None]) -> Claim | None:
        following: Claim | None = None
        try:
            following = await self._commits.run(command, undo=lambda following: self._released((following,)))
        finally:
            if following is None:
                self._held.discard(claim.fence)
        return following

    async def renew(self, claims: Sequence[Claim], /) -> None:
        if claims:
            await self._commits.run(partial(self._store.renew, tuple(claims)))

    async def wait(self) -> None:
        while True:
            if self._news.is_set():
                self._news = anyio.Event()
            news = self._news  # from before the look: what it does not show yet rings this
            ready, due = await self._commits.read(partial(self._store.look, frozenset(self._held)))
            if ready:
                return
            with nullcontext() if due is None or due == inf else self._clock.scope(due), move_on_after(self._poll):
                await news.wait()


def _limit(limit: int) -> int:
    if limit < 1:
        raise InvalidRequest(f"limit: at least 1, not {limit!r}", field="limit", limit=1)
    return limit


def _since(since: datetime | None) -> float:
    if since is None:
        return -inf
    if not isinstance(cast("object", since), datetime) or since.tzinfo is None:
        raise InvalidRequest(f"since: a datetime with a time zone is needed, not {since!r}", field="since")
    return since.timestamp()


def _classes(kind: type[Event] | str | None) -> frozenset[str] | None:
    if kind is None or isinstance(kind, str) or kind is Event:
        return None
    given = cast("object", kind)
    if not isinstance(given, type) or not issubclass(given, Event):
        raise InvalidRequest(f"kind: a class of events or the text of a msgType is needed, not {kind!r}", field="kind")
    return class_names(given)


def _msg_type(kind: type[Event] | str | None) -> str | None:
    return str(kind) if isinstance(kind, str) else None
