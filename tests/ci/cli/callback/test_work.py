"""``rbim callback work`` as a process: an application's handlers over the inbox of a receiver."""

import json
import signal
from contextlib import contextmanager

import anyio
import pytest

from helpers.callback_process import COMMAND, counts, event, serving
from helpers.deliveries import delivery
from helpers.processes import CLEAN, PATIENCE, running
from rbim.callbacks import SqliteInbox
from rbim.cli import Exit

APPLICATION = """
import json
from contextlib import asynccontextmanager

from rbim.callbacks import Event, HandlerContext, Router, Text

router = Router()


@asynccontextmanager
async def shared():
    with open("handled.jsonl", "a", buffering=1, encoding="utf-8") as file:
        yield file


@router.on(Text)
async def said(event: Text, context: HandlerContext) -> None:
    context.resource.write(json.dumps([event.to, event.body, context.attempt]) + "\\n")
    if event.body == "stop here":
        import anyio

        await anyio.sleep(60)


@router.fallback
async def other(event: Event) -> None:
    pass
"""


@pytest.fixture
def app(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "handlers.py").write_text(APPLICATION)
    return tmp_path


@contextmanager
def working(folder, *flags, handlers="shop.handlers:router", inbox="events.db"):
    with running(*COMMAND, "work", handlers, "--inbox", inbox, *flags, env=CLEAN, cwd=folder) as popen:
        assert popen.stderr.readline() == f"rbim: handling the events of {inbox} with {handlers}\n"
        yield popen


def stop(popen, number=signal.SIGTERM):
    popen.send_signal(number)
    out, err = popen.communicate(timeout=PATIENCE)
    return popen.returncode, out, err


async def handled(folder, many):
    file = folder / "handled.jsonl"
    with anyio.fail_after(PATIENCE):
        while not file.exists() or len(file.read_text().splitlines()) < many:
            await anyio.sleep(0.02)
    return [json.loads(line) for line in file.read_text().splitlines()]


HUNG = """
import time

from rbim.callbacks import Event, Router
from rbim.callbacks.worker import worker
from rbim.cli.callback import work

worker.GRACE = 0.1
work.END_WITHIN = 1.0
plain, blocks = Router(), Router()


def hang(event: Event) -> None:
    print("begun", flush=True)
    time.sleep(600)


async def block(event: Event) -> None:
    hang(event)


plain.fallback(hang)
blocks.fallback(block)
"""


@pytest.mark.parametrize("router", ["plain", "blocks"])
async def test_one_signal_ends_it_although_a_handler_hangs(app, router):
    (app / "shop" / "hung.py").write_text(HUNG)
    async with SqliteInbox(app / "events.db") as inbox:
        await inbox.accept(delivery(1))
    with working(app, "--drain", "0.1", handlers=f"shop.hung:{router}") as worker:
        assert await anyio.to_thread.run_sync(worker.stdout.readline) == "begun\n"
        code, _, err = await anyio.to_thread.run_sync(stop, worker)
    assert code == Exit.DONE
    if router == "blocks":
        assert err == "rbim: a handler has not ended after 1.1 s: it blocks, and is left running\n"
    else:
        assert "is left running in its thread" in err
    found = await anyio.to_thread.run_sync(lambda: counts(app / "events.db"))
    assert (found.waiting, found.dead) == (1, 0)


async def test_two_workers_share_an_inbox(app):
    with serving(app / "events.db") as receiver:
        for number in range(30):
            sent = event(to=f"g{number % 5}", msgId=f"m{number}", body=str(number))
            assert (await anyio.to_thread.run_sync(receiver.post, sent))[0] == 200
        receiver.stop()
    flags = ("--around", "shop.handlers:shared", "--concurrency", "1")
    with working(app, *flags) as first, working(app, *flags) as second:
        found = await handled(app, 30)
        assert stop(first, signal.SIGINT)[0] == stop(second)[0] == 0
    for group in range(5):
        assert [int(body) for to, body, _ in found if to == f"g{group}"] == list(range(group, 30, 5))
