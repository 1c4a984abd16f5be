"""Loading of an input into the journal: the accounts of each sender group in chunks, without duplicates, and the bad rows.

Rows are gathered in a temporary table. When the input has ended, one query finds the duplicates, and another one puts the
accounts in the order in which they are read later.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Set as AbstractSet
from contextlib import aclosing, nullcontext, suppress
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain, compress, islice
from json import dumps
from typing import TYPE_CHECKING, Any, cast

from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from rbim.bulk.input.file import BATCH, RowFile, in_batches, source_of
from rbim.bulk.input.rows import BadRow, Columns, Row, bad_row, parse_row
from rbim.bulk.journal.schema import JOURNAL
from rbim.bulk.work import DONE_WORDS, AccountState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rbim.bulk.journal.journal import Journal
    from rbim.bulk.work import Work
    from rbim.storage.group_commit import GroupCommit
    from rbim.storage.sqlite import Database

__all__ = ["InputDigest", "Loader", "Rows", "batches", "load_input", "row_of"]

Rows = Iterable[Any] | AsyncIterable[Any]

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
    SELECT sender_group, (row_number() OVER (PARTITION BY sender_group ORDER BY seq) - 1) / (SELECT chunk FROM job),
        seq, account FROM temp.input WHERE seq NOT IN (SELECT seq FROM duplicate)"""
CHUNKS = "INSERT INTO chunk (sender_group, id) SELECT DISTINCT sender_group, chunk FROM account"


class InputDigest:
    """Counts and a digest of the rows of an input."""

    def __init__(self) -> None:
        self.rows = self.bad = self.duplicates = 0  # duplicates are found after the last row
        self._sha = sha256()

    @property
    def digest(self) -> str:
        """The digest of the rows so far."""
        return self._sha.hexdigest()

    def add(self, batch: Columns) -> tuple[Columns, list[BadRow]]:
        """Add rows; return those that can be used, and the others."""
        self.rows += len(batch.accounts)
        bad = [each for each in batch.accounts if isinstance(each, BadRow)]
        if bad:
            good = [not isinstance(each, BadRow) for each in batch.accounts]
            places = [str(line) for line, is_good in zip(batch.lines, good, strict=True) if not is_good]
            batch = Columns(*(list(compress(cast("Sequence[Any]", column), good)) for column in batch))
            self.bad += len(bad)
            self._update(places, *(map(str, column) for column in zip(*bad, strict=True)))
        if batch.accounts:
            acting = any(each is not None for each in batch.user_names)
            self._update(batch.groups, cast("list[str]", batch.accounts), *([map(str, batch.user_names)] * acting))
        return batch, bad

    def _update(self, *columns: Iterable[str]) -> None:
        text = "\x1d".join(["\x1e".join(column) for column in columns]) + "\x1c"
        self._sha.update(text.encode("utf-8", "surrogatepass"))


async def load_input(  # noqa: PLR0913  # a journal, a job and its rows
    journal: Journal,
    commits: GroupCommit,
    work: Work[Any],
    settings: dict[str, Any],
    rows: Rows,
    *,
    digest: InputDigest,
    threads: bool = True,
) -> None:
    """Load the rows of a new job into its journal, and count them in ``digest``."""
    await commits.read(partial(journal.set_fast_writes, loading=True))
    loader = await commits.run(partial(Loader, journal.database, work, settings, digest))
    async with aclosing(batches(rows, threads=threads)) as read:
        async for batch in read:
            await commits.run(partial(loader.add, batch))
    await commits.read(partial(journal.set_fast_writes, loading=False))
    await commits.run(partial(loader.end, source_of(rows)))


