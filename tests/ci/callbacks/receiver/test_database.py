"""Handlers with a database: PostgreSQL, and a pool of asyncpg that `around` made."""

from functools import partial

import anyio
import asyncpg
import pytest

from helpers.credentials import CREDENTIALS
from helpers.postgres import needs_postgres, postgres, sql
from helpers.receiving import body, post
from rbim.callbacks import Event, HandlerContext, Receiver, SqliteInbox

COPIES, GROUPS = 60, 12


@pytest.fixture(scope="module")
def server():
    with postgres() as address:
        yield address


@pytest.fixture
def rows(server):
    """Give the rows of a table that is empty before the test."""
    sql(server, "DROP TABLE IF EXISTS copies", "CREATE TABLE copies (key text)")
    return lambda: sql(server, "SELECT key FROM copies")


async def insert(pool, key):
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO copies VALUES ($1)", key)
        await connection.fetchval("SELECT pg_sleep(0.002)")


async def deliver(receiver, inbox):
    async with anyio.create_task_group() as tasks:
        for number in range(COPIES):
            tasks.start_soon(partial(post, receiver, body(msgId=str(number), to=f"g{number % GROUPS}")))
    with anyio.fail_after(15):
        while (await inbox.counts()).done < COPIES:
            await anyio.sleep(0.01)


@needs_postgres
def test_a_handler_uses_the_pool_that_around_made(server, rows, tmp_path):
    inbox = SqliteInbox(tmp_path / "events.db")
    receiver = Receiver(
        credentials=CREDENTIALS, sink=inbox, around=lambda: asyncpg.create_pool(server, min_size=1, max_size=5)
    )

    @receiver.fallback
    async def store(_: Event, handling: HandlerContext) -> None:
        await insert(handling.resource, handling.key)

    async def main():
        async with receiver:
            await deliver(receiver, inbox)

    anyio.run(main)
    found = rows()
    assert len(set(found)) == len(found) == COPIES
