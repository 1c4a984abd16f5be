"""``rbim callback work``: an application's handlers over an inbox, and applications that cannot be used."""

import json
import signal
import sys
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
import os
import signal
from contextlib import asynccontextmanager

from rbim.callbacks import Event, HandlerContext, Router, Text

router = Router()


@asynccontextmanager
async def shared():
    with open("handled.jsonl", "a", buffering=1, encoding="utf-8") as file:
        yield file
        file.write("left")


@router.fallback
async def other(event: Event, context: HandlerContext) -> None:
    context.resource.write(json.dumps([event.to, event.body, context.attempt, event.msg_id]) + "\\n")
    if event.msg_id == "3":
        os.kill(os.getpid(), signal.SIGTERM)


def said(event: Text): ...
"""


@pytest.fixture
def app(tmp_path):
    """The folder of an application with the module ``shop.handlers``."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "handlers.py").write_text(APPLICATION)
    (tmp_path / "shop" / "broken.py").write_text("import json\nfrom json import not_there\n")
    (tmp_path / "shop" / "unkept.py").write_text("import a_package_that_is_not_installed\n")
    (tmp_path / "shop" / "leaves.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "shop" / "bare.py").write_text(
        "from rbim.callbacks import Router, Text\nrouter = Router()\n@router.on(Text)\ndef said(event: Text): ...\n"
    )
    return tmp_path


@pytest.fixture
def refused(app, cli, monkeypatch):
    """Run the command with wrong arguments in this process; return the first line of the error."""
    monkeypatch.chdir(app)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments):
        code, out, err = cli("work", *arguments)
        assert (code, out) == (Exit.USAGE, "")
        assert "Traceback" not in err
        return err.splitlines()[0]

    yield run
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_handlers_of_an_application_handle_what_waits(app, cli, monkeypatch):
    async def fill():
        async with SqliteInbox(app / "events.db") as inbox:
            for number in range(1, 4):
                await inbox.accept(delivery(number))

    anyio.run(fill)
    monkeypatch.chdir(app)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, out, err = cli("work", "shop.handlers:router", "--inbox", "events.db", "--around", "shop.handlers:shared")
    assert (code, out) == (Exit.DONE, "")
    assert err == "rbim: handling the events of events.db with shop.handlers:router\n"
    *handled, left = (app / "handled.jsonl").read_text().splitlines()
    assert (len(set(handled)), left, counts(app / "events.db").done) == (3, "left", 3)


def test_an_application_that_cannot_be_used(app, refused):
    use = "HANDLERS: use MODULE:NAME such as app.handlers:router, not "
    wrong = {}
    for handlers, cause in [
        ("shop.handlers", f"{use}'shop.handlers'"),
        ("shop.handlers:", f"{use}'shop.handlers:'"),
        ("../shop:router", f"{use}'../shop:router'"),
        ("shop.nowhere:router", "HANDLERS: there is no module shop.nowhere below {}: run it elsewhere, or use --app-dir"),
        ("shop.handlers:routes", "HANDLERS: shop.handlers:routes cannot be used: there is no routes; routers there: shop.h"),
        (
            "shop.handlers:said",
            "HANDLERS: shop.handlers:said cannot be used: it is a value of function, not a rbim.callbacks.Router",
        ),
        ("shop.handlers:Router", "HANDLERS: shop.handlers:Router cannot be used: it is the class Router, not a rbim"),
        ("shop.broken:router", "HANDLERS: shop.broken cannot be imported: ImportError: cannot import name 'not_there'"),
        ("shop.unkept:router", "HANDLERS: shop.unkept cannot be imported: ModuleNotFoundError: No module named 'a_package"),
        ("shop.leaves:router", "HANDLERS: shop.leaves cannot be imported: SystemExit: 3 ("),
        ("shop.bare:router", "the router has no fallback for events without a handler; add one: @router.fallback"),
    ]:
        said = refused(handlers, "--inbox", "events.db")
        if not said.startswith(f"rbim: {cause.format(app)}"):
            wrong[handlers] = said
    assert wrong == {}


def test_what_handlers_share_cannot_be_used(app, refused):
    said = refused("shop.handlers:router", "--inbox", "events.db", "--around", "shop.handlers:APPLICATION")
    assert said.startswith("rbim: --around: shop.handlers:APPLICATION cannot be used: there is no APPLICATION")
    (app / "shop" / "values.py").write_text("POOL = 5\n")
    said = refused("shop.handlers:router", "--inbox", "events.db", "--around", "shop.values:POOL")
    cause = "it is a value of int, not a function that returns an async context manager"
    assert said == f"rbim: --around: shop.values:POOL cannot be used: {cause}"

    (app / "shop" / "pools.py").write_text("def no_address(): raise ValueError('no address')\nclass NotOne: pass\n")
    for name, failure in [("no_address", "ValueError: no address ("), ("NotOne", "TypeError: ")]:
        said = refused("shop.handlers:router", "--inbox", "events.db", "--around", f"shop.pools:{name}")
        assert said.startswith(f"rbim: --around: shop.pools:{name} cannot be used: it raises {failure}")


# As a process.


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


@pytest.mark.ci
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


@pytest.mark.ci
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
        assert [int(body) for to, body, *_ in found if to == f"g{group}"] == list(range(group, 30, 5))
