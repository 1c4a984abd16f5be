"""The spool: a queue in a local file for deliveries that the sink did not store in time. They are forwarded later."""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import AsyncExitStack, nullcontext
from datetime import UTC, datetime
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.protocols import OtherContent
from rbim.callbacks.observers import Observers, Quarantined
from rbim.callbacks.worker.attempt import ForeignCode, failure_of
from rbim.callbacks.worker.backoff import Backoff
from rbim.errors import InvalidRequest
from rbim.storage.group_commit import Chain, GroupCommit, open_group_commit
from rbim.storage.in_place import InPlace
from rbim.storage.sqlite import Database, FileKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Sink
    from rbim.clock import Clock

__all__ = ["Spool"]

# Theory of operation: a delivery in the file, which is one queue in the order of ``number``.
#
#   waiting   `refused` is NULL. The sink has not stored it yet.
#   refused   The sink raised InvalidRequest for it: it will never store it. It is kept for people, and offered once more
#             when the file is opened again.
#   (absent)  The sink has stored it, and the file has forgotten it.
#
# While anything waits, ``holds`` is True and the receiver puts every delivery here. forward() takes deliveries from the
# front, BATCH at a time, and offers them to the sink: all at once to a sink with chains (one chain for each conversation),
# one after the other in each conversation to another sink. Those that it has stored are deleted in one transaction.
#
# A conversation of which a delivery was not stored has failed: its later ones are passed over until forward() begins again
# at the front, after a pause that grows (PAUSES). So it holds up no other conversation. After MISSES batches in a row of
# which the sink stored nothing, the sink is down: then each further batch waits for the pause.
#
# What must always hold:
# - A delivery is deleted only after the sink has stored it: none is dropped.
# - Deliveries of a conversation are offered in order; none before those in front of it are stored or refused.
# - If two processes forward from one file, both do so in order from the front, and the sink recognises keys.
# - BATCH deliveries are in memory at most, however many wait.

SCHEMA = (
    """CREATE TABLE delivery (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation TEXT NOT NULL,
        app_id TEXT NOT NULL,
        received REAL NOT NULL,
        refused TEXT,
        body BLOB NOT NULL
    )""",
    "CREATE INDEX delivery_waiting ON delivery (conversation) WHERE refused IS NULL",
)
# versions 1 and 2 were the tables of an inbox
SPOOL = FileKind(name="a spool", mark=b"rbsp", schema=((), (), SCHEMA), oldest=3, secure_delete=True)

INSERT = "INSERT INTO delivery (conversation, app_id, received, body) VALUES (?, ?, ?, ?)"
NEXT = """SELECT number, conversation, app_id, received, body FROM delivery
    WHERE number > ? AND refused IS NULL ORDER BY number LIMIT ?"""
COUNT = "SELECT count(*) FROM delivery WHERE refused IS NULL"
ANY = "SELECT 1 FROM delivery WHERE refused IS NULL LIMIT 1"
DELETE = "DELETE FROM delivery WHERE number = ?"
REFUSE = "UPDATE delivery SET refused = ? WHERE number = ?"
OFFER_AGAIN = "UPDATE delivery SET refused = NULL WHERE refused IS NOT NULL"

BATCH = 256
MISSES = 3
PAUSES = Backoff(attempts=sys.maxsize, first=0.5, factor=2.0, most=5.0)
POLL = 0.25  # seconds of real time until deliveries that another process has put into the file are seen


class _Row(NamedTuple):
    number: int
    conversation: str
    app_id: str
    received: float
    body: bytes

    def delivery(self) -> Delivery:
        return delivery_of(self.body, app_id=self.app_id, received=datetime.fromtimestamp(self.received, UTC))


