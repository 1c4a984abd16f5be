"""Events older than the retention: no byte of them is left in the inbox, nor in its log."""

import json
import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import anyio
import pytest

from helpers.deliveries import delivery
from rbim.callbacks import SqliteInbox
from rbim.callbacks.inbox.arguments import EventFilter
from rbim.callbacks.inbox.erasure import ERASE_EVERY
from rbim.callbacks.inbox.statements import MARGIN, PURGE_EVERY, InboxStore
from rbim.callbacks.receiver.spool import Spool
from rbim.emulator import EmulatedClock
from rbim.storage.sqlite import Database

RETENTION = 3600.0
DAY = 24 * 3600.0


class Clock:
    """Time that a test sets."""

    def __init__(self):
        self.seconds = 1_700_000_000.0

    def now(self):
        return datetime.fromtimestamp(self.seconds, UTC)


@pytest.fixture
def stepped():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def kept(folder, stepped):
    store = InboxStore(folder / "inbox", retention=RETENTION, lease=30.0, clock=stepped)
    store.open()
    yield store
    store.close()


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


def handled(store, rng, first, count):
    """Accept events and handle most of them; some are tried again first, and some become dead letters."""
    store.commit([partial(store.accept, each) for each in letters(rng, first, count)])
    for _ in range(3):
        (claims,) = store.commit([partial(store.claim, count)])
        for claim in claims:
            chance = rng.random()
            if chance < 0.7:
                command = partial(store.done, [claim], more=0)
            elif chance < 0.98:
                command = partial(store.retry, claim, error="Traceback of " + claim.conversation * 20, pause=0.0)
            else:
                command = partial(store.dead_letter, claim, error=claim.conversation, more=False)
            store.commit([command])


def remaining(path):
    """The people in the rows, read by another connection."""
    with closing(sqlite3.connect(path)) as plain:
        return {int(name[7:14]) for (name,) in plain.execute("SELECT conversation FROM event")}


def pass_days(store, stepped):
    stepped.seconds += RETENTION + MARGIN + ERASE_EVERY + PURGE_EVERY + 1
    store.commit([])
    stepped.seconds += PURGE_EVERY + 1
    store.commit([])


def test_after_retention_margin_and_a_day_only_the_rows_are_left(kept, folder, stepped):
    rng = random.Random(1)
    for step in range(60):
        handled(kept, rng, step * 20, 20)
        stepped.seconds += 200
    everyone = set(range(1200))
    pass_days(kept, stepped)
    left = remaining(folder / "inbox")
    assert 0 < len(left) < 300  # dead letters, and events that wait
    assert people(folder) == left
    assert left < everyone


def test_events_are_deleted_without_further_events_while_a_worker_waits(folder, stepped):
    kept = InboxStore(folder / "inbox", retention=RETENTION, lease=30.0, clock=stepped)
    kept.open()
    assert kept.purge_due()
    handled(kept, random.Random(2), 0, 5)
    assert not kept.purge_due()
    stepped.seconds += PURGE_EVERY + 1
    assert kept.purge_due()
    kept.close()


async def test_a_backlog_that_waits_deletes(folder):
    inbox = SqliteInbox(folder / "inbox", retention=RETENTION, poll=0.01, clock=EmulatedClock())
    async with inbox, inbox.backlog() as backlog:
        (each,) = letters(random.Random(3), 0, 1)
        await inbox.accept(each)
        (claim,) = await backlog.claim(1)
        await backlog.done([claim], more=0)
        assert (await inbox.counts()).done == 1
        await inbox.clock.advance(RETENTION + MARGIN + DAY)
        with anyio.move_on_after(5):
            while (await inbox.counts()).done:
                with anyio.move_on_after(0.05):
                    await backlog.wait()
        assert (await inbox.counts()).done == 0
        assert people(folder) == set()


def test_dead_letters_stay_until_they_are_handled(kept, folder, stepped):
    kept.commit([partial(kept.accept, each) for each in letters(random.Random(4), 0, 3)])
    (claims,) = kept.commit([partial(kept.claim, 3)])
    kept.commit([partial(kept.dead_letter, claim, error="person<0000009>", more=False) for claim in claims])
    pass_days(kept, stepped)
    assert people(folder) == {0, 1, 2, 9}
    kept.commit([partial(kept.archive.replay, EventFilter(), after=0, last=100)])
    (claims,) = kept.commit([partial(kept.claim, 3)])
    kept.commit([partial(kept.done, [claim], more=0) for claim in claims])
    pass_days(kept, stepped)
    assert people(folder) == set()


def test_a_rewrite_waits_for_a_transaction_that_no_delivery_waits_for(kept, folder, stepped, monkeypatch):
    rewrites = []
    real = Database.rewrite
    monkeypatch.setattr(Database, "rewrite", lambda self: rewrites.append(self) or real(self))
    handled(kept, random.Random(6), 0, 200)
    stepped.seconds += RETENTION + MARGIN + ERASE_EVERY
    handled(kept, random.Random(7), 200, 5)  # deletes, and has a delivery in it
    assert rewrites == []
    kept.commit([kept.look_for_old, partial(kept.accept, next(letters(random.Random(8), 205, 1)))])
    assert rewrites == []
    kept.commit([kept.look_for_old])
    assert len(rewrites) == 1
    assert people(folder) == remaining(folder / "inbox")


def test_a_large_file_is_not_rewritten_but_overwritten_and_its_log_is_emptied(kept, folder, stepped, monkeypatch):
    monkeypatch.setattr("rbim.callbacks.inbox.erasure.ERASE_SIZE", 0)
    monkeypatch.setattr(Database, "rewrite", lambda _: pytest.fail("rewritten"))
    for step in range(20):
        handled(kept, random.Random(step), step * 50, 50)
    before = len(people(folder))
    pass_days(kept, stepped)
    left = remaining(folder / "inbox")
    assert before > 900
    assert len(people(folder) - left) < 10
    assert (folder / "inbox-wal").stat().st_size == 0


def test_the_last_close_erases_too(folder, stepped, monkeypatch):
    rewrites = []
    real = Database.rewrite
    monkeypatch.setattr(Database, "rewrite", lambda self: rewrites.append(self) or real(self))
    rng = random.Random(5)
    store = InboxStore(folder / "inbox", retention=RETENTION, lease=30.0, clock=stepped)
    store.open()
    for step in range(3):  # the first deletion is erased at once, the second one would be a day later
        handled(store, rng, step * 50, 50)
        stepped.seconds += RETENTION + MARGIN + PURGE_EVERY
        store.commit([])
    assert len(rewrites) == 1
    store.open()
    store.close()
    assert len(rewrites) == 1
    store.close()
    assert len(rewrites) == 2
    assert people(folder) == remaining(folder / "inbox")


def test_the_spool_keeps_what_it_has_forwarded_no_longer_than_the_sink(folder):
    class Sink:
        durable = True
        retention = 60.0

    def kept_by(retention):
        Sink.retention = retention
        return Spool(folder / "spool", Sink(), clock=EmulatedClock(), budget=1.0)._inbox.retention

    assert [kept_by(each) for each in (60.0, 30 * DAY, 0.0)] == [60.0, 7 * DAY, 7 * DAY]
