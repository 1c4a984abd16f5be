"""Two processes, on asyncio and on trio, share the file of an inbox."""

import subprocess
import sys
from itertools import pairwise

from helpers.jobs import read
from helpers.paths import TESTS

WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import anyio
from rbim.callbacks.inbox.sqlite import SqliteInbox
from helpers.deliveries import delivery

me, per_process, teams = int(sys.argv[3]), 150, 6
inbox = SqliteInbox(sys.argv[2], poll=0.005)

async def accept():
    for number in range(per_process):
        await inbox.accept(delivery(f"{me}-{number}", str(number % teams)))
        await inbox.accept(delivery(f"both-{number}", str(number % teams)))

async def handle(backlog, claim):
    while claim is not None:
        start = time.monotonic_ns()
        await anyio.lowlevel.checkpoint()
        print(claim.conversation, claim.number, claim.fence, claim.attempt, start, time.monotonic_ns(), flush=True)
        claim = next(iter(await backlog.done([claim], more=int(claim.number % 5 > 0))), None)

async def work():
    async with inbox.backlog() as backlog:
        while (await inbox.counts()).done < 3 * per_process:
            async with anyio.create_task_group() as tasks:
                heads = {}
                for claim in await backlog.claim(3):
                    heads.setdefault(claim.conversation, claim)
                for claim in heads.values():
                    tasks.start_soon(handle, backlog, claim)
            with anyio.move_on_after(0.05):
                await backlog.wait()

async def main():
    async with inbox, anyio.create_task_group() as tasks:
        tasks.start_soon(accept)
        await work()

anyio.run(main, backend=sys.argv[4])
"""


def test_two_processes_that_accept_and_handle_lose_nothing_and_do_nothing_twice(tmp_path):
    path = tmp_path / "inbox.db"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(TESTS), path, str(me), backend], stdout=subprocess.PIPE, text=True
        )
        for me, backend in enumerate(("asyncio", "trio"))
    ]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert all(outputs)
    told = {}
    for line in "".join(outputs).splitlines():
        conversation, *numbers = line.split()
        told.setdefault(conversation, []).append(tuple(map(int, numbers)))
    assert sorted(number for each in told.values() for number, *_ in each) == sorted(
        number for (number,) in read(path, "SELECT number FROM event")
    )
    assert read(path, "SELECT count(*), min(state), max(state) FROM event") == [(450, 1, 1)]
    assert read(path, "SELECT * FROM conversation") == []
    for handled in told.values():
        handled.sort(key=lambda each: each[3])
        assert [number for number, *_ in handled] == sorted(number for number, *_ in handled)
        assert all(attempt == 1 for _, _, attempt, _, _ in handled)
        assert all(before[4] <= after[3] for before, after in pairwise(handled))