class _File:
    """The file, for a group commit; its methods run in threads."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._database = Database(path, SPOOL, clock=lambda: clock.now().timestamp())
        self._in_place = InPlace(path, "the spool")

    def open(self) -> None:
        self._database.open()
        self._in_place.forget()
        self._database.commit([partial(self._database.execute, OFFER_AGAIN)])

    def close(self) -> None:
        self._database.close()

    def commit(self, commands: Sequence[Callable[[], Any]], *, hurried: Callable[[], bool] = bool) -> list[Any]:
        """Raises FileNotFoundError if the file was deleted or moved: what it would store could not be found again."""
        self._in_place.require()
        return self._database.commit(commands, hurried=hurried)

    def count(self) -> int:
        ((count,),) = self._database.execute(COUNT).fetchall()
        return int(count)

    def any(self) -> bool:
        return self._database.execute(ANY).fetchone() is not None

    def insert(self, delivery: Delivery) -> None:
        values = (delivery.conversation, delivery.app_id, delivery.received.timestamp(), delivery.body)
        self._database.execute(INSERT, values)

    def settle(self, stored: Sequence[int], refused: Sequence[tuple[str, int]], after: int) -> list[_Row]:
        """Forget deliveries that are stored, mark those that are refused, and return the next ones after a number."""
        self._database.executemany(DELETE, [(number,) for number in stored])
        self._database.executemany(REFUSE, refused)
        return [_Row(*row) for row in self._database.execute(NEXT, (after, BATCH))]


class Spool:
    """Keeps deliveries in its own file until :meth:`forward` has given them to ``sink``, in order.

    Enter it to open the file. ``holds`` is True while deliveries wait here: then all others have to come here, too. If the
    sink was only slow and has a delivery already, it recognises the key. ``budget`` is the sink's limit for a batch, in
    seconds. ``observers`` get what the sink refuses for good (it is kept in the file) and what it puts in quarantine.
    """

    def __init__(self, path: Path, sink: Sink, *, clock: Clock, budget: float, observers: Observers | None = None) -> None:
        self.holds = False
        self._path = path
        self._file = _File(path, clock)
        self._sink = sink
        self._accept: Callable[..., Awaitable[bool | OtherContent]] = sink.accept
        self._chained = "chain" in signature(sink.accept).parameters
        self._clock = clock
        self._budget = budget
        self._observers = observers or Observers()
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._news = anyio.Event()
        self._puts = 0
        self._commits: GroupCommit = await self._entered.enter_async_context(open_group_commit(self._file))
        self.holds = await self._commits.read(self._file.any)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._entered.__aexit__(kind, error, trace)

    async def waiting(self) -> int:
        """Return the number of deliveries that wait here."""
        return await self._commits.query(self._file.count)

    def put(self, delivery: Delivery) -> Callable[[], Awaitable[None]]:
        """Queue a delivery behind those that were put before; return a function that waits until it is durable."""
        stored = self._commits.begin(partial(self._file.insert, delivery))
        self.holds = True
        self._puts += 1
        self._news.set()
        return stored

    async def forward(self) -> None:  # noqa: C901, PLR0912, PLR0915  # one loop, in order
        """Forward deliveries to the sink, which is entered, until cancelled."""
        at, failures, misses = 0, 0, 0
        failed: set[str] = set()  # conversations, since this began at the front
        again = 0.0  # when it begins there again
        stored: list[int] = []
        refused: list[tuple[str, int]] = []
        while True:
            if failed and self._clock.monotonic() >= again:
                at, failed = 0, set[str]()
            puts, self._news = self._puts, anyio.Event()
            try:
                rows: list[_Row] = []
                waits = await self._commits.read(self._file.any)
                self.holds |= waits
                if waits and getattr(self._sink, "ready", True) is False:
                    await anyio.sleep(POLL)
                    continue
                if waits or stored or refused:
                    rows = await self._commits.run(partial(self._file.settle, stored, refused, at))
                    stored, refused = [], []
                    waits = await self._commits.read(self._file.any)
                if self.holds and not (rows or waits):  # a command runs after what was put before; a read need not
                    waits = await self._commits.run(self._file.any)
            except Exception:
                failures += 1
                pause = PAUSES.pause(failures) or PAUSES.most
                self._observers.log.exception("the spool cannot be used; next try in %.2g s", pause)
                await self._clock.sleep(pause)
                continue
            if not rows:
                if not waits:
                    at, failures, failed = 0, 0, set[str]()
                    self.holds = self._puts != puts
                elif not failed:  # another process has put it there meanwhile
                    at = 0
                    continue
                until_again = max(0.0, again - self._clock.monotonic())
                with self._clock.scope(until_again) if failed else nullcontext(), anyio.move_on_after(POLL):
                    await self._news.wait()
                continue
            at = rows[-1].number
            offered = [row for row in rows if row.conversation not in failed]
            stored, first_unstored = await self._offer(offered)
            new: list[tuple[_Row, BaseException]] = []  # failures
            for row, error in first_unstored:
                if error is None:  # the time was over before its turn
                    at = min(at, row.number - 1)
                elif isinstance(error, InvalidRequest):
                    at = min(at, row.number)
                    refused.append((self._refuse(row, error), row.number))
                else:
                    if not failed:
                        failures += 1
                        again = self._clock.monotonic() + (PAUSES.pause(failures) or PAUSES.most)
                    failed.add(row.conversation)
                    new.append((row, error))
            if new:
                self._report(*new[0], conversations=len(new))
            misses = misses + 1 if offered and not stored and not refused else 0
            if misses >= MISSES:
                pause = PAUSES.pause(misses) or PAUSES.most
                await self._clock.sleep(pause)
                again = self._clock.monotonic() + pause

    async def _offer(  # noqa: C901  # with the functions of its tasks
        self, rows: Sequence[_Row]
    ) -> tuple[list[int], list[tuple[_Row, BaseException | None]]]:
        """Offer deliveries to the sink: return the numbers of those that it stored, and the first others, with their errors.

        These are, of each conversation, the first delivery that was not stored; None is for one whose turn did not come.
        """
        conversations: dict[str, list[_Row]] = defaultdict(list)
        for row in rows:
            conversations[row.conversation].append(row)
        stored: set[int] = set()
        errors: dict[int, BaseException] = {}

        async def offer(row: _Row, **chain: Chain) -> bool:
            code = ForeignCode()
            try:
                result = await self._accept(row.delivery(), **chain)
            except BaseException as error:
                if not code.failed(error):
                    raise
                errors[row.number] = error
                for each in chain.values():
                    each.fail(error)
                return False
            stored.add(row.number)
            if isinstance(result, OtherContent):
                self._observers.notify(Quarantined, key=result.key, problem=result.problem, other_content=True)
            return True

        following = iter(rows)
        chains = {conversation: Chain() for conversation in conversations}

        async def offer_next() -> None:  # in order, whichever task begins first
            row = next(following)
            await offer(row, chain=chains[row.conversation])

        async def offer_in_turn(of_one: Sequence[_Row]) -> None:
            for row in of_one:
                if not await offer(row):
                    return

        with self._clock.scope(self._budget):
            async with anyio.create_task_group() as tasks:
                if self._chained:
                    for _ in rows:
                        tasks.start_soon(offer_next)
                else:
                    for of_one in conversations.values():
                        tasks.start_soon(offer_in_turn, of_one)
        too_slow = TimeoutError(f"the sink took longer than {self._budget:g} s")
        unstored: list[tuple[_Row, BaseException | None]] = []
        for of_one in conversations.values():
            first = next((row for row in of_one if row.number not in stored), None)
            if first is not None:
                unstored.append((first, errors.get(first.number, None if of_one[0].number in stored else too_slow)))
        return [*stored], unstored

    def _refuse(self, row: _Row, error: InvalidRequest) -> str:
        """Report that the sink will never store a delivery; return why."""
        problem = f"the sink refuses it: {error}; it stays in {self._path}, and is offered again after a restart"
        self._observers.notify(Quarantined, key=row.delivery().key, problem=problem)
        return str(error)

    def _report(self, row: _Row, error: BaseException, *, conversations: int) -> None:
        key, failure = row.delivery().key, failure_of(error)
        others = f" and those of {conversations - 1} more conversations" if conversations > 1 else ""
        text = "event %s%s stays in the spool, and is offered to the sink again: %s"
        self._observers.log.warning(text, key, others, failure.line, extra={"rbim_key": key})
