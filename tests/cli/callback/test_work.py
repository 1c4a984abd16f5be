"""``rbim callback work`` in this process: an application's handlers over an inbox, and applications that cannot be used."""

import sys

import anyio
import pytest

from helpers.callback_process import counts
from helpers.deliveries import delivery
from rbim.callbacks import SqliteInbox
from rbim.cli import Exit

APPLICATION = """
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
    context.resource.write(event.msg_id + "\\n")
    if context.number == 3:
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
