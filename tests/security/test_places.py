"""Every place that opens a file, listens or sends to servers is in the list with the test that guards it, and is guarded."""

import ast
import asyncio
import inspect
import json
import os
import re
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from security import on_servers, scan
from security.places import FILES, LISTENERS, MESSAGES

from helpers.callback_process import serving
from helpers.commands import function_of, leaves
from helpers.credentials import CREDENTIALS
from helpers.paths import PACKAGE, ROOT, TESTS
from helpers.rawclient import JSON, ask, http, signed
from rbim.bulk.journal.duplicates import Hashes
from rbim.bulk.journal.overflow import Overflow, Part
from rbim.callbacks import SqliteInbox
from rbim.cli.exit_codes import Exit
from rbim.cli.page.server import LocalPageServer
from rbim.emulator import Emulator
from rbim.emulator.server.server import serve

CHROMIUM = TESTS / "emulator" / "server" / "chromium.jsonl"


@pytest.fixture
def anyio_backend():
    return "asyncio"


# ------------------------------------------------------------------------------ the lists


@pytest.mark.parametrize(
    ("found", "listed"),
    [(scan.files, FILES), (scan.listeners, LISTENERS), (scan.messages, MESSAGES)],
    ids=["files", "listeners", "messages"],
)
def test_every_place_is_in_the_list(found, listed):
    """A new place: look at what another user, or a page in a browser, could do there; write a test of that; list both."""
    assert found() == listed.keys()


def test_every_guard_is_a_test():
    guards = {guard for listed in (FILES, LISTENERS) for guards in listed.values() for guard in guards}
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in {guard.split("::")[0] for guard in guards}}
    missing = [guard for guard in guards if f"def {guard.split('::')[1]}(" not in texts[guard.split("::")[0]]]
    assert missing == []
    assert all(guards for listed in (FILES, LISTENERS) for guards in listed.values())


def test_every_message_is_of_a_kind_that_is_looked_at():
    known = on_servers.SUBJECTS.keys() | on_servers.STREAMS.keys()
    assert {kind for kinds in MESSAGES.values() for kind in kinds} <= known
    assert known - {"events of the servers"} <= {kind for kinds in MESSAGES.values() for kind in kinds}


NEW = {
    "p.write_text('x')": scan.files,
    "open(path, 'a')": scan.files,
    "Path(name).open('wb')": scan.files,
    "os.open(name, os.O_RDWR)": scan.files,
    "temporary.replace(path)": scan.files,
    "sqlite3.connect(name)": scan.files,
    "logging.FileHandler(name)": scan.files,
    "asyncio.start_server(take, host)": scan.listeners,
    "sock.listen(5)": scan.listeners,
    "sock.bind(('', 0))": scan.listeners,
    "uvicorn.run(app)": scan.listeners,
    "ThreadingHTTPServer(('', 0), Handler)": scan.listeners,
    "jetstream.publish('mine', b'')": scan.messages,
}


@pytest.mark.parametrize(("line", "found"), NEW.items(), ids=NEW)
def test_a_new_place_is_found(line, found, tmp_path, monkeypatch):
    folder = tmp_path / "jetstream"
    folder.mkdir()
    (folder / "new.py").write_text(f"import socket\n\n\ndef f(path):\n    {line}\n", encoding="utf-8")
    monkeypatch.setattr(scan, "PACKAGE", tmp_path)
    (place,) = found()
    assert place.startswith("jetstream/new.py: f: ")


@pytest.mark.parametrize("line", ["text.replace('a', 'b')", "journal.open()", "signature.bind(*given)", "found.connect(x)"])
def test_what_is_no_place_is_not_found(line, tmp_path, monkeypatch):
    (tmp_path / "new.py").write_text(f"import socket\n{line}\n", encoding="utf-8")
    monkeypatch.setattr(scan, "PACKAGE", tmp_path)
    assert scan.files() == scan.listeners() == set()


# ------------------------------------------------------------------------------ files


def mode_of(descriptor):
    return stat.S_IMODE(os.fstat(descriptor).st_mode)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are POSIX's")
def test_a_temporary_file_of_a_job_has_no_name_and_no_reader(tmp_path):
    before, hashes, overflow = os.umask(0), Hashes(tmp_path), Overflow(tmp_path)
    try:
        hashes._latest = [1, 2, 2]
        hashes._end_run()
        overflow.add([Part(1, ["account"], [1])])
        files = [*hashes._runs, overflow._file]
        assert len(files) == 2
        for file in files:
            assert mode_of(file.fileno()) == 0o600
        assert list(tmp_path.iterdir()) == []
    finally:
        os.umask(before)
        overflow.close()
        hashes._open.close()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are POSIX's")
