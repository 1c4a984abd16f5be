"""Journals, inboxes and spools that are not of this version, or not ours: refused in words and left alone."""

import sqlite3
from contextlib import closing

import pytest

from helpers.credentials import CREDENTIALS
from rbim import InvalidRequest
from rbim.bulk import open_job, read_report
from rbim.bulk.journal.schema import JOURNAL
from rbim.callbacks import MemorySink, Receiver, SqliteInbox
from rbim.callbacks.inbox.sqlite import INBOX
from rbim.callbacks.receiver.spool import SPOOL
from rbim.storage.sqlite import Database

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def empty(path, kind):
    """Make a file of a kind with nothing in it."""
    database = Database(path, kind, clock=lambda: 0.0)
    database.open()
    database.close()


async def open_and_close(kind, path):
    """Open a file as its users do."""
    if kind is JOURNAL:
        open_job(object(), path)
    elif kind is INBOX:
        async with SqliteInbox(path):
            pass
    else:
        async with Receiver(credentials=CREDENTIALS, sink=MemorySink(), spool=path):
            pass


@pytest.mark.parametrize("kind", [JOURNAL, INBOX, SPOOL], ids=["journal", "inbox", "spool"])
async def test_a_file_of_another_version_or_of_another_application_is_refused_in_words(kind, tmp_path):
    """It keeps its content for the rbim that made it."""

    def ours(version):
        def make(path):
            empty(path, kind)
            with closing(sqlite3.connect(path)) as file:
                file.execute(f"PRAGMA user_version = {version}")

        return make

    def theirs(path):
        with closing(sqlite3.connect(path)) as file:
            file.execute("CREATE TABLE event (id INTEGER PRIMARY KEY)")

    known = kind.version
    causes = {
        f"its schema has version 99, and this rbim knows {known} at most: update rbim": ours(99),
        f"version {known - 1}, of an earlier rbim with other tables: go on with that rbim, or begin again": ours(known - 1),
        "it is a database of another application": theirs,
        "file is not a database": lambda path: path.write_text("group,account\n" * 100, encoding="utf-8"),
    }
    wrong = {}
    for number, (cause, make) in enumerate(causes.items()):
        path = tmp_path / f"file{number}"
        make(path)
        before = path.read_bytes()
        with pytest.raises(InvalidRequest) as caught:
            await open_and_close(kind, path)
        said = [str(caught.value)]
        if kind is JOURNAL and "not a database" not in cause:
            with pytest.raises(InvalidRequest) as caught:
                read_report(path)
            said.append(str(caught.value))
        if not all(cause in each and str(path) in each for each in said) or path.read_bytes() != before:
            wrong[cause] = said
    assert wrong == {}
