"""The spool: a queue in a local file for deliveries that the sink did not store in time. They are forwarded later."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections import defaultdict
from contextlib import AsyncExitStack, closing, nullcontext
from datetime import UTC, datetime
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, NamedTuple

import anyio

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.protocols import OtherContent
from rbim.callbacks.observers import Observers, Quarantined, logger
from rbim.callbacks.worker.attempt import ForeignCode, failure_of
from rbim.callbacks.worker.backoff import Backoff
from rbim.clock import epoch_of, monotonic_of
from rbim.errors import InvalidRequest
from rbim.storage.group_commit import Chain, GroupCommit, open_group_commit
from rbim.storage.sqlite import Database, FileKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Sink
    from rbim.clock import Clock

__all__ = ["Spool", "refused_in"]

# Theory of operation: a delivery in the file, which is one queue in the order of ``number``.
#
#   waiting   `refused` is NULL. The sink has not stored it yet.
#   refused   The sink raised InvalidRequest for it: it will never store it. It is kept for people, and offered once more
#             when the file is opened again.
#   (absent)  The sink has stored it, and the file has forgotten it.
#
# While anything waits, ``holds`` is True and the receiver puts every delivery here. So do the receivers of other processes
# with the same file: a change of its log is a sign until they have looked. forward() takes the first BATCH
# deliveries and offers them to the sink: all at once to a sink with chains (one chain for each conversation), one after the
# other in each conversation to another sink. One transaction deletes those that it has stored and reads the next ones.
#
# A conversation of which a delivery was not stored has failed: it is passed over until forward() begins again at the front,
# after a pause that grows (PAUSES). So it holds up no other. If all conversations of a batch have failed, the sink may be
# down: then the next batch waits for that pause, too.
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
    "CREATE INDEX delivery_waiting ON delivery (number) WHERE refused IS NULL",
)
# versions 1 and 2 were the tables of an inbox
SPOOL = FileKind(
    name="a spool", mark=b"rbsp", schema=SCHEMA, version=3, secure_delete=True, stays_in_place=True, log=logger.name
)

INSERT = "INSERT INTO delivery (conversation, app_id, received, body) VALUES (?, ?, ?, ?)"
NEXT = """SELECT number, conversation, app_id, received, body FROM delivery INDEXED BY delivery_waiting
    WHERE refused IS NULL AND conversation NOT IN (SELECT value FROM json_each(?)) ORDER BY number LIMIT ?"""
COUNT = "SELECT count(*) FROM delivery WHERE refused IS NULL"
ANY = "SELECT 1 FROM delivery WHERE refused IS NULL LIMIT 1"
DELETE = "DELETE FROM delivery WHERE number = ?"
REFUSE = "UPDATE delivery SET refused = ? WHERE number = ?"
REFUSED = "SELECT refused FROM delivery WHERE refused IS NOT NULL ORDER BY number"
OFFER_AGAIN = "UPDATE delivery SET refused = NULL WHERE refused IS NOT NULL"

BATCH = 256
PAUSES = Backoff(attempts=sys.maxsize, first=0.5, factor=2.0, most=5.0)
POLL = 0.25  # seconds of real time between two looks at what another process has put into the file


class _SpoolRow(NamedTuple):
    number: int
    conversation: str
    app_id: str
    received: float
    body: bytes

    def delivery(self) -> Delivery:
        return delivery_of(self.body, app_id=self.app_id, received=datetime.fromtimestamp(self.received, UTC))


class _SpoolFile(Database):
    """The file, for a group commit; its methods run in threads."""

    def open(self) -> None:
        super().open()
        self.commit([partial(self.execute, OFFER_AGAIN)])

    def any(self) -> bool:
        return self.execute(ANY).fetchone() is not None

    def insert(self, delivery: Delivery) -> None:
        values = (delivery.conversation, delivery.app_id, delivery.received.timestamp(), delivery.body)
        self.execute(INSERT, values)

    def settle(self, stored: Sequence[int], refused: Sequence[tuple[str, int]], pausing: Sequence[str]) -> list[_SpoolRow]:
        """Forget deliveries that are stored, mark those that are refused; return the next ones of other conversations."""
        self.executemany(DELETE, [(number,) for number in stored])
        self.executemany(REFUSE, refused)
        return [_SpoolRow(*row) for row in self.execute(NEXT, (json.dumps(pausing), BATCH))]


def refused_in(path: Path) -> list[str]:
    """Return why the sink refused the deliveries that a spool keeps for good, an error for each; none without the file."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        return [error for (error,) in database.execute(REFUSED)]


