"""Journals that cannot be read: one clear error with the cause."""

import random
import sqlite3

import anyio
import pytest

from helpers.jobs import world
from rbim.bulk import InviteJob, Row, open_job, read_report
from rbim.bulk.journal import facts
from rbim.bulk.journal.facts import damage_of, job_facts
from rbim.errors import InvalidRequest


@pytest.fixture
def finished(journal):
    async def job():
        async with world() as made:
            (group,) = made.groups
            await InviteJob(made.client, journal=journal).run([Row(group, f"u{number}") for number in range(300)])

    anyio.run(job)
    return journal


def test_random_damage_is_never_called_a_bug(finished):
    whole = finished.read_bytes()
    assert damage_of(finished) is None
    rng = random.Random(7)
    said = 0
    for _ in range(30):
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
    assert said > 10


def test_without_its_directory_a_journal_with_a_log_is_to_be_copied(finished, monkeypatch):
    def cannot_open(*_):
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    modes, connect = [], sqlite3.connect

    def noted(address, **options):
        modes.append(address.partition("?")[2])
        return connect(address, **options)

    monkeypatch.setattr(facts, "schema_version", cannot_open)
    monkeypatch.setattr(sqlite3, "connect", noted)
    with pytest.raises(InvalidRequest, match="cannot be read: unable to open database file"):
        read_report(finished)
    finished.with_name(f"{finished.name}-wal").write_bytes(b"changes")
    with pytest.raises(
        InvalidRequest, match=r"directory cannot be written, and .*-wal has .*: copy both to another directory"
    ):
        read_report(finished)
    assert modes == ["mode=rw", "mode=ro&immutable=1", "mode=rw", "mode=ro"]


def test_what_the_system_or_a_value_says_becomes_one_error(journal):
    for error, said in (
        (OSError(5, "I/O error"), "cannot be read: I/O error"),
        (OverflowError("too large"), "it is damaged"),
    ):
        with pytest.raises(InvalidRequest, match=said), facts.reading(journal):
            raise error


def test_the_log_of_a_journal_that_was_moved_away_survives_every_command(finished):
    log = finished.with_name(f"{finished.name}-wal")
    finished.unlink()
    finished.touch()
    log.write_bytes(b"changes")
    for open_it in (read_report, lambda path: open_job(object(), path), job_facts):
        with pytest.raises(InvalidRequest, match="-wal has changes of a file that was moved or deleted"):
            open_it(finished)
    assert isinstance(damage_of(finished), InvalidRequest)
    assert log.read_bytes() == b"changes"
