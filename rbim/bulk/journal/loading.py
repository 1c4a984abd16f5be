"""Loading of an input into the journal: the accounts of each sender group in chunks, without duplicates, and the bad rows.

Rows are gathered in a temporary table. When the input has ended, one query finds the duplicates, and another one puts the
accounts in the order in which they are read later.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import AsyncExitStack, aclosing, suppress
from hashlib import sha256
from itertools import chain, compress, islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from rbim.bulk.input.file import RowFile, in_batches
from rbim.bulk.input.rows import BadRow, Columns, Row, bad_row, parse_row
from rbim.bulk.journal.schema import JOURNAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rbim.storage.sqlite import Database

__all__ = ["BATCH", "Loaded", "Loader", "Rows", "batches", "row_of"]

Rows = Iterable[Any] | AsyncIterable[Any]

BATCH = 5000
"""Rows in one transaction."""

MIN_FIELDS = 2  # fields of a row: the acting account is optional
TOGETHER = 50  # rows that one statement inserts: half the time
MAX_SENDER_GROUPS = 50_000  # sender groups whose numbers are kept in memory

INPUT = "CREATE TEMP TABLE input (seq INTEGER PRIMARY KEY, sender_group INTEGER NOT NULL, account TEXT NOT NULL)"
INSERT = "INSERT INTO temp.input VALUES (?, ?, ?)"
DUPLICATES = """INSERT INTO duplicate (seq, target_group, account, first)
    SELECT input.seq, target_group, input.account, first FROM temp.input JOIN sender_group ON sender_group.id = sender_group
    CROSS JOIN (SELECT target_group AS its_group, account AS its_account, min(seq) AS first
        FROM temp.input JOIN sender_group ON sender_group.id = sender_group
        GROUP BY target_group, account HAVING count(*) > 1) ON its_group = target_group AND its_account = input.account
    WHERE input.seq > first"""
ACCOUNTS = """INSERT INTO account (sender_group, chunk, seq, account)
    SELECT sender_group, (row_number() OVER (PARTITION BY sender_group ORDER BY seq) - 1) / :size, seq, account
    FROM temp.input WHERE seq NOT IN (SELECT seq FROM duplicate)"""


class Loaded(NamedTuple):
    """Counts of an input: all rows, rows that cannot be used, duplicates; and a digest of the rows."""

    rows: int
    bad: int
    duplicates: int
    digest: str


class Loader:
    """Writes rows into the tables; without a database it only counts and digests. Each method is a command."""

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._rows = self._bad = self._duplicates = 0
        self._digest = sha256()
        self._sender_groups: dict[Any, int] = {}  # their numbers, by group, or by group and acting account
        if database is not None:
            database.execute("DROP TABLE IF EXISTS temp.input")
            database.execute(INPUT)
            database.execute(f"PRAGMA temp.cache_size = -{JOURNAL.cache}")
            database.execute("PRAGMA temp.journal_mode = OFF")

    @property
    def loaded(self) -> Loaded:
        """The counts so far."""
        return Loaded(rows=self._rows, bad=self._bad, duplicates=self._duplicates, digest=self._digest.hexdigest())

    def add(self, batch: Columns) -> None:
        """Add rows."""
        database, count = self._database, len(batch.accounts)
        seqs = batch.lines
        if BadRow in set(map(type, batch.accounts)):
            good = [not isinstance(each, BadRow) for each in batch.accounts]
            bad = [each for each in batch.accounts if isinstance(each, BadRow)]
            places = [seq for seq, is_good in zip(seqs, good, strict=True) if not is_good]
            batch, seqs = batch.where(good), list(compress(seqs, good))
            self._add_to_digest(map(str, places), *(map(str, column) for column in zip(*bad, strict=True)))
            self._bad += len(bad)
            if database is not None:
                database.executemany("INSERT INTO bad_row (line, reason, raw) VALUES (?, ?, ?)", bad)
        if seqs:
            accounts = cast("Sequence[str]", batch.accounts)
            keys: Sequence[Any] = batch.groups
            if batch.user_names.count(None) < len(seqs):
                keys = list(zip(batch.groups, batch.user_names, strict=True))
                self._add_to_digest(batch.groups, accounts, map(str, batch.user_names))
            else:
                self._add_to_digest(batch.groups, accounts)
            if database is not None:
                rows = zip(seqs, self._sender_groups_of(database, keys), accounts, strict=True)
                values = list(chain.from_iterable(rows))
                rest = len(values) - len(values) % (3 * TOGETHER)
                several = (values[at : at + 3 * TOGETHER] for at in range(0, rest, 3 * TOGETHER))
                database.executemany(INSERT + ", (?, ?, ?)" * (TOGETHER - 1), several)
                database.executemany(INSERT, (values[at : at + 3] for at in range(rest, len(values), 3)))
        self._rows += count
        if database is not None:
            database.execute("UPDATE job SET rows = ?, bad = ?", (self._rows, self._bad))

    def end(self, size: int) -> None:
        """Make the chunks, of at most ``size`` accounts, when all rows were added."""
        if self._database is not None:
            self._database.execute(DUPLICATES)
            ((self._duplicates,),) = self._database.execute("SELECT count(*) FROM duplicate")
            self._database.execute(ACCOUNTS, {"size": size})
            self._database.execute("DROP TABLE temp.input")

    def _add_to_digest(self, *columns: Iterable[str]) -> None:
        text = "\x1d".join(["\x1e".join(column) for column in columns]) + "\x1c"
        self._digest.update(text.encode("utf-8", "surrogatepass"))

    def _sender_groups_of(self, database: Database, keys: Sequence[Any]) -> Iterable[int]:
        """Return the numbers of sender groups; a key is a group, or a group with an acting account."""
        numbers = self._sender_groups
        if len(numbers) > MAX_SENDER_GROUPS:
            numbers.clear()
        for key in dict.fromkeys(keys):
            if key in numbers:
                continue
            group, user_name = (key, None) if isinstance(key, str) else key
            database.execute("INSERT OR IGNORE INTO target_group (name) VALUES (?)", (group,))
            ((target,),) = database.execute("SELECT id FROM target_group WHERE name = ?", (group,))
            values = (target, user_name or "")
            database.execute("INSERT OR IGNORE INTO sender_group (target_group, user_name) VALUES (?, ?)", values)
            find = "SELECT id FROM sender_group WHERE target_group = ? AND user_name = ?"
            ((numbers[key],),) = database.execute(find, values)
        return map(numbers.__getitem__, keys)


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
        several = await run_sync(in_batches, rows, abandon_on_cancel=True)
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
                    yield Columns.of(batch, range(number - BATCH + 1, number + 1))
                    batch = []
            if batch:
                yield Columns.of(batch, range(number - len(batch) + 1, number + 1))
        return
    values: Iterator[Any] = iter(rows)
    while found := list(islice(values, BATCH)):
        places = range(number + 1, number + len(found) + 1)
        yield Columns.of(map(row_of, places, found), places)
        number += len(found)
        await checkpoint()
