"""Events older than the retention: after a VACUUM no byte of them is left in the inbox, nor in its log."""

import json
import random
import sqlite3
from contextlib import closing

import anyio
import pytest

from helpers.deliveries import delivery
from rbim.callbacks import SqliteInbox
from rbim.callbacks.inbox.store import MARGIN, PURGE_EVERY
from rbim.emulator import EmulatedClock

RETENTION = 3600.0


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def inbox(folder):
    return SqliteInbox(folder / "inbox", retention=RETENTION, poll=0.01, clock=EmulatedClock())


def people(folder):
    """The numbers of the people that some file mentions."""
    found = set()
    for path in folder.iterdir():
        pieces = path.read_bytes().split(b"person<")
        found.update(int(piece[:7]) for piece in pieces[1:] if piece[:7].isdigit())
    return found


def letters(rng, first, count):
    for number in range(first, first + count):
        name = f"person<{number:07d}>"
        body = json.dumps({"text": name * rng.choice([1, 10, 200])}).encode()
        yield delivery(f"m{number}")._replace(key=f"{rng.random()}", conversation=f"{name}, group", body=body)


async def handled(inbox, backlog, rng, first, count):
    """Accept events and handle most of them; some are tried again first, and some become dead letters."""
    async with anyio.create_task_group() as tasks:
        for each in letters(rng, first, count):
            tasks.start_soon(inbox.accept, each)
    for _ in range(3):
        for claim in await backlog.claim(count):
            chance = rng.random()
            if chance < 0.7:
                await backlog.done([claim], more=0)
            elif chance < 0.98:
                await backlog.retry(claim, error="Traceback of " + claim.conversation * 20, pause=0.0)
            else:
                await backlog.dead_letter(claim, error=claim.conversation, more=0)


def remaining(path):
    """The people in the rows, read by another connection."""
    with closing(sqlite3.connect(path)) as plain:
        return {int(name[7:14]) for (name,) in plain.execute("SELECT conversation FROM event")}


async def old_events_deleted(inbox, backlog):
    """Let events get older than their retention, and a worker wait that has nothing to do."""
    await inbox.clock.advance(RETENTION + MARGIN + 1)
    for _ in range(5):
        await inbox.clock.advance(PURGE_EVERY + 1)
        with anyio.move_on_after(0.05):
            await backlog.wait()


async def test_after_retention_margin_and_a_vacuum_only_the_rows_are_left(inbox, folder):
    rng = random.Random(1)
    async with inbox, inbox.backlog() as backlog:
        for step in range(30):
            await handled(inbox, backlog, rng, step * 20, 20)
        before = (await inbox.counts()).done
        held = await backlog.claim(1000)  # what waits, so that the worker waits too
        await old_events_deleted(inbox, backlog)
        counts = await inbox.counts()
        assert (before > 300, counts.done) == (True, 0)
        await inbox.vacuum()
        left = remaining(folder / "inbox")
        assert len(left) == counts.waiting + counts.dead == len(held) + counts.dead > 0
        assert people(folder) == left


async def test_what_is_deleted_is_overwritten_without_a_vacuum_too_but_for_a_few_copies(inbox, folder):
    rng = random.Random(2)
    async with inbox, inbox.backlog() as backlog:
        for step in range(10):
            await handled(inbox, backlog, rng, step * 50, 50)
        await backlog.claim(1000)
        before = len(people(folder))
        await old_events_deleted(inbox, backlog)
    assert before == 500
    assert len(people(folder) - remaining(folder / "inbox")) < 10


async def test_dead_letters_stay_until_they_are_handled(inbox, folder):
    async with inbox, inbox.backlog() as backlog:
        for each in letters(random.Random(4), 0, 3):
            await inbox.accept(each)
        for claim in await backlog.claim(3):
            await backlog.dead_letter(claim, error="person<0000009>", more=0)
        await old_events_deleted(inbox, backlog)
        assert people(folder) == {0, 1, 2, 9}
        assert await inbox.replay() == 3
        for claim in await backlog.claim(3):
            await backlog.done([claim], more=0)
        await old_events_deleted(inbox, backlog)
        await inbox.vacuum()
        assert people(folder) == set()


async def test_a_vacuum_says_that_another_process_is_in_its_way(inbox, folder):
    async with inbox:
        await inbox.accept(delivery(1))
        with closing(sqlite3.connect(folder / "inbox", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError):
                await inbox.vacuum()
            other.execute("ROLLBACK")
        await inbox.vacuum()
