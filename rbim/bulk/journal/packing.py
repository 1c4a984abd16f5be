"""From the loaded contents of a journal to its chunks: without duplicates, full ones, in the order of sending."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING

from rbim.bulk.journal.content import Content
from rbim.bulk.journal.loading import ADD, hashes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.bulk.journal.duplicates import Candidates
    from rbim.bulk.journal.loading import Loader
    from rbim.storage.sqlite import Database

__all__ = ["pack"]

EACH = """SELECT content.id, sender_group, size, first, step, rows, accounts, target_group.id, target_group.name FROM content
    JOIN sender_group ON sender_group.id = sender_group JOIN target_group ON target_group.id = target_group
    ORDER BY content.id"""
REPEATED = """CREATE TEMP TABLE repeated
    (target_group INTEGER NOT NULL, account TEXT NOT NULL, seq INTEGER NOT NULL, content INTEGER NOT NULL)"""
ADD_REPEATED = "INSERT INTO temp.repeated (target_group, account, seq, content) VALUES (?, ?, ?, ?)"
FIRSTS = """CREATE TEMP TABLE later AS SELECT target_group, account, seq, content, first FROM (
    SELECT *, min(seq) OVER (PARTITION BY target_group, account) AS first FROM temp.repeated) WHERE seq > first"""
ADD_DUPLICATES = (
    "INSERT INTO duplicate (seq, target_group, account, first) SELECT seq, target_group, account, first FROM temp.later"
)
FETCHED = 1000  # rows that are read at once
ONE = "SELECT sender_group, size, first, step, rows, accounts FROM content WHERE id = ?"
REPLACE = "UPDATE content SET size = ?, first = ?, step = ?, rows = ?, accounts = ? WHERE id = ?"
INCOMPLETE = """SELECT id FROM content
    WHERE size < :size AND sender_group IN (
        SELECT sender_group FROM content WHERE size < :size GROUP BY sender_group HAVING count(*) > 1)
    ORDER BY sender_group, first"""
CHUNKS = """INSERT INTO chunk (sender_group, content, size) SELECT sender_group, id, size FROM (
        SELECT content.id AS id, content.sender_group AS sender_group, size, target_group,
            row_number() OVER (PARTITION BY target_group ORDER BY content.sender_group, first) AS turn
        FROM content JOIN sender_group ON sender_group.id = content.sender_group
    ) ORDER BY turn, target_group"""


def pack(database: Database, loader: Loader, size: int) -> None:
    """Take duplicates out of the contents, fill them up to ``size`` accounts, and make the chunks. Part of a command."""
    candidates = loader.hashes.repeated()
    database.execute(REPEATED)
    if candidates:
        database.executemany(ADD_REPEATED, _candidates(database, candidates))
    database.execute(FIRSTS)
    loader.duplicates = max(0, database.execute(ADD_DUPLICATES).rowcount)
    _take_out(database)
    _fill_up(database, size)
    database.execute("DROP TABLE temp.later")
    database.execute("DROP TABLE temp.repeated")
    database.execute(CHUNKS)
    database.execute("CREATE INDEX IF NOT EXISTS chunk_sender_group ON chunk (sender_group)")


def _candidates(database: Database, candidates: Candidates) -> Iterator[tuple[int, str, int, int]]:
    for content, _, *columns, target, name in database.execute(EACH):
        found = Content(*columns)
        hashes = hashes_of(repeat(name), found.names())
        if candidates.isdisjoint(hashes):
            continue
        for account, row, value in zip(found.names(), found.numbers(), hashes, strict=True):
            if value in candidates:
                yield target, account, row, content


def _take_out(database: Database) -> None:
    """Take the repeated accounts out of their contents."""
    later = database.execute("SELECT content, seq FROM temp.later ORDER BY content").fetchmany
    number, seqs = 0, set[int]()
    while several := later(FETCHED):
        for content, seq in several:
            if content != number:
                _leave_out(database, number, seqs)
                number, seqs = content, set[int]()
            seqs.add(seq)
    _leave_out(database, number, seqs)


def _leave_out(database: Database, number: int, seqs: set[int]) -> None:
    if not seqs:
        return
    ((_, *columns),) = database.execute(ONE, (number,))
    found = Content(*columns)
    left = [(account, row) for account, row in zip(found.names(), found.numbers(), strict=True) if row not in seqs]
    if left:
        accounts, rows = zip(*left, strict=True)
        database.execute(REPLACE, (*Content.of(accounts, rows), number))
    else:
        database.execute("DELETE FROM content WHERE id = ?", (number,))


def _fill_up(database: Database, size: int) -> None:
    """Put the accounts of contents that are not full together, for each sender group."""
    incomplete = array("q", (number for (number,) in database.execute(INCOMPLETE, {"size": size})))
    waiting: list[tuple[str, int]] = []
    owner = 0

    def write(least: int) -> None:
        while len(waiting) >= least:
            accounts, rows = zip(*waiting[:size], strict=True)
            database.execute(ADD, (owner, *Content.of(accounts, rows)))
            del waiting[:size]

    for number in incomplete:
        ((sender_group, *columns),) = database.execute(ONE, (number,))
        if sender_group != owner:
            write(1)
            owner = sender_group
        found = Content(*columns)
        waiting.extend(zip(found.names(), found.numbers(), strict=True))
        database.execute("DELETE FROM content WHERE id = ?", (number,))
        write(size)
    write(1)
