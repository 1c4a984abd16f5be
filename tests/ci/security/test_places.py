"""Where rbim opens files, and where it listens: the modules that do, and what guards the files and the ports."""

import ast
import asyncio
import inspect
import json
from types import SimpleNamespace
from urllib.parse import urlsplit

import anyio
import pytest

from helpers.callback_process import serving
from helpers.commands import function_of, leaves
from helpers.paths import PACKAGE, TESTS
from helpers.rawclient import ask, http
from rbim.callbacks import SqliteInbox
from rbim.cli.callback.options import ServeOptions
from rbim.cli.exit_codes import Exit
from rbim.emulator.server.server import serve
from rbim.page.server import FilePage, serve_page

CHROMIUM = TESTS / "ci" / "emulator" / "chromium.jsonl"


@pytest.fixture
def anyio_backend():
    return "asyncio"


WRITES = {"NamedTemporaryFile", "FileHandler", "FileIO", "mkdir", "makedirs", "mkdtemp", "mkstemp", "rename", "symlink_to"}
WRITES |= {"TemporaryFile", "TemporaryDirectory", "touch", "write_bytes", "write_text", "copyfile"}
WRITES |= {"private_stream", "replace_private", "create_private"}
LISTENS = {"create_server", "create_unix_server", "start_server", "start_unix_server", "bind", "TCPSite", "HTTPServer"}


def modules_that_call(names, *, opens=()):
    """Return the modules of the package that call one of these functions, or open a file in one of these modes."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                modes = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and name == "open"}
                if name in names or modes & set(opens):
                    found.add(path.relative_to(PACKAGE).as_posix())
    return found


def test_files_are_written_and_ports_opened_in_these_modules_alone():
    """A new one: look at what another user, or a page in a browser, could do there, and write a test of that.

    Files are created by ``_support/private_files.py``, or have no name, or stand in a private folder.
    """
    ours = {"_support/private_files.py", "bulk/journal/lock.py", "bulk/report/plot.py"}
    ours |= {"cli/emulator.py", "cli/jobs/files.py", "storage/sqlite.py"}
    nameless = {"page/journal.py"}
    in_folder = {"bulk/job.py", *(f"testing/conformance/{name}.py" for name in ("requests", "server", "tls"))}
    assert modules_that_call(WRITES) == ours | nameless | in_folder
    assert modules_that_call((), opens=("w", "wb", "a", "ab", "r+", "x")) == {"cli/entry_point.py"}  # the null device
    ports = {"_support/sockets.py", "emulator/server/server.py"}
    arguments = {"callbacks/worker/router.py", "cli/operations.py"}  # they bind those of a signature
    found = {name for name in modules_that_call(LISTENS) if not name.startswith("testing/")}
    assert found == ports | arguments


async def _ask(port, request):
    return await ask(SimpleNamespace(host="127.0.0.1", port=port), request)


async def test_the_receivers_port_tells_a_page_of_another_server_nothing(tmp_path):
    """All that Chromium lets a page try is refused, or answered without a header that lets the page read it."""
    inbox = tmp_path / "inbox.db"
    first, *recorded = map(json.loads, CHROMIUM.read_text(encoding="utf-8").splitlines())
    with serving(inbox, "--health", "/health") as process:
        for each in recorded:
            lines = [f"{name}: {text}" for name, text in (each["headers"] | first["headers"]).items()]
            for path in ("/", "/health", each["target"]):
                text = "\r\n".join([f"{each['method']} {path} HTTP/1.1", *lines, "", ""]) + each["body"]
                text = text.replace("{page}", "http://evil.test").replace("{target}", f"127.0.0.1:{process.port}")
                answer = await _ask(process.port, text.encode())
                assert not [name for name in answer.headers if name.startswith("access-control-")]
                assert answer.status in {400, 401, 404, 405, 411, 413, 415} or path == "/health", (each, path, answer)
        health = await _ask(process.port, http("GET", "/health"))
        assert "error" not in health.document
        code, out, err = await asyncio.to_thread(process.stop)
        assert (code, out) == (Exit.DONE, "")
        assert "evil.test" not in err
        assert "Traceback" not in err
    async with SqliteInbox(inbox) as kept:
        found = await kept.counts()
    assert (found.waiting, found.done, found.dead, found.quarantined) == (0, 0, 0, 0)


def test_what_a_command_serves_is_bound_to_the_loopback_unless_told_otherwise():
    hosts = {
        name: inspect.signature(function_of(name)).parameters["host"].default
        for name in leaves()
        if "host" in inspect.signature(function_of(name)).parameters
    }
    assert hosts == {"emulator": "127.0.0.1"}
    assert ServeOptions(inbox="").host == "127.0.0.1"  # the flags of `rbim callback serve`
    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"


async def test_the_page_of_a_file_is_bound_to_the_loopback():
    addresses = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_page, FilePage("inbox", {}), 0, addresses.append)
        while not addresses:
            await anyio.sleep(0.01)
        port = urlsplit(addresses[0]).port
        with pytest.raises(OSError, match=r"refused|Connect call failed"):  # no other address of this machine
            await asyncio.open_connection("127.0.0.2", port)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        tasks.cancel_scope.cancel()
