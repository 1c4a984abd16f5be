"""Facts of a job, and the opening of its journal for reading only, while the job runs or later."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim.bulk.journal.schema import ERASING, JOURNAL
from rbim.choices import differences
from rbim.dialect import Dialect, client_document
from rbim.errors import InvalidRequest
from rbim.storage.sqlite import log_of, require_no_left_log, require_trusted_logs, schema_version

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from rbim.storage.sqlite import Database

__all__ = ["DIALECT", "JobFacts", "Loaded", "damage_of", "facts_in", "job_facts", "open_to_read", "reading"]

DIALECT = "dialect"
"""The key of the settings for the job's dialect: the fields of the client that differ from their defaults."""

BUSY_TIMEOUT = 10.0
"""Seconds that a reader waits for a writer that locks the file."""


class Loaded(NamedTuple):
    """Counts of an input: all rows, rows that cannot be used, duplicates; and a digest of the rows."""

    rows: int
    bad: int
    duplicates: int
    digest: str


class JobFacts(NamedTuple):
    """Facts of a job in its journal. ``loaded`` is None if the input was not read completely: nothing was sent then.

    ``settings`` includes the dialect. ``erased`` is the time at which
    the accounts were erased, in epoch seconds, or ``ERASING``.
    """

    operation: str
    options: dict[str, Any]
    chunk: int
    settings: dict[str, Any]
    source: dict[str, Any]
    created: float
    loaded: float | None
    input: Loaded
    erased: float | None = None

    def require_dialect(self, path: Path, dialect: Dialect) -> None:
        """Raise InvalidRequest that names the fields in which a dialect is not the job's."""
        different = [
            f"{name} is {kept} in the journal and {given} here"
            for name, (kept, given) in differences(Dialect, self.settings[DIALECT], client_document(dialect)).items()
        ]
        if different:
            raise InvalidRequest(
                f"{path}: the job was begun with another dialect: {'; '.join(different)}. Use the dialect of the journal, or"
                " begin another job with another journal",
                field=DIALECT,
            )

    def require_accounts(self, path: Path) -> None:
        """Raise InvalidRequest if the accounts were erased."""
        self.require_erased_completely(path)
        if self.erased is not None:
            day = datetime.fromtimestamp(self.erased, UTC)
            raise InvalidRequest(
                f"{path}: its accounts were erased on {day:%Y-%m-%d}: only counts are left. Begin another job with another"
                " journal",
                field="journal",
            )

    def require_erased_completely(self, path: Path) -> None:
        """Raise InvalidRequest if the erasure of the accounts was interrupted."""
        if self.erased == ERASING:
            raise InvalidRequest(
                f"{path}: the erasure of its accounts was interrupted: run rbim job forget again", field="journal"
            )


def facts_in(connection: sqlite3.Connection | Database) -> JobFacts | None:
    """Return the facts of the job, or None if there is none."""
    cursor = connection.execute("SELECT * FROM job")
    row = cursor.fetchone()
    if row is None:
        return None
    values = dict(zip((name for name, *_ in cursor.description), row, strict=True))
    return JobFacts(
        **{name: values[name] for name in ("operation", "chunk", "created", "loaded", "erased")},
        **{name: json.loads(values[name]) for name in ("options", "settings", "source")},
        input=Loaded(**{name: values[name] for name in Loaded._fields}),
    )


def job_facts(path: Path) -> JobFacts:
    """Return the facts of the job in a journal. Raises InvalidRequest if there is no job, or if it cannot be read."""
    with closing(open_to_read(path)) as connection, reading(path):
        facts = facts_in(connection)
    if facts is None:
        raise InvalidRequest(f"{path}: the journal holds no job: begin one first", field="journal")
    return facts


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a journal for reading. Raises InvalidRequest if there is none, or one of a newer rbim.

    If the file may be written, closing it removes SQLite's log files beside it. In a directory that cannot be written,
    SQLite cannot make its log files: without changes in the log, the file alone is read (``immutable``).
    """
    if not path.is_file():
        raise InvalidRequest(f"{path}: there is no journal: check the path, or begin the job first", field="journal")
    with reading(path):
        require_no_left_log(path, JOURNAL)
        require_trusted_logs(path)
        log = log_of(path)
        has_changes = log.exists() and log.stat().st_size > 0
        modes = ["mode=rw", "mode=ro"] if has_changes else ["mode=rw", "mode=ro&immutable=1"]
        for mode in modes:
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_TIMEOUT)
            try:
                connection.execute("PRAGMA query_only = ON")
                version = schema_version(connection, path, JOURNAL)
            except BaseException as error:
                connection.close()
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in NOT_ALLOWED:
                    raise
                if mode == modes[-1] and has_changes:
                    cause = (
                        f"its directory cannot be written, and {log} has its latest changes: copy both to another directory"
                    )
                    raise _unreadable(path, cause) from error
                if mode == modes[-1]:
                    raise
            else:
                if version:
                    return connection
                connection.close()
                break
        raise _unreadable(path, "the journal holds no job: begin one first")


def damage_of(path: Path) -> InvalidRequest | None:
    """Return an error that says why a journal cannot be read or is damaged, or None if every page of it is sound."""
    try:
        with closing(open_to_read(path)) as connection, reading(path):
            ((found,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
    except InvalidRequest as error:
        return error
    return None


NOT_ALLOWED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}

NO_DATABASE = "file is not a database"
"""What SQLite says of a file of another kind, and of one whose first page is damaged."""


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Raise InvalidRequest with the cause if the journal cannot be read in the block."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field="journal") from error.__cause__
    except sqlite3.OperationalError as error:
        raise _unreadable(path, str(error)) from error
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (sqlite3.DatabaseError, ValueError, TypeError, LookupError, OverflowError) as error:
        if str(error) == NO_DATABASE:
            raise _unreadable(path, f"it is not a journal, or a damaged one ({error})") from error
        raise _unreadable(path, f"it is damaged ({error}): restore it from a copy") from error


def _unreadable(path: Path, cause: str) -> InvalidRequest:
    return InvalidRequest(f"{path} cannot be read: {cause}", field="journal")
