"""Erasure of the accounts in a journal: the counts stay."""

# States of an erasure, in ``job.erased``
#
# NULL       the accounts are there
# ERASING    the texts are replaced, but the file or its log may still have the old bytes. Only another erasure may use it
# a time     every byte of the file and its log was written after the texts were replaced
#
# Each step can be interrupted; another erasure begins with the first one again and changes nothing that is done.

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from rbim.bulk.journal.facts import facts_in, open_to_read, reading
from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.lock import JobLock
from rbim.bulk.journal.schema import ERASING
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest
from rbim.validators import require_path

if TYPE_CHECKING:
    from os import PathLike

    from rbim.storage.sqlite import Database

__all__ = ["Erasable", "erasable", "forget_job"]

READER_TIMEOUT = 10.0  # seconds of waiting for readers of the journal
PAUSE = 0.05  # seconds between two tries

ERASED = "erased"
"""The text in place of a reason."""

# names of groups and acting accounts are unique: random names first, so that none meets a name of the input
REPLACE_TEXTS = (
    "UPDATE account SET account = ''",
    "DELETE FROM duplicate",
    "DELETE FROM bad_row",
    "UPDATE anomaly SET account = ''",
    "UPDATE target_group SET name = hex(randomblob(16))",
    "UPDATE target_group SET name = 'group ' || id",
    "UPDATE sender_group SET user_name = hex(randomblob(16)) WHERE user_name <> ''",
    "UPDATE sender_group SET user_name = 'acting account ' || id WHERE user_name <> ''",
    # a code of the platform has six digits; a longer one, or a text, may name an account
    "UPDATE reason SET text = hex(randomblob(16)), code = 'other' WHERE length(code) > 6 OR code GLOB '*[^0-9]*'",
    "CREATE TEMP TABLE merged AS SELECT id, min(id) OVER (PARTITION BY code, error) AS first FROM reason",
    "CREATE UNIQUE INDEX temp.merged_id ON merged (id)",
    "UPDATE account SET reason = (SELECT first FROM merged WHERE id = reason) WHERE reason IS NOT NULL",
    "UPDATE chunk SET reason = (SELECT first FROM merged WHERE merged.id = reason) WHERE reason IS NOT NULL",
    "UPDATE request SET reason = (SELECT first FROM merged WHERE id = reason) WHERE reason IS NOT NULL",
    "UPDATE anomaly SET reason = (SELECT first FROM merged WHERE id = reason)",
    "DELETE FROM reason WHERE id NOT IN (SELECT first FROM merged)",
    f"UPDATE reason SET text = '{ERASED}'",  # noqa: S608  # a constant
    "DROP TABLE merged",
    "UPDATE job SET digest = '', source = '{}'",
)


@frozen(kw_only=True)
class Erasable:
    """A journal whose accounts can be erased: their number, and how many of them a run would still send.

    ``unfinished``: why the job can be resumed, or empty. ``erased``: the end of the erasure.
    """

    accounts: int
    waiting: int
    unfinished: str
    erased: datetime | None


def erasable(journal: Path) -> Erasable:
    """Return the facts that matter for an erasure. Raises InvalidRequest if the journal cannot be read."""
    with closing(open_to_read(journal)) as connection, reading(journal):
        facts = facts_in(connection)
        if facts is None:
            raise InvalidRequest(f"{journal}: the journal holds no job, and no accounts", field="journal")
        statement = "SELECT count(*), count(*) FILTER (WHERE state <= 0) FROM result"
        ((accounts, waiting),) = connection.execute(statement)
    unfinished = f"{waiting:,} accounts still wait to be sent" if waiting else ""
    if facts.loaded is None:
        unfinished = "its input was not read completely"
    return Erasable(
        accounts=accounts,
        waiting=waiting,
        unfinished="" if facts.erased is not None else unfinished,
        erased=datetime.fromtimestamp(facts.erased, UTC) if facts.erased else None,
    )


def forget_job(journal: str | PathLike[str], *, unfinished: bool = False) -> datetime:
    """Erase every account and other personal data in a job's journal, and return the time at which they were erased.

    Erased are accounts, acting accounts, groups, texts of reasons, unusable and duplicate rows, the name, path and digest of
    the input, and options that are texts. The counts, codes and times stay, so that the job can be reported, but not resumed
    or retried. No byte of the erased texts stays in the journal or its log. After an interruption call it again; a journal
    that is erased already stays as it is.

    Raises InvalidRequest if the job runs, if accounts wait to be sent (unless ``unfinished`` is True), or if the journal
    cannot be written, for example because a program reads it for more than 10 seconds.
    """
    require_path("journal", journal)
    path = Path(journal).absolute()
    found = erasable(path)
    if found.erased is not None:
        return found.erased
    with JobLock(path):
        if (left := erasable(path).unfinished) and not unfinished:
            raise InvalidRequest(
                f"{path}: {left}, which the erasure would end: resume the job first, or erase an unfinished job"
                " (--unfinished)",
                field="journal",
            )
        opened = Journal(path, clock=SystemClock())
        opened.open()
        with closing(opened), reading(path):
            return _erase(opened.database, path)


def _erase(database: Database, path: Path) -> datetime:
    database.commit([lambda: _replace_texts(database)], apart=False)
    database.rewrite()
    give_up = time.monotonic() + READER_TIMEOUT
    while not database.truncate_log():
        if time.monotonic() > give_up:
            raise InvalidRequest(
                f"{path}: the erasure is not complete, because another program reads the journal: end it, then erase again",
                field="journal",
            )
        time.sleep(PAUSE)
    database.commit([lambda: database.execute("UPDATE job SET erased = ?", (database.now,))], apart=False)
    return datetime.fromtimestamp(database.now, UTC)


def _replace_texts(database: Database) -> None:
    for statement in REPLACE_TEXTS:
        database.execute(statement)
    ((options,),) = database.execute("SELECT options FROM job").fetchall()
    kept = {name: value for name, value in json.loads(options).items() if isinstance(value, (bool, int, float))}
    database.execute("UPDATE job SET options = ?, erased = ?", (json.dumps(kept), ERASING))