class Loader:
    """Makes a file the journal of a job, and writes the rows of its input. The call and each method are commands."""

    def __init__(self, database: Database, work: Work[Any], settings: dict[str, Any], digest: InputDigest) -> None:
        self._input = digest
        self._database = database
        self._sender_group = lru_cache(MAX_SENDER_GROUPS)(self._insert_sender_group)
        for table in ("job", "target_group", "sender_group", "account", "chunk", "bad_row", "duplicate"):
            database.execute(f"DELETE FROM {table}")  # noqa: S608  # the rest of an unfinished loading
        operation = work.operation.spec.name
        done_word = DONE_WORDS.get(operation, "done")
        database.execute("UPDATE account_state SET name = ? WHERE id = ?", (done_word, AccountState.DONE))
        database.execute(
            "INSERT INTO job (operation, options, chunk, settings, source, created) VALUES (?, ?, ?, ?, '{}', ?)",
            (operation, dumps(work.plain_options()), work.chunk, dumps(settings), database.now),
        )
        database.execute(INPUT)
        database.execute(f"PRAGMA temp.cache_size = -{JOURNAL.cache}")
        database.execute("PRAGMA temp.journal_mode = OFF")

    def add(self, batch: Columns) -> None:
        """Add rows."""
        good, bad = self._input.add(batch)
        sender_groups = map(self._sender_group, good.groups, good.user_names)
        values = list(chain.from_iterable(zip(good.lines, sender_groups, good.accounts, strict=True)))
        rest = len(values) - len(values) % (3 * TOGETHER)
        several = (values[at : at + 3 * TOGETHER] for at in range(0, rest, 3 * TOGETHER))
        self._database.executemany(INSERT + ", (?, ?, ?)" * (TOGETHER - 1), several)
        self._database.executemany(INSERT, (values[at : at + 3] for at in range(rest, len(values), 3)))
        self._database.executemany("INSERT INTO bad_row (line, reason, raw) VALUES (?, ?, ?)", bad)
        self._database.execute("UPDATE job SET rows = ?, bad = ?", (self._input.rows, self._input.bad))

    def end(self, source: dict[str, Any]) -> None:
        """Make the chunks when all rows were added, and record that the input is complete."""
        found = self._input
        found.duplicates = self._database.execute(DUPLICATES).rowcount
        self._database.execute(ACCOUNTS)
        self._database.execute(CHUNKS)
        self._database.execute("DROP TABLE temp.input")
        self._database.execute(
            "UPDATE job SET loaded = ?, duplicates = ?, digest = ?, source = ?",
            (self._database.now, found.duplicates, found.digest, dumps(source)),
        )

    def _insert_sender_group(self, group: str, user_name: str | None) -> int:
        execute = self._database.execute
        execute("INSERT OR IGNORE INTO target_group (name) VALUES (?)", (group,))
        ((target,),) = execute("SELECT id FROM target_group WHERE name = ?", (group,))
        values = (target, user_name or "")
        execute("INSERT OR IGNORE INTO sender_group (target_group, user_name) VALUES (?, ?)", values)
        ((number,),) = execute("SELECT id FROM sender_group WHERE target_group = ? AND user_name = ?", values)
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


async def batches(rows: Rows, *, threads: bool = True) -> AsyncGenerator[Columns, None]:
    """Yield the rows of an iterable, at most :data:`BATCH` at a time; other tasks run in between.

    With ``threads`` a file is read in a thread; on cancellation the thread is abandoned.
    """
    if isinstance(rows, RowFile):
        read = partial(next, in_batches(rows), None)
        while (part := await run_sync(read, abandon_on_cancel=True) if threads else read()) is not None:
            yield part
            await checkpoint()
        return
    number = 0
    if isinstance(rows, AsyncIterable):
        generator = cast("AsyncGenerator[Any, None]", rows)
        async with aclosing(generator) if hasattr(rows, "aclose") else nullcontext():  # close it, nothing else reads on
            batch: list[Any] = []
            async for each in rows:
                batch.append(each)
                if len(batch) == BATCH:
                    yield _columns(batch, number)
                    number, batch = number + BATCH, []
            if batch:
                yield _columns(batch, number)
        return
    values = iter(rows)
    while found := list(islice(values, BATCH)):
        yield _columns(found, number)
        number += len(found)
        await checkpoint()


def _columns(found: Sequence[Any], before: int) -> Columns:
    """Return values of an iterable that come after so many others as rows."""
    places = range(before + 1, before + 1 + len(found))
    return Columns.of(map(row_of, places, found), places)
