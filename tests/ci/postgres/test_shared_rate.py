"""Six processes keep one rate together, while some of them are killed and the server restarts."""

import random
import signal
import time
from contextlib import ExitStack

import anyio
import pytest

from helpers.postgres import needs_postgres, server
from helpers_ci.rate_sharers import Platform, sharer

LIMIT, BURST = 50, 2
SECONDS = 20
STALLS = 2  # requests that a busy machine holds up between their slot and the socket, in the worst second


@needs_postgres
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_six_processes_send_at_one_rate():
    platform = Platform()
    async with platform.serving() as url:
        with server() as database, ExitStack() as processes:
            shared = f"{database.address}#calls"
            running = [processes.enter_context(sharer(url, shared, LIMIT)) for _ in range(6)]
            with anyio.fail_after(60):
                while len(platform.times) < 2 * LIMIT:
                    await anyio.sleep(0.1)
            start = time.time()
            for part in range(4):
                await anyio.sleep(SECONDS / 4)
                if part == 1:
                    await anyio.to_thread.run_sync(database.stop, signal.SIGQUIT)
                    await anyio.to_thread.run_sync(database.start)
                else:
                    number = random.randrange(len(running))
                    running[number].kill()
                    running[number] = processes.enter_context(sharer(url, shared, LIMIT))
            seconds = time.time() - start
            sent = sum(when >= start for when in platform.times)
            for process in running:
                process.kill()
            failures = [line for process in running for line in process.stdout]
    assert platform.most(1.0) <= LIMIT + BURST + STALLS
    assert platform.most(10.0) <= 10 * LIMIT + BURST + STALLS
    assert 0.85 * LIMIT * seconds <= sent
    assert failures == []