def test_a_temporary_folder_is_for_the_user_alone(tmp_path):
    """The interpreter's promise on which each of the folders rests; none is made in another way."""
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert {place for place in scan.files() if place.endswith((": mkdtemp", ": makedirs"))} == set()


def calls_at(place):
    """Return the calls of a place."""
    return [call for found, _, call, _ in scan.calls() if found == place]


def listed(guard):
    return [place for place, guards in FILES.items() if guards[0].endswith(guard)]


@pytest.mark.parametrize("place", listed("test_a_place_that_reads_does_not_write"))
def test_a_place_that_reads_does_not_write(place):
    for call in calls_at(place):
        text = ast.unparse(call)
        if place.endswith("connect"):  # "mode=ro" in the address
            source = inspect.getsource(ast_module(place))
            assert re.search(r"mode=ro|immutable=1", source), text
        else:
            assert not re.search(r"""['"][rbt]*[wax+][rbt+]*['"]""", text), text


def ast_module(place):
    from importlib import import_module

    return import_module(f"rbim.{place.split('.py:')[0].replace('/', '.')}")


@pytest.mark.parametrize("place", listed("test_a_place_that_discards_writes_to_the_null_device"))
def test_a_place_that_discards_writes_to_the_null_device(place):
    assert {ast.unparse(call.args[0]) for call in calls_at(place)} == {"os.devnull"}


# ------------------------------------------------------------------------------ servers


HOSTILE = {
    "a page of another site": ["Origin: http://evil.test"],
    "a page of another port": ["Origin: http://127.0.0.1:1"],
    "a link of another site": ["Sec-Fetch-Site: cross-site"],
    "a link of another port": ["Sec-Fetch-Site: same-site"],
    "a rebound name": [],
}


async def _ask(port, request):
    return await ask(SimpleNamespace(host="127.0.0.1", port=port), request)


@pytest.mark.parametrize("who", HOSTILE)
async def test_no_port_of_the_emulator_obeys_a_page_of_another_server(who):
    """The port of the platform and that of the control interface; before, during and after an outage."""
    emulator = Emulator(credentials=CREDENTIALS)

    def hostile(request):
        if who == "a rebound name":
            return request.replace(b"Host: localhost", b"Host: evil.test", 1)
        more = "".join(f"\r\n{line}" for line in HOSTILE[who]).encode()
        return request.replace(b"\r\n\r\n", more + b"\r\n\r\n", 1)

    requests = [
        http("GET", "/_emulator/state"),
        http("POST", "/_emulator/reset", b"", JSON),
        signed(emulator, "CreateGroup", name="a", type="1"),
    ]
    async with serve(emulator) as server:
        control = int(re.search(r":(\d+)/", server.control_url)[1])
        for ports in ([server.port, control], [control], [server.port, control]):
            for port in ports:
                for request in requests:
                    answer = await _ask(port, hostile(request))
                    assert answer.status == 403
                    assert not [name for name in answer.headers if name.startswith("access-control-")]
                assert (await _ask(port, requests[0])).status == 200
            await (server.accept() if ports == [control] else server.refuse(60))
    assert (len(emulator.requests), emulator.state.groups) == (0, {})


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
    assert hosts == {"emulator": "127.0.0.1", "callback serve": "127.0.0.1"}
    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"


async def test_the_page_of_a_command_is_bound_to_the_loopback():
    async with LocalPageServer(None) as server:
        with pytest.raises(OSError, match=r"refused|Connect call failed"):  # no other address of this machine
            await asyncio.open_connection("127.0.0.2", server.port)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()


def test_the_servers_of_the_conformance_suite_bind_the_loopback():
    places = [place for place in scan.listeners() if place.startswith("testing/") and not place.endswith(": listen")]
    first = {place: ast.unparse(call.args[0]) for place in places for call in calls_at(place)}
    allowed = {"('127.0.0.1', 0)", "(self.host, 0)", "self._path"}
    assert set(first.values()) == allowed, first
    source = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "testing" / "conformance").glob("*.py"))
    assert set(re.findall(r'host(?:: str)? ?= ?"([^"]*)"', source)) <= {"127.0.0.1", "::1", "localhost"}
