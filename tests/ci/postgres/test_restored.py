"""Yesterday's copy comes back under receivers and workers: that is loud, and nothing that is answered afterwards is lost."""

import json
import shutil
import subprocess
from datetime import UTC, datetime

import psycopg
import pytest
from anyio import fail_after, sleep

from helpers.callback_process import MINE, event
from helpers.deliveries import delivery
from helpers.postgres import needs_postgres, program, server, sql
from helpers.waiting import until
from rbim.callbacks import Receiver
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.signature import sign
from rbim.postgres import PostgresInbox

pytestmark = needs_postgres

OTHER = "restart this process to go on with what is there now"


def numbers(address, name):
    return sorted(number for (number,) in sql(address, f"SELECT number FROM {name}.event"))


def dump(address, name):
    command = [program("pg_dump"), "-d", address, "-n", name]
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout


def restore(address, name, content):
    sql(address, f"DROP SCHEMA {name} CASCADE")
    subprocess.run([program("psql"), "-q", "-d", address], input=content, check=True, capture_output=True, timeout=60)


async def test_a_dump_is_restored_under_a_receiver_and_a_worker(own_server, tmp_path, caplog):
    address, name = own_server.address, "restored"
    inbox = PostgresInbox(address, name=name)
    receiver = Receiver(credentials=MINE, sink=inbox, spool=tmp_path / "spool")

    async def receive(number):
        body = event(msgId=str(number))
        return (await receiver.receive(sign(body, credentials=MINE, now=datetime.now(UTC)), body)).status

    async with receiver, PostgresInbox(address, name=name).backlog() as backlog:
        await until(lambda: inbox.ready)
        assert [await receive(number) for number in range(3)] == [200] * 3
        (claim,) = await backlog.claim(1)
        content = dump(address, name)
        (after, *_) = await backlog.done([claim], more=3)
        assert await receive(3) == 200
        restore(address, name, content)
        with pytest.raises(ConnectionError, match=OTHER):
            await backlog.done([after], more=0)
        with pytest.raises(ConnectionError, match=OTHER):
            await inbox.accept(delivery(4))
        assert await receive(5) == 200
        assert await receiver.overflow() == 1
        async with PostgresInbox(address, name=name) as fresh:  # a process that was restarted
            assert (await fresh.counts()).waiting == 3
            assert "was restored or copied" in caplog.text
            assert await fresh.accept(delivery(6))
        with pytest.raises(ConnectionError, match=OTHER):
            await backlog.done([after], more=0)
    async with receiver:  # restarted, too
        await until(lambda: not receiver._spool.holds)
        assert (await inbox.counts()).waiting == 5
        assert [number > 1_000_000 for number in numbers(address, name)] == [False, False, False, True, True]


async def test_tables_cannot_be_truncated(own_server):
    async with PostgresInbox(own_server.address, name="truncated") as inbox:
        await inbox.accept(delivery(1))
        with pytest.raises(psycopg.errors.RaiseException, match="would lose events"):
            sql(own_server.address, "TRUNCATE truncated.event")
        assert (await inbox.counts()).waiting == 1


async def test_a_database_is_dropped_and_made_anew(own_server):
    sql(own_server.address, "CREATE DATABASE app")
    address = own_server.address.replace("/postgres", "/app")
    async with PostgresInbox(address) as inbox:
        await inbox.accept(delivery(1))
        sql(own_server.address, "DROP DATABASE app WITH (FORCE)", "CREATE DATABASE app")
        with pytest.raises(ConnectionError):
            await inbox.accept(delivery(2))
        async with PostgresInbox(address) as fresh:
            assert await fresh.accept(delivery(2))
        with fail_after(20):
            said = ""
            while OTHER not in said:
                with pytest.raises(ConnectionError) as refused:
                    await inbox.accept(delivery(3))
                said = str(refused.value)
                await sleep(0.05)
        assert not inbox.ready


async def test_the_disk_of_an_hour_ago_comes_back(caplog):
    with server() as made:
        data, copy = made.folder / "data", made.folder / "copy"
        async with PostgresInbox(made.address) as inbox, inbox.backlog() as backlog:
            await inbox.accept(delivery(1, "a"))
            (claim,) = await backlog.claim(1)
            made.stop()
            shutil.copytree(data, copy)
            shutil.copystat(data, copy)
            subprocess.run(["chown", "-R", "--reference", str(data), str(copy)], check=True)
            made.start()
            await until(lambda: inbox.ready)
            assert await inbox.accept(delivery(2, "a"))
            (lost,) = await backlog.done([claim], more=1)
            made.stop()
            shutil.rmtree(data)
            copy.rename(data)
            made.start()
            await until(lambda: inbox.ready)
            assert await inbox.accept(delivery(3, "a"))
            assert "has an earlier state: what was accepted" in caplog.text
            with pytest.raises(LeaseLost):  # its number is of no other event
                await backlog.done([lost], more=0)
            assert (await inbox.counts()).waiting == 2
            assert json.loads((await backlog.done([claim], more=1))[0].body)["msgId"] == "3"
