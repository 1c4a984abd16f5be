"""Deliveries of one conversation: stored together, in order, whatever fails on the way."""

import sqlite3
from contextlib import closing

import anyio

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from helpers.waiting import until
from rbim.callbacks import Receiver, SqliteInbox


def numbered(number, group="g1"):
    return body(msgId=f"{group}-{number}", to=group, body=str(number))


def stored(path):
    """The deliveries in a file, in the order of acceptance."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT body FROM event ORDER BY number").fetchall()
    return [int(each.split(b'"body": "')[1].split(b'"')[0]) for (each,) in rows]


class Counted(SqliteInbox):
    """An inbox that counts the commands of each transaction."""

    def watch(self):
        self.sizes, commit = [], self._database.commit

        def counted(commands, **options):
            if len(commands):
                self.sizes.append(len(commands))
            return commit(commands, **options)

        self._database.commit = counted
        return self


async def send_all(receiver, numbers, answers):
    async with anyio.create_task_group() as tasks:

        async def send(number):
            answers[number] = (await post(receiver, numbered(number))).status

        for number in numbers:
            tasks.start_soon(send, number)


async def test_one_hot_conversation_shares_transactions(tmp_path):
    inbox = Counted(tmp_path / "events.db").watch()
    answers = {}
    async with Receiver(sink=inbox, credentials=CREDENTIALS) as receiver:
        await send_all(receiver, range(100), answers)
        assert receiver._intake._lines == {}
    assert set(answers.values()) == {200}
    assert stored(inbox.path) == list(range(100))
    assert len(inbox.sizes) <= 60
    assert max(inbox.sizes) > 2


async def test_a_delivery_that_gives_up_while_it_waits_takes_those_behind_it_into_the_spool(tmp_path):
    """Its transaction has not begun when its budget is over, but theirs would still come."""
    inbox = SqliteInbox(tmp_path / "events.db")
    receiver = Receiver(sink=inbox, credentials=CREDENTIALS, budget=0.3)
    answers = {}
    async with receiver:
        await post(receiver, numbered(0))
        with closing(sqlite3.connect(inbox.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_all, receiver, range(1, 20), answers)
                await until(lambda: len(answers) == 19)
            other.execute("ROLLBACK")
        await until(lambda: len(stored(inbox.path)) == 20)
    assert set(answers.values()) == {200}
    assert stored(inbox.path) == list(range(20))
