"""Loading of an input into the journal: numbers the rows and notes bad rows and duplicates."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import AsyncExitStack, aclosing, suppress
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from rbim.bulk.input.file import RowFile
from rbim.bulk.input.rows import BadRow, Row, bad_row, parse_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rbim.storage.sqlite import Database

__all__ = ["BATCH", "Loaded", "Loader", "Rows", "batches", "row_of"]

Rows = Iterable[Any] | AsyncIterable[Any]

BATCH = 5000
"""Rows in one transaction."""

MIN_FIELDS = 2  # fields of a row: the acting account is optional
CACHED_GROUPS = 10_000  # groups whose numbers are cached

ADD = "INSERT OR IGNORE INTO account (lane, seq, party, account) VALUES (?, ?, ?, ?)"
ADD_DUPLICATE = """INSERT INTO duplicate (seq, party, account, first)
    SELECT ?, party, account, seq FROM account WHERE party = ? AND account = ?"""


class Loaded(NamedTuple):
    """Counts of an input: all rows, rows that cannot be used, duplicates; and a digest of the rows."""

    rows: int
    bad: int
    duplicates: int
    digest: str


class Loader:
    """Writes rows into the tables, one batch in a transaction; without a database it only counts and digests."""

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._rows = self._bad = self._duplicates = 0
        self._digest = sha256()
        self._group_numbers: dict[str, int] = {}
        self._sender_groups: dict[tuple[int, str], int] = {}

    @property
    def loaded(self) -> Loaded:
        """The counts so far."""
        return Loaded(rows=self._rows, bad=self._bad, duplicates=self._duplicates, digest=self._digest.hexdigest())

    def add(self, batch: Sequence[Row | BadRow]) -> None:
        """Add rows. With a database, run it as a command of its transaction."""
        self._digest.update("\x1e".join(["\x1f".join(map(str, each)) for each in batch]).encode("utf-8", "surrogatepass"))
        if self._database is not None:
            self._insert(self._database, batch)
        self._rows += len(batch)

    def _insert(self, database: Database, batch: Sequence[Row | BadRow]) -> None:
        accounts: list[tuple[int, int, int, str]] = []
        bad: list[BadRow] = []
        ends: dict[int, int] = {}
        for seq, each in enumerate(batch, self._rows + 1):
            if isinstance(each, BadRow):
                bad.append(each)
                continue
            group = self._group_numbers.get(each.group) or self._group_number(database, each.group)
            key = (group, each.user_name or "")
            sender_group = self._sender_groups.get(key) or self._sender_group_number(database, key)
            ends[sender_group] = seq
            accounts.append((sender_group, seq, group, each.account))
        added = database.executemany(ADD, accounts) if accounts else 0
        if added < len(accounts):
            self._duplicates += self._find_duplicates(database, accounts)
        database.executemany(
            "UPDATE lane SET last = ? WHERE id = ?", [(seq, sender_group) for sender_group, seq in ends.items()]
        )
        database.executemany("INSERT INTO bad_row (line, reason, raw) VALUES (?, ?, ?)", bad)
        self._bad += len(bad)

    @staticmethod
    def _find_duplicates(database: Database, accounts: list[tuple[int, int, int, str]]) -> int:
        query = "SELECT 1 FROM account WHERE lane = ? AND seq = ?"
        repeated = [row for row in accounts if database.execute(query, row[:2]).fetchone() is None]
        database.executemany(ADD_DUPLICATE, [(seq, group, account) for _, seq, group, account in repeated])
        return len(repeated)

    def _group_number(self, database: Database, name: str) -> int:
        if len(self._group_numbers) >= CACHED_GROUPS:
            self._group_numbers.clear()
            self._sender_groups.clear()
        database.execute("INSERT OR IGNORE INTO party (name) VALUES (?)", (name,))
        ((number,),) = database.execute("SELECT id FROM party WHERE name = ?", (name,))
        self._group_numbers[name] = number
        return cast("int", number)

    def _sender_group_number(self, database: Database, key: tuple[int, str]) -> int:
        database.execute("INSERT OR IGNORE INTO lane (party, user_name) VALUES (?, ?)", key)
        ((number,),) = database.execute("SELECT id FROM lane WHERE party = ? AND user_name = ?", key)
        self._sender_groups[key] = number
        return cast("int", number)


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


async def batches(rows: Rows, *, threads: bool = True) -> AsyncGenerator[list[Row | BadRow], None]:
    """Yield the rows of an iterable in lists of at most :data:`BATCH`; other tasks run in between.

    A file is read in a thread; on cancellation the thread is abandoned.
    """
    number = 0
    if isinstance(rows, RowFile) and threads:
        lines = iter(rows)
        while part := await run_sync(lambda: list(islice(lines, BATCH)), abandon_on_cancel=True):
            yield part
        return
    if isinstance(rows, AsyncIterable):
        async with AsyncExitStack() as closing:
            several: AsyncIterable[Any] = rows
            if hasattr(several, "aclose"):  # a generator: close it, nothing else reads on
                await closing.enter_async_context(aclosing(cast("AsyncGenerator[Any, None]", several)))
            batch: list[Row | BadRow] = []
            async for each in several:
                number += 1
                batch.append(row_of(number, each))
                if len(batch) == BATCH:
                    yield batch
                    batch = []
            if batch:
                yield batch
        return
    source: Iterator[Any] = iter(rows)
    while found := list(islice(source, BATCH)):
        yield [row_of(number + place, each) for place, each in enumerate(found, 1)]
        number += len(found)
        await checkpoint()
