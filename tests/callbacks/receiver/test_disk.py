"""A disk that is full and a database that is locked: what is answered 200 is stored, in order, and nothing else is."""

import sqlite3
from contextlib import closing

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from helpers.waiting import until
from rbim.callbacks import Receiver, SqliteInbox
from rbim.emulator import EmulatedClock


def numbered(number):
    return body(msgId=str(number), body="x" * 20_000, ext=str(number))


def stored(path, table="event"):
    """The deliveries in a file that wait, in their order."""
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute(f"SELECT body FROM {table} ORDER BY number").fetchall()
    return [int(text.rsplit(b'"ext": "', 1)[1].split(b'"')[0]) for (text,) in rows]


def spooled(path):
    return stored(path, "delivery")


def limit(database, pages=None):
    """Let a file grow no further."""
    connection = database._connection
    ((used,),) = connection.execute("PRAGMA page_count")
    connection.execute(f"PRAGMA max_page_count = {pages or used}")


async def statuses(receiver, numbers):
    return [(await post(receiver, numbered(number))).status for number in numbers]


async def test_while_the_disk_of_the_inbox_is_full_the_spool_takes_deliveries_and_then_gives_them_back(tmp_path):
    clock = EmulatedClock()
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock)
    async with Receiver(sink=inbox, spool=tmp_path / "spool", credentials=CREDENTIALS, clock=clock) as receiver:
        assert await statuses(receiver, range(5)) == [200] * 5
        limit(inbox._database)
        assert await statuses(receiver, range(5, 15)) == [200] * 10
        assert spooled(tmp_path / "spool") == list(range(5, 15))
        limit(inbox._database, 100_000)
        await until(lambda: not spooled(tmp_path / "spool"), clock)
        await until(lambda: not receiver._spool.holds, clock)
        assert await statuses(receiver, [15]) == [200]
    assert stored(tmp_path / "events.db") == list(range(16))


async def test_while_both_disks_are_full_nothing_is_acknowledged(tmp_path):
    clock = EmulatedClock()
    inbox = SqliteInbox(tmp_path / "events.db", clock=clock)
    async with Receiver(sink=inbox, credentials=CREDENTIALS, clock=clock) as receiver:
        assert await statuses(receiver, range(3)) == [200] * 3
        limit(inbox._database)
        limit(receiver._spool._file)
        assert await statuses(receiver, [3]) == [503]
        health = await receiver.health()
        assert not health.ok
        assert "full" in health.error
        assert await statuses(receiver, range(4, 8)) == [503] * 4
        await until(lambda: not receiver._spool.holds, clock)  # what was refused may be in the file until that has been read
        limit(inbox._database, 100_000)
        assert await statuses(receiver, range(3, 8)) == [200] * 5  # sent again by hand
        assert (await receiver.health()).ok
    assert stored(tmp_path / "events.db") == list(range(8))
