"""``rbim callback work`` as a process: an application's handlers over the inbox of a receiver."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import anyio
import pytest

from helpers.callback_process import CLEAN, COMMAND, PATIENCE, counts, event, serving
from helpers.deliveries import delivery
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
        file.write(json.dumps("left") + "\\n")


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
    """The folder of an application with the module ``shop.handlers``."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "handlers.py").write_text(APPLICATION)
    (tmp_path / "shop" / "broken.py").write_text("import json\nfrom json import not_there\n")
    (tmp_path / "shop" / "unkept.py").write_text("import a_package_that_is_not_installed\n")
    (tmp_path / "shop" / "bare.py").write_text(
        "from rbim.callbacks import Router, Text\nrouter = Router()\n@router.on(Text)\ndef said(event: Text): ...\n"
    )
    return tmp_path


@contextmanager
def working(folder, *flags, handlers="shop.handlers:router", inbox="events.db"):
    """Run the command in the application's folder; yields it once it handles events."""
    with subprocess.Popen(
        [*COMMAND, "work", handlers, "--inbox", inbox, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=CLEAN,
        encoding="utf-8",
        cwd=folder,
    ) as popen:
        watchdog = threading.Timer(PATIENCE, popen.kill)  # a line that never comes must not be waited for
        watchdog.start()
        try:
            assert popen.stderr.readline() == f"rbim: handling the events of {inbox} with {handlers}\n"
            yield popen
        finally:
            watchdog.cancel()
            popen.kill()


def stop(popen, number=signal.SIGTERM):
    popen.send_signal(number)
    out, err = popen.communicate(timeout=PATIENCE)
    return popen.returncode, out, err


async def handled(folder, many):
    """Wait until so many events were handled; return what the handlers wrote."""
    file = folder / "handled.jsonl"
    with anyio.fail_after(PATIENCE):
        while not file.exists() or len(file.read_text().splitlines()) < many:
            await anyio.sleep(0.02)
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_handlers_of_an_application_beside_the_receiver(app):
    with serving(app / "events.db") as receiver, working(app, "--around", "shop.handlers:shared") as worker:
        for number in range(4):
            body = event(to=f"g{number % 2}", msgId=f"m{number}", body=f"第{number}条")
            assert (await anyio.to_thread.run_sync(receiver.post, body))[0] == 200
        found = await handled(app, 4)
        assert sorted(found) == [["g0", "第0条", 1], ["g0", "第2条", 1], ["g1", "第1条", 1], ["g1", "第3条", 1]]
        assert [body for group, body, _ in found if group == "g0"] == ["第0条", "第2条"]
        assert stop(worker) == (0, "", "")
        assert receiver.stop()[0] == 0
    assert (await handled(app, 5))[-1] == "left"
    assert await anyio.to_thread.run_sync(lambda: counts(app / "events.db").done) == 4


async def test_what_a_second_signal_leaves_is_handled_by_the_next(app):
    with serving(app / "events.db") as receiver:
        for number, body in enumerate(("stop here", "then this")):
            sent = event(to="g1", msgId=f"m{number}", body=body)
            assert (await anyio.to_thread.run_sync(receiver.post, sent))[0] == 200
        receiver.stop()
    with working(app, "--around", "shop.handlers:shared") as worker:
        assert await handled(app, 1) == [["g1", "stop here", 1]]
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGTERM)
        with anyio.fail_after(PATIENCE):
            while worker.poll() is None:  # a signal that is pending already is not sent twice
                worker.send_signal(signal.SIGTERM)
                await anyio.sleep(0.05)
        assert worker.returncode == 128 + signal.SIGTERM
    found = await anyio.to_thread.run_sync(lambda: counts(app / "events.db"))
    assert (found.waiting, found.dead) == (2, 0)


