"""The input into the journal: rows are numbered, what cannot be used is noted, and what was there before is a duplicate."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import AsyncExitStack, aclosing, suppress
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync
from attrs import frozen

from rbim.bulk.input.file import RowFile
from rbim.bulk.input.rows import BadRow, Row, bad_row, checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rbim.storage.sqlite import Database

__all__ = ["BATCH", "Loaded", "Loader", "Rows", "batches", "row_of"]

Rows = Iterable[Any] | AsyncIterable[Any]

BATCH = 5000
"""Rows of one transaction."""

LEAST = 2  # fields of a row: the acting account may be left out
KNOWN = 10_000  # groups whose numbers are kept at hand

ADD = "INSERT OR IGNORE INTO account (lane, seq, party, account) VALUES (?, ?, ?, ?)"
TWICE = """INSERT INTO duplicate (seq, party, account, first)
    SELECT ?, party, account, seq FROM account WHERE party = ? AND account = ?"""


@frozen(kw_only=True)
class Loaded:
    """What an input holds: all its rows, those that cannot be used, those that say again what another said, and a digest."""

    rows: int
    bad: int
    duplicates: int
    digest: str


class Loader:
    """Puts rows into the tables, a batch in a transaction; without a database it only counts and digests."""

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._rows = self._bad = self._duplicates = 0
        self._digest = sha256()
        self._parties: dict[str, int] = {}
        self._lanes: dict[tuple[int, str], int] = {}

    @property
    def loaded(self) -> Loaded:
        """What was read so far."""
        return Loaded(rows=self._rows, bad=self._bad, duplicates=self._duplicates, digest=self._digest.hexdigest())

    def add(self, batch: Sequence[Row | BadRow]) -> None:
        """Add rows; a command of the database's, where there is one."""
        self._digest.update("\x1e".join(["\x1f".join(map(str, each)) for each in batch]).encode("utf-8", "surrogatepass"))
        if self._database is not None:
            self._keep(self._database, batch)
        self._rows += len(batch)

    def _keep(self, database: Database, batch: Sequence[Row | BadRow]) -> None:
        accounts: list[tuple[int, int, int, str]] = []
        bad: list[BadRow] = []
        ends: dict[int, int] = {}
        for seq, each in enumerate(batch, self._rows + 1):
            if isinstance(each, BadRow):
                bad.append(each)
                continue
            party = self._parties.get(each.group) or self._party(database, each.group)
            key = (party, each.user_name or "")
            lane = self._lanes.get(key) or self._lane(database, key)
            ends[lane] = seq
            accounts.append((lane, seq, party, each.account))
        added = database.executemany(ADD, accounts) if accounts else 0
        if added < len(accounts):
            self._duplicates += self._find_duplicates(database, accounts)
        database.executemany("UPDATE lane SET last = ? WHERE id = ?", [(seq, lane) for lane, seq in ends.items()])
        database.executemany("INSERT INTO bad_row (line, reason, raw) VALUES (?, ?, ?)", bad)
        self._bad += len(bad)

    @staticmethod
    def _find_duplicates(database: Database, accounts: list[tuple[int, int, int, str]]) -> int:
        there = "SELECT 1 FROM account WHERE lane = ? AND seq = ?"
        twice = [row for row in accounts if database.execute(there, row[:2]).fetchone() is None]
        database.executemany(TWICE, [(seq, party, account) for _, seq, party, account in twice])
        return len(twice)

    def _party(self, database: Database, name: str) -> int:
        if len(self._parties) >= KNOWN:
            self._parties.clear()
            self._lanes.clear()
        database.execute("INSERT OR IGNORE INTO party (name) VALUES (?)", (name,))
        ((number,),) = database.execute("SELECT id FROM party WHERE name = ?", (name,))
        self._parties[name] = number
        return cast("int", number)

    def _lane(self, database: Database, key: tuple[int, str]) -> int:
        database.execute("INSERT OR IGNORE INTO lane (party, user_name) VALUES (?, ?)", key)
        ((number,),) = database.execute("SELECT id FROM lane WHERE party = ? AND user_name = ?", key)
        self._lanes[key] = number
        return cast("int", number)


def row_of(number: int, given: Any) -> Row | BadRow:
    """Return what an iterable has given as a row, or why it makes none; ``number`` is its place, from 1."""
    if isinstance(given, BadRow):
        return given
    raw: object = given
    values: tuple[Any, ...] = ()
    if not isinstance(given, (str, bytes, Mapping, AbstractSet)):  # keys of a mapping are no row, a set has no order
        with suppress(TypeError):
            values = tuple(cast("Iterable[Any]", given))
    if not LEAST <= len(values) <= len(Row._fields):
        return bad_row(number, "a row is a group and an account, and the acting account if need be", repr(raw))
    group, account, *acting = values
    made = checked(group, account, acting[0] if acting else None, None)
    return bad_row(number, made, repr(raw)) if isinstance(made, str) else made


async def batches(rows: Rows, *, threads: bool = True) -> AsyncGenerator[list[Row | BadRow], None]:
    """Yield the rows of an iterable in lists of at most :data:`BATCH`, and let others go on in between.

    A file is read in a thread, which is left alone where its caller is cancelled.
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
            if hasattr(several, "aclose"):  # a generator: nobody else goes on with it
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
