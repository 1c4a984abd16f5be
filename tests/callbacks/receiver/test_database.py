"""Handlers with a database: PostgreSQL, and a pool of asyncpg that the application or `around` made."""

import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial

import anyio
import asyncpg
import pytest

from helpers.credentials import CREDENTIALS
from helpers.paths import ROOT
from helpers.postgres import needs_postgres, postgres
from helpers.receiving import body, post
from helpers.waiting import until
from rbim.callbacks import Backoff, Event, HandlerContext, HandlingFailed, Receiver, SqliteInbox

LOOPS = [
    "asyncio",
    pytest.param("uvloop", marks=pytest.mark.skipif(sys.platform == "win32", reason="uvloop does not run there")),
]
COPIES, GROUPS = 60, 12
TENANT: ContextVar[str] = ContextVar("TENANT", default="none")


@pytest.fixture(scope="module")
def server():
    with postgres() as address:
        yield address


@pytest.fixture
def rows(server):
    """Give the rows of a table that is empty before the test, by a connection of its own in a loop of its own."""

    async def do(sql):
        connection = await asyncpg.connect(server)
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    anyio.run(do, "DROP TABLE IF EXISTS copies")
    anyio.run(do, "CREATE TABLE copies (key text, tenant text)")
    return lambda: anyio.run(do, "SELECT * FROM copies")


def in_loop(loop, main):
    """Run a function in an event loop of the kind, in this thread."""
    return anyio.run(main, backend_options={"use_uvloop": loop == "uvloop"})


async def insert(pool, key):
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO copies VALUES ($1, $2)", key, TENANT.get())
        await connection.fetchval("SELECT pg_sleep(0.002)")


async def deliver(receiver, inbox):
    async with anyio.create_task_group() as tasks:
        for number in range(COPIES):
            tasks.start_soon(partial(post, receiver, body(msgId=str(number), to=f"g{number % GROUPS}")))
    with anyio.fail_after(15):
        while (await inbox.counts()).done < COPIES:
            await anyio.sleep(0.01)


@needs_postgres
@pytest.mark.parametrize("loop", LOOPS)
def test_a_handler_uses_the_pool_and_the_context_of_the_application(server, rows, tmp_path, loop):
    inbox, failed = SqliteInbox(tmp_path / "events.db"), []
    receiver = Receiver(credentials=CREDENTIALS, sink=inbox, observers=[failed.append])

    async def main():
        TENANT.set("a")
        async with asyncpg.create_pool(server, min_size=2, max_size=5) as pool:

            @receiver.fallback
            async def store(_: Event, handling: HandlerContext) -> None:
                await insert(pool, handling.key)

            async with receiver, anyio.create_task_group() as tasks:
                for _ in range(5):  # the application uses the pool as well
                    tasks.start_soon(pool.fetchval, "SELECT pg_sleep(0.05)")
                await deliver(receiver, inbox)

    in_loop(loop, main)
    assert [each for each in failed if isinstance(each, HandlingFailed)] == []
    found = rows()
    assert len({row["key"] for row in found}) == len(found) == COPIES
    assert {row["tenant"] for row in found} == {"a"}


@needs_postgres
@pytest.mark.parametrize("own_thread", [False, True])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_handler_uses_the_pool_that_around_made(server, rows, tmp_path, loop, own_thread):
    inbox = SqliteInbox(tmp_path / "events.db")
    receiver = Receiver(
        credentials=CREDENTIALS,
        sink=inbox,
        own_thread=own_thread,
        around=lambda: asyncpg.create_pool(server, min_size=1, max_size=5),
    )

    @receiver.fallback
    async def store(_: Event, handling: HandlerContext) -> None:
        await insert(handling.resource, handling.key)

    async def main():
        async with receiver:
            await deliver(receiver, inbox)

    in_loop(loop, main)
    found = rows()
    assert len({row["key"] for row in found}) == len(found) == COPIES


CRASH = """
import sys, anyio, asyncpg
sys.path.insert(0, "tests")
from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from rbim.callbacks import Backoff, Receiver, SqliteInbox

async def main():
    async with asyncpg.create_pool(sys.argv[2], min_size=1, max_size=1) as pool:
        receiver = Receiver(
            credentials=CREDENTIALS, sink=SqliteInbox(sys.argv[1]), own_thread=True, backoff=Backoff(attempts=1), drain=0
        )

        @receiver.fallback
        async def store(event):
            async with pool.acquire() as connection:
                await connection.fetchval("SELECT pg_sleep(0.01)")

        async with receiver:
            await post(receiver, body())
            await anyio.sleep(0.5)
            pool.terminate()

anyio.run(main, backend_options={"use_uvloop": sys.argv[3] == "uvloop"})
"""


@needs_postgres
@pytest.mark.parametrize("loop", LOOPS)
def test_with_own_thread_a_pool_of_another_loop_fails_and_the_record_names_the_remedy(server, tmp_path, loop):
    command = [sys.executable, "-c", CRASH, str(tmp_path / "events.db"), server, loop]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == -signal.SIGSEGV:  # asyncpg in two loops at once; nothing can be logged
        return
    assert "own_thread" in done.stderr, done
    assert "around=" in done.stderr


@pytest.mark.parametrize(
    "text", ["got Future attached to a different loop", "cannot perform operation: another operation is in progress"]
)
async def test_an_error_of_another_loop_names_own_thread_and_around(tmp_path, text):
    seen = []
    receiver = Receiver(
        credentials=CREDENTIALS,
        sink=SqliteInbox(tmp_path / "events.db"),
        own_thread=True,
        observers=[seen.append],
        backoff=Backoff(attempts=2, first=100),
    )

    @receiver.fallback
    async def store(_: Event) -> None:
        raise RuntimeError(text)

    async with receiver:
        await post(receiver, body())
        await until(lambda: [each for each in seen if isinstance(each, HandlingFailed)])
    (failed,) = (each for each in seen if isinstance(each, HandlingFailed))
    for shown in (failed.error, failed.trace):
        assert text in shown
        assert "own_thread=True" in shown
        assert "around=" in shown


@asynccontextmanager
async def nothing():
    yield None


async def test_without_around_the_resource_is_none(tmp_path):
    found = []
    for around in (None, nothing):
        inbox = SqliteInbox(tmp_path / f"{around}.db")
        receiver = Receiver(credentials=CREDENTIALS, sink=inbox, around=around)

        @receiver.fallback
        def keep(_: Event, handling: HandlerContext) -> None:
            found.append(handling.resource)

        async with receiver:
            await post(receiver, body())
            await until(lambda: found)
        assert found.pop() is None