HUNG = """
import time

from rbim.callbacks import Event, Router
from rbim.callbacks.worker import runner

runner.THREAD_GRACE = 0.1
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
    assert err == "rbim: the worker's thread has not ended after 0.2 s: a handler blocks; it is left running\n"
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


@pytest.mark.parametrize(
    ("handlers", "cause"),
    [
        ("shop.handlers", "HANDLERS: use MODULE:NAME such as app.handlers:router, not 'shop.handlers'"),
        ("shop.handlers:", "HANDLERS: use MODULE:NAME such as app.handlers:router, not 'shop.handlers:'"),
        ("../shop:router", "HANDLERS: use MODULE:NAME such as app.handlers:router, not '../shop:router'"),
        (
            "shop.nowhere:router",
            "HANDLERS: there is no module shop.nowhere below {folder}: run it elsewhere, or use --app-dir",
        ),
        ("shop.handlers:routes", "HANDLERS: shop.handlers:routes cannot be used: there is no routes; routers there: shop.h"),
        (
            "shop.handlers:said",
            "HANDLERS: shop.handlers:said cannot be used: it is a value of function, not a rbim.callbacks.Router",
        ),
        ("shop.handlers:Router", "HANDLERS: shop.handlers:Router cannot be used: it is the class Router, not a rbim"),
        ("shop.broken:router", "HANDLERS: shop.broken cannot be imported: ImportError: cannot import name 'not_there'"),
        ("shop.unkept:router", "HANDLERS: shop.unkept cannot be imported: ModuleNotFoundError: No module named 'a_package"),
        ("shop.bare:router", "the router has no fallback for events without a handler; add one: @router.fallback"),
    ],
)
def test_an_application_that_cannot_be_used(app, refused, handlers, cause):
    said = refused(handlers, "--inbox", "events.db")
    assert said.startswith(f"rbim: {cause.format(folder=app)}"), said


def test_an_attribute_that_fails(app, refused):
    (app / "shop" / "lazy.py").write_text("def __getattr__(name):\n    raise RuntimeError('no ' + name)\n")
    said = refused("shop.lazy:router", "--inbox", "events.db")
    assert said == "rbim: HANDLERS: shop.lazy:router cannot be used: router raises RuntimeError: no router"


def test_where_a_module_failed(app, refused):
    assert refused("shop.broken:router", "--inbox", "events.db").endswith(
        f"({app / 'shop' / 'broken.py'}, line 2); --debug shows the traceback"
    )


def test_a_module_in_another_directory(app):
    (app / "elsewhere").mkdir()
    with working(app / "elsewhere", "--app-dir", "..") as worker:
        assert stop(worker)[0] == 0


def test_what_handlers_share_cannot_be_used(app, refused):
    said = refused("shop.handlers:router", "--inbox", "events.db", "--around", "shop.handlers:APPLICATION")
    assert said.startswith("rbim: --around: shop.handlers:APPLICATION cannot be used: there is no APPLICATION")
    (app / "shop" / "values.py").write_text("POOL = 5\n")
    said = refused("shop.handlers:router", "--inbox", "events.db", "--around", "shop.values:POOL")
    cause = "it is a value of int, not a function that returns an async context manager"
    assert said == f"rbim: --around: shop.values:POOL cannot be used: {cause}"


def test_an_inbox_that_cannot_be_used(app, refused):
    (app / "notes.txt").write_text("not a database, but long enough to be looked at as one" * 50)
    assert "notes.txt cannot be an inbox" in refused("shop.handlers:router", "--inbox", "notes.txt")
    assert "there is no directory" in refused("shop.handlers:router", "--inbox", "no/where.db")


async def test_a_new_inbox_is_created_for_its_owner_alone(app):
    with working(app) as worker:
        assert stop(worker)[0] == 0
    assert (app / "events.db").stat().st_mode & 0o777 == 0o600
    async with SqliteInbox(app / "events.db") as inbox:
        assert (await inbox.counts()).waiting == 0


def test_a_takeover_is_for_inboxes_on_servers(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "takes_over.py").write_text("from rbim.callbacks import Router\nrouter = Router()\n", encoding="utf-8")
    code, _, err = cli("work", "takes_over:router", "--inbox", "events.db", "--takeover", "3")
    assert code == 2
    assert err.startswith("rbim: --takeover: only for an inbox on servers")
    assert not (tmp_path / "events.db").exists()
