"""The recipes of docs/callbacks.md run as they stand: real servers, a delivery signed by hand, what their handlers print."""

import ast
import http.client
import inspect
import os
import re
import sys
from importlib.util import find_spec

import pytest

from helpers.credentials import APP_ID, TOKEN
from helpers.pages import blocks_of, run_program
from helpers.paths import DOCS
from helpers.postgres import needs_postgres, postgres, sql
from helpers.processes import logged, wait_until
from helpers.signatures import by_hand
from helpers.sockets import free_port
from helpers_ci.recipes import ASGI, serving
from rbim.callbacks import Archive
from rbim.cli import build_app

BLOCKS = {block.title: block.text for block in blocks_of("docs/callbacks.md", "python")}
DATABASE = "With a database"
SERVED = {"With FastAPI": "asgi", "With aiohttp": "aiohttp", "With Django": "asgi", "By WSGI": "wsgi", "With Flask": "wsgi"}
PROGRAMS = {
    "Tokens that change": r"",
    "Which handler gets an event": r"",
    "Inspecting and replaying events": r"Counts\(waiting=0, done=0, dead=0, quarantined=0\)\n0 events are handled again\n",
    "Verifying without the receiver": r"Verified\(key=.*\)\n你好\nRejected\(reason=.*BODY_MISMATCH.*\n",
}

# What serves an application of a module called `recipe`, says at which port, and ends well on SIGTERM.
SERVE = {
    "asgi": ASGI,
    "aiohttp": """
import asyncio, signal
from aiohttp import web
from recipe import app
async def main():
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await over.wait()
    await runner.cleanup()
asyncio.run(main())
""",
    "wsgi": """
import signal, sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from recipe import app
class Server(ThreadingMixIn, WSGIServer):
    pass
class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with make_server("127.0.0.1", 0, app, Server, Quiet) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
""",
}


def test_every_block_is_run_here():
    assert set(BLOCKS) == {*SERVED, *PROGRAMS, DATABASE}


@pytest.fixture
def environment():
    return os.environ | {"RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN, "PYTHONUTF8": "1"}


def post(port, msg_type, conv_type, *, path="/copies", chunked=False, **changed):
    """Post a delivery that is signed with nothing but the standard library; return the status."""
    document = {"eventType": "1", "convType": conv_type, "to": "g1", "fromAccount": f"{APP_ID}#1001", "msgType": msg_type}
    document |= {"body": "你好", "msgId": msg_type, "tMembers": [f"{APP_ID}#1002"]}
    headers, body = by_hand(document)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, iter([body[:20], body[20:]]) if chunked else body, headers | changed)
        return connection.getresponse().status
    finally:
        connection.close()


def test_each_command_for_people_has_its_method_in_python():
    text = (DOCS / "callbacks.md").read_text(encoding="utf-8")
    table = text.partition("| command | method of the inbox |\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]
    named = set()
    for command, python in rows:
        build_app().parse_args(command.strip("`").split()[1:], exit_on_error=False, print_error=False)
        for text in re.findall(r"`(.*?)`", python):
            call = ast.parse(text, mode="eval").body
            signature = inspect.signature(getattr(Archive, call.func.id))
            signature.bind(None, *call.args, **{each.arg: each.value for each in call.keywords})
            named.add(call.func.id)
    assert named == {name for name in vars(Archive) if not name.startswith("_")}


REFUSED = r"refused: checksum_mismatch: CheckSum matches none of the tokens\n"
SAID = {"With FastAPI": ["g1 lost 1002", "1001 said 你好 in g1", "also came: TEAM_JOIN"]}


@pytest.mark.parametrize("title", SERVED)
def test_a_recipe_receives_refuses_and_handles(title, environment, tmp_path):
    receives_refuses_and_handles(title, environment, tmp_path)


@needs_postgres
def test_the_recipe_with_a_database_stores_what_came(environment, tmp_path):
    with postgres() as address:
        sql(address, "CREATE TABLE copies (key text PRIMARY KEY, kind text)")
        receives_refuses_and_handles(DATABASE, environment | {"DATABASE_URL": address}, tmp_path)
        rows = sql(address, "SELECT kind FROM copies ORDER BY kind")
    assert rows == [("TEAM_JOIN",), ("TEAM_KICK",), ("TEXT",)]


def receives_refuses_and_handles(title, environment, tmp_path):
    with serving(BLOCKS[title], tmp_path, environment, SERVE[SERVED.get(title, "asgi")], REFUSED) as (port, out):
        kinds = {"TEAM_KICK": "NOTIFY_TEAM", "TEXT": "TEAM", "TEAM_JOIN": "NOTIFY_TEAM"}
        assert [post(port, *each) for each in kinds.items()] == [200, 200, 200]
        assert post(port, "TEXT", "TEAM", MD5="0" * 32) == 401
        said = [out.readline().rstrip("\n") for _ in kinds]
        assert said == SAID.get(title, [f"came: {each}" for each in kinds])
    assert (tmp_path / "events.db").exists()


@pytest.mark.skipif(not find_spec("gunicorn"), reason="gunicorn is not installed")
@pytest.mark.parametrize("flags", [[], ["--preload"]], ids=["", "preload"])
def test_django_under_gunicorn_takes_a_body_in_chunks(flags, environment, tmp_path):
    (tmp_path / "recipe.py").write_text(BLOCKS["By WSGI"], encoding="utf-8")
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--workers", "2", *flags, "--bind", f"127.0.0.1:{port}", "recipe:app"]
    with logged(*command, log=tmp_path / "said", cwd=tmp_path, env=environment) as said:
        wait_until(lambda: "Booting worker" in said())
        assert post(port, "TEXT", "TEAM", chunked=True) == 200
        assert post(port, "TEAM_KICK", "NOTIFY_TEAM") == 200
        assert post(port, "PICTURE", "TEAM", chunked=True, MD5="0" * 32) == 401
        assert post(port, "TEXT", "TEAM", path="/elsewhere", chunked=True) == 404
        wait_until(lambda: said().count("came: ") == 2)


@pytest.mark.parametrize("title", PROGRAMS)
def test_another_block_runs_as_a_program(title, environment, tmp_path):
    assert re.fullmatch(PROGRAMS[title], run_program(BLOCKS[title], tmp_path, environment))
