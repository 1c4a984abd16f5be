"""Loading of an input into the journal: gathers the accounts of each request and notes bad rows.

Duplicates are found when the whole input is there (see :mod:`rbim.bulk.journal.packing`).
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import AsyncExitStack, aclosing, suppress
from hashlib import sha256
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from rbim.bulk.input.file import RowFile, in_batches
from rbim.bulk.input.rows import BadRow, Columns, Row, bad_row, parse_row
from rbim.bulk.journal.content import Content
from rbim.bulk.journal.duplicates import Hashes
from rbim.bulk.journal.overflow import Overflow, Part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rbim.storage.sqlite import Database

__all__ = ["BATCH", "Loaded", "Loader", "Rows", "batches", "hashes_of", "row_of"]

Rows = Iterable[Any] | AsyncIterable[Any]

BATCH = 5000
"""Rows in one transaction."""

MIN_FIELDS = 2  # fields of a row: the acting account is optional
MAX_HELD = 300_000  # rows that wait in memory until their request is full
MAX_SENDER_GROUPS = 50_000  # sender groups that are kept in memory

ADD = "INSERT INTO content (sender_group, size, first, step, rows, accounts) VALUES (?, ?, ?, ?, ?, ?)"


class Loaded(NamedTuple):
    """Counts of an input: all rows, rows that cannot be used, duplicates; and a digest of the rows."""

    rows: int
    bad: int
    duplicates: int
    digest: str


class _SenderGroup:
    """The accounts of a sender group that wait until they fill a request, and the numbers of their rows."""

    __slots__ = ("accounts", "number", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.accounts: list[str] = []
        self.rows = array("q")  # a fifth of a list's memory

    def take(self, size: int) -> list[Part]:
        """Take what fills requests of ``size`` accounts."""
        end = len(self.accounts) - len(self.accounts) % size
        parts = [Part(self.number, self.accounts[at : at + size], self.rows[at : at + size]) for at in range(0, end, size)]
        del self.accounts[:end], self.rows[:end]
        return parts


class Loader:
    """Writes rows into the tables, ``size`` accounts at a time; without a database it only counts and digests.

    ``folder`` is for temporary files (default: the system's). Close it after use.
    """

    def __init__(self, database: Database | None, size: int = 1, folder: Path | None = None) -> None:
        self._database = database
        self._size = size
        self.rows = self.bad = self.duplicates = 0
        self.hashes = Hashes(folder)
        self._overflow = Overflow(folder)
        self._digest = sha256()
        self._sender_groups: dict[str | tuple[str, str | None], _SenderGroup] = {}
        self._held = 0

    @property
    def loaded(self) -> Loaded:
        """The counts so far."""
        return Loaded(rows=self.rows, bad=self.bad, duplicates=self.duplicates, digest=self._digest.hexdigest())

    def close(self) -> None:
        """Free the disk."""
        self.hashes.close()
        self._overflow.close()

    def add(self, batch: Columns) -> None:
        """Add rows. With a database, run it as a command of its transaction."""
        count = len(batch.accounts)
        seqs: Sequence[int] = range(self.rows + 1, self.rows + count + 1)
        if BadRow in set(map(type, batch.accounts)):
            good = [not isinstance(each, BadRow) for each in batch.accounts]
            bad = [each for each in batch.accounts if isinstance(each, BadRow)]
            places = [seq for seq, is_good in zip(seqs, good, strict=True) if not is_good]
            batch, seqs = batch.where(good), list(compress(seqs, good))
            self._note(map(str, places), *(map(str, column) for column in zip(*bad, strict=True)))
            self.bad += len(bad)
            if self._database is not None:
                self._database.executemany("INSERT INTO bad_row (line, reason, raw) VALUES (?, ?, ?)", bad)
        if seqs:
            groups, user_names = batch.groups, batch.user_names
            accounts = cast("Sequence[str]", batch.accounts)
            keys: Sequence[Any] = groups
            if user_names.count(None) < len(seqs):
                keys = list(zip(groups, user_names, strict=True))
                self._note(groups, accounts, map(str, user_names))
            else:
                self._note(groups, accounts)
            if self._database is not None:
                self.hashes.add(hashes_of(groups, accounts))
                self._insert(self._database, keys, accounts, seqs)
        self.rows += count

    def _note(self, *columns: Iterable[str]) -> None:
        """Add columns of a batch to the digest."""
        text = "\x1d".join(["\x1e".join(column) for column in columns]) + "\x1c"
        self._digest.update(text.encode("utf-8", "surrogatepass"))

    def end(self) -> None:
        """Write the rows that wait for their request to fill. Run it as a command of a transaction."""
        if self._database is None:
            return
        waiting: Iterable[Part] = self._waiting()
        if self._overflow:
            self._overflow.add(waiting)
            waiting = self._overflow.merged(self._size)
        self._write(self._database, waiting)

    def _insert(self, database: Database, keys: Sequence[Any], accounts: Sequence[str], seqs: Sequence[int]) -> None:
        """Insert accounts; ``keys`` are their sender groups."""
        full: list[Part] = []
        if keys.count(keys[0]) == len(keys):  # all for one sender group
            sender_group = self._sender_group(database, keys[0])
            sender_group.accounts.extend(accounts)
            sender_group.rows.extend(seqs)
            full.extend(sender_group.take(self._size))
        else:
            self._distribute(database, keys, accounts, seqs, full)
        self._write(database, full)
        self._held += len(keys) - sum(len(part.rows) for part in full)
        if self._held > MAX_HELD or len(self._sender_groups) > MAX_SENDER_GROUPS:
            self._overflow.add(self._waiting())

    def _distribute(
        self, database: Database, keys: Sequence[Any], accounts: Sequence[str], seqs: Sequence[int], full: list[Part]
    ) -> None:
        """Give each account to its sender group, and add the parts that are full now."""
        size, sender_groups = self._size, self._sender_groups
        for key, account, seq in zip(keys, accounts, seqs, strict=True):
            sender_group = sender_groups.get(key) or self._sender_group(database, key)
            waiting = sender_group.accounts
            waiting.append(account)
            sender_group.rows.append(seq)
            if len(waiting) >= size:
                full.extend(sender_group.take(size))

    @staticmethod
    def _write(database: Database, parts: Iterable[Part]) -> None:
        database.executemany(ADD, ((part.sender_group, *Content.of(part.accounts, part.rows)) for part in parts))

    def _waiting(self) -> list[Part]:
        """Take the accounts that wait in memory for their request to fill."""
        waiting = [Part(each.number, each.accounts, each.rows) for each in self._sender_groups.values() if each.rows]
        if len(self._sender_groups) > MAX_SENDER_GROUPS:
            self._sender_groups.clear()
        for each in self._sender_groups.values():
            each.accounts, each.rows = [], array("q")
        self._held = 0
        return waiting

    def _sender_group(self, database: Database, key: Any) -> _SenderGroup:  # a group, or a group with an acting account
        found = self._sender_groups.get(key)
        if found is not None:
            return found
        group, user_name = (key, None) if isinstance(key, str) else key
        database.execute("INSERT OR IGNORE INTO target_group (name) VALUES (?)", (group,))
        ((target,),) = database.execute("SELECT id FROM target_group WHERE name = ?", (group,))
        values = (target, user_name or "")
        database.execute("INSERT OR IGNORE INTO sender_group (target_group, user_name) VALUES (?, ?)", values)
        ((number,),) = database.execute("SELECT id FROM sender_group WHERE target_group = ? AND user_name = ?", values)
        made = self._sender_groups[key] = _SenderGroup(number)
        return made


def hashes_of(groups: Iterable[str], accounts: Iterable[str]) -> list[int]:
    """Return a hash of each account in its group, of 64 bits, the same within a process."""
    return list(map(hash, zip(groups, accounts, strict=False)))


def row_of(number: int, given: Any) -> Row | BadRow:
    """Return a value of an iterable as a row, or as a bad row with the reason; ``number`` is its place, from 1."""
    if isinstance(given, BadRow):
        return given
    raw: object = given
    values: tuple[Any, ...] = ()
    if not isinstance(given, (str, bytes, Mapping, AbstractSet)):  # a mapping is not a row, a set has no order
        with suppress(TypeError):
            values = tuple(cast("Iterable[Any]", given))
    if not MIN_FIELDS <= len(values) <= len(Row._fields):
        return bad_row(number, "invalid row: use (group, account) or (group, account, acting account)", repr(raw))
    group, account, *acting = values
    row = parse_row(group, account, acting[0] if acting else None, None)
    return bad_row(number, row, repr(raw)) if isinstance(row, str) else row


async def batches(rows: Rows, *, threads: bool = True) -> AsyncGenerator[Columns, None]:
    """Yield the rows of an iterable, at most :data:`BATCH` at a time; other tasks run in between.

    A file is read in a thread; on cancellation the thread is abandoned.
    """
    number = 0
    if isinstance(rows, RowFile) and threads:
        several = await run_sync(in_batches, rows, BATCH, abandon_on_cancel=True)
        while (part := await run_sync(next, several, None, abandon_on_cancel=True)) is not None:
            yield part
        return
    if isinstance(rows, AsyncIterable):
        async with AsyncExitStack() as closing:
            source: AsyncIterable[Any] = rows
            if hasattr(source, "aclose"):  # a generator: close it, nothing else reads on
                await closing.enter_async_context(aclosing(cast("AsyncGenerator[Any, None]", source)))
            batch: list[Row | BadRow] = []
            async for each in source:
                number += 1
                batch.append(row_of(number, each))
                if len(batch) == BATCH:
                    yield Columns.of(batch)
                    batch = []
            if batch:
                yield Columns.of(batch)
        return
    values: Iterator[Any] = iter(rows)
    while found := list(islice(values, BATCH)):
        yield Columns.of(row_of(number + place, each) for place, each in enumerate(found, 1))
        number += len(found)
        await checkpoint()
