"""Journals that cannot be read: one clear error with the cause."""

import random

import anyio
import pytest

from helpers.jobs import world
from rbim.bulk import InviteJob, Row, open_job, read_report
from rbim.bulk.journal.facts import damage_of
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