class Spool:
    """Keeps deliveries in its own file until :meth:`forward` has given them to ``sink``, in order.

    Enter it to open the file. If the sink was only slow and has a delivery already, it recognises the key. ``budget`` is the
    sink's limit for a batch, in seconds. ``observers`` get what the sink refuses for good (it is kept in the file) and what
    it puts in quarantine.
    """

    def __init__(self, path: Path, sink: Sink, *, clock: Clock, budget: float, observers: Observers | None = None) -> None:
        self._holds = False
        self._path = path
        self._log_path = f"{path.resolve()}-wal"  # it is beside the file, not beside a link to it
        self._log: tuple[int, int] | None = None  # when it was known whether any delivery waits
        self._file = _SpoolFile(path, SPOOL, clock=epoch_of(clock))
        self._sink = sink
        self._accept: Callable[..., Awaitable[bool | OtherContent]] = sink.accept
        self._chained = "chain" in signature(sink.accept).parameters
        self._clock, self._monotonic = clock, monotonic_of(clock)
        self._budget = budget
        self._observers = observers or Observers()
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._news = anyio.Event()
        self._puts = 0
        self._commits: GroupCommit = await self._entered.enter_async_context(open_group_commit(self._file))
        await self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._entered.__aexit__(kind, error, trace)

    @property
    def holds(self) -> bool:
        """Whether deliveries wait here, or another process has just written to the file: then all others come here, too."""
        return self._holds or self._log_now() != self._log

    def _log_now(self) -> tuple[int, int] | None:
        try:
            log = os.stat(self._log_path)  # noqa: PTH116  # each delivery pays for it
        except OSError:
            return None
        return log.st_mtime_ns, log.st_size

    async def _look(self) -> None:
        """Look whether deliveries wait."""
        log = self._log_now()
        self._holds = await self._commits.read(self._file.any)
        self._log = log

    async def waiting(self) -> int:
        """Return the number of deliveries that wait here."""
        ((count,),) = await self._commits.query(partial(self._file.query, COUNT))
        return int(count)

    def put(self, delivery: Delivery) -> Callable[[], Awaitable[None]]:
        """Queue a delivery behind those that were put before; return a function that waits until it is durable."""
        stored = self._commits.begin(partial(self._file.insert, delivery))
        self._holds = True
        self._puts += 1
        self._news.set()
        return stored

    async def forward(self) -> None:  # noqa: C901, PLR0912, PLR0915  # one loop, in order
        """Forward deliveries to the sink, which is entered, until cancelled."""
        stored: list[int] = []
        refused: list[tuple[str, int]] = []
        failed: set[str] = set()  # conversations that are passed over
        again = 0.0  # when that ends
        failures = 0  # of the file and of the sink, since nothing waited
        while True:
            puts, self._news, now = self._puts, anyio.Event(), self._monotonic()
            if now >= again:
                failed.clear()
            rows: list[_SpoolRow] = []
            try:
                if not self._holds:
                    await self._look()
                if self._holds and getattr(self._sink, "ready", True) is not False:
                    rows = await self._commits.run(partial(self._file.settle, stored, refused, [*failed]))
                    stored, refused = [], []
                    # a command runs after what was put before; and more may be put meanwhile
                    log = self._log_now()
                    self._holds = bool(rows) or await self._commits.run(self._file.any) or self._puts != puts
                    self._log = log
            except Exception:
                failures += 1
                pause = PAUSES.pause(failures) or PAUSES.most
                self._observers.log.exception("the spool cannot be used; next try in %.2g s", pause)
                await self._clock.sleep(pause)
                continue
            if not rows:
                failures = failures if self._holds else 0
                with self._clock.scope(again - now) if failed else nullcontext(), anyio.move_on_after(POLL):
                    await self._news.wait()
                continue

            conversations: dict[str, list[_SpoolRow]] = defaultdict(list)
            for row in rows:
                conversations[row.conversation].append(row)
            errors = await self._offer(rows, conversations)
            stored = [row.number for row in rows if row.number not in errors]
            new: dict[str, tuple[_SpoolRow, BaseException]] = {}
            for name, of_one in conversations.items():
                first = next((row for row in of_one if row.number in errors), None)
                if first is None:
                    continue
                error = errors[first.number]
                if error is None and first is not of_one[0]:
                    continue  # the time was over before its turn
                if isinstance(error, InvalidRequest):
                    refused.append((str(error), first.number))
                    problem = f"the sink refuses it: {error}; it stays in {self._path}, and is offered again after a restart"
                    self._observers.notify(Quarantined, key=first.delivery().key, problem=problem)
                else:
                    new[name] = first, error or TimeoutError(f"the sink took longer than {self._budget:g} s")
            if not new:
                continue
            key, failure = next((row.delivery().key, failure_of(error)) for row, error in new.values())
            others = f" and those of {len(new) - 1} more conversations" if len(new) > 1 else ""
            text = "event %s%s stays in the spool, and is offered to the sink again: %s"
            self._observers.log.warning(text, key, others, failure.line, extra={"rbim_key": key})
            down = len(new) == len(conversations) > 1 and not stored
            if down or not failed:
                failures += 1
                pause = PAUSES.pause(failures) or PAUSES.most
                if down:
                    await self._clock.sleep(pause)
                again = self._monotonic() + pause
            failed.update(new)

    async def _offer(
        self, rows: Sequence[_SpoolRow], conversations: Mapping[str, Sequence[_SpoolRow]]
    ) -> dict[int, BaseException | None]:
        """Offer deliveries to the sink; return the numbers of those that it did not store, with the error, if any."""
        errors: dict[int, BaseException | None] = dict.fromkeys(row.number for row in rows)
        chains: dict[str, dict[str, Chain]] = {name: {"chain": Chain()} if self._chained else {} for name in conversations}
        lots = [[row] for row in rows] if self._chained else [*conversations.values()]
        following = iter(lots)

        async def offer_next() -> None:  # in order, whichever task begins first
            for row in next(following):
                code, chain = ForeignCode(), chains[row.conversation]
                try:
                    result = await self._accept(row.delivery(), **chain)
                except BaseException as error:
                    if not code.failed(error):
                        raise
                    errors[row.number] = error
                    for each in chain.values():
                        each.fail(error)
                    return
                del errors[row.number]
                if isinstance(result, OtherContent):
                    self._observers.notify(Quarantined, key=result.key, problem=result.problem, other_content=True)

        with self._clock.scope(self._budget):
            async with anyio.create_task_group() as tasks:
                for _ in lots:
                    tasks.start_soon(offer_next)
        return errors
