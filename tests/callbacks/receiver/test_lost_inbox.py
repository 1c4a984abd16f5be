"""An inbox whose file is deleted, moved or replaced while it is open: nothing that would be lost is acknowledged."""

import logging
import sqlite3
from contextlib import closing

import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from rbim.callbacks import Receiver, SqliteInbox


def spooled(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT count(*) FROM delivery").fetchone()[0]


def delete(path):
    path.unlink()


def move(path):
    path.rename(path.with_name("elsewhere.db"))


def replace(path):
    path.rename(path.with_name("elsewhere.db"))
    path.touch()


def delete_log(path):
    path.with_name(f"{path.name}-wal").unlink()


@pytest.fixture(params=[delete, move, replace, delete_log])
def lose(request):
    return request.param


async def test_deliveries_go_into_the_spool(tmp_path, lose, caplog):
    path = tmp_path / "events.db"
    async with Receiver(sink=SqliteInbox(path), credentials=CREDENTIALS) as receiver:
        assert (await post(receiver, body(msgId="1"))).status == 200
        lose(path)
        for number in ("2", "3"):
            assert (await post(receiver, body(msgId=number))).status == 200
        assert "deleted" in (await receiver.health()).error
    assert spooled(tmp_path / "events.db-spool") == 2
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR and "events.db:" in each.getMessage()]
    assert "restore the file, or restart this process" in record.getMessage()
    assert record.name == "rbim.callbacks"  # as the page says


async def test_in_high_guarantee_mode_the_platform_sends_again(tmp_path, lose):
    path = tmp_path / "events.db"
    async with Receiver(sink=SqliteInbox(path), credentials=CREDENTIALS, mode="high-guarantee") as receiver:
        assert (await post(receiver, body(msgId="1"))).status == 200
        lose(path)
        assert (await post(receiver, body(msgId="2"))).status == 503
        assert not (await receiver.health()).ok


async def test_a_file_that_comes_back_is_used_again(tmp_path):
    path, other = tmp_path / "events.db", tmp_path / "moved.db"
    async with SqliteInbox(path) as inbox, Receiver(sink=SqliteInbox(path), credentials=CREDENTIALS) as receiver:
        path.rename(other)
        assert (await post(receiver, body(msgId="1"))).status == 200
        with pytest.raises(FileNotFoundError, match="the inbox was deleted, moved or replaced while it was open"):
            await inbox.counts()
        other.rename(path)
        assert (await inbox.counts()).waiting in (0, 1)  # the spool may have been forwarded
