"""Journals that cannot be read, or only read: one clear error with the cause."""

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from helpers.jobs import world
from helpers.two_users import OWNER, RBIM, lines, two_users
from rbim.bulk import InviteJob, Row, open_job, read_report
from rbim.bulk.journal.facts import damage_of
from rbim.bulk.journal.schema import JOURNAL
from rbim.errors import InvalidRequest


@pytest.fixture
def finished(journal):
    async def job():
        async with world() as made:
            (group,) = made.groups
            await InviteJob(made.client, journal=journal).run([Row(group, f"u{number}") for number in range(300)])

    anyio.run(job)
    return journal


def test_a_newer_schema_is_named(finished):
    with closing(sqlite3.connect(finished)) as plain:
        plain.execute("PRAGMA user_version = 9")
    said = f"its schema has version 9, and this rbim knows {len(JOURNAL.schema)} at most: update rbim"
    with pytest.raises(InvalidRequest, match=said):
        read_report(finished)
    with pytest.raises(InvalidRequest, match=said):
        open_job(object(), finished)


@pytest.mark.parametrize("version", [1, 4])
def test_a_journal_of_an_earlier_rbim_is_refused_and_not_changed(finished, version):
    with closing(sqlite3.connect(finished)) as plain:
        plain.execute(f"PRAGMA user_version = {version}")
    before = finished.read_bytes()
    for opened in (read_report, lambda path: open_job(object(), path)):
        with pytest.raises(
            InvalidRequest, match=f"version {version}, of an earlier rbim .*: go on with that rbim, or begin"
        ):
            opened(finished)
    assert damage_of(finished) is not None
    assert finished.read_bytes() == before


def test_random_damage_is_never_called_a_bug(finished):
    whole = finished.read_bytes()
    assert damage_of(finished) is None
    rng = random.Random(7)
    said = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 20, 400])):
            damaged[rng.randrange(100, len(damaged))] = rng.randrange(256)
        finished.write_bytes(damaged)
        for open_it in (read_report, lambda path: open_job(object(), path), damage_of):
            try:
                found = open_it(finished)
            except InvalidRequest as error:
                said += "damaged" in str(error)
            else:
                said += found is not None and isinstance(found, InvalidRequest)
    assert said > 20


READ_ONLY = """
for name in arguments:
    try:
        print(read_report(name).accounts.done, is_locked(Path(name)))
    except InvalidRequest as error:
        print(str(error).replace(name, "it"))
"""


@two_users
def test_a_finished_journal_is_read_in_a_directory_that_cannot_be_written(finished):
    with TemporaryDirectory() as folder:
        closed, killed = Path(folder) / "closed", Path(folder) / "killed"
        log = killed.with_name("killed-wal")
        for path, content in ((closed, finished.read_bytes()), (killed, finished.read_bytes()), (log, b"changes")):
            path.write_bytes(content)
            os.chown(path, OWNER, OWNER)
        Path(folder).chmod(0o555)
        told = lines(OWNER, READ_ONLY, closed, killed, imports=RBIM)
    assert told[0] == "300 False"
    cause = "its directory cannot be written, and it-wal has its latest changes"
    assert told[1] == f"it cannot be read: {cause}: copy both to another directory"
