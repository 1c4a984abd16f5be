"""``rbim callback serve`` and connections: many at once, TLS, addresses, and how serving ends."""

import asyncio
import http.client
import io
import json
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import trustme

from helpers.callback_process import APP, MINE, PATIENCE, Process, counts, event, serving
from helpers.sockets import speaks_ipv6
from rbim._support.sockets import bound_to
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.receiver.spool import SPOOL
from rbim.callbacks.signature import sign
from rbim.cli import Exit
from rbim.cli.callback.options import ServeOptions
from rbim.cli.callback.serve import OTHER_FILES, _allowed, _config, _UvicornServer
from rbim.storage.sqlite import Database

# ------------------------------------------------------------------------------------------------------------ connections


class Open:
    """One connection to a server."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def send(self, text):
        self.writer.write(text.encode())

    async def ask(self, path="/", length=0):
        """Send a request's head, and return the status of the answer."""
        self.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
        head = await self.reader.readuntil(b"\r\n\r\n")
        return int(head.split()[1])

    async def is_closed(self):
        """Wait until the other end has closed it."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def connecting(app=None, limit=1000):
    """Serve in this event loop; give a function that opens a connection."""

    async def empty(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    what = {"inbox": None, "host": "127.0.0.1", "port": 0, "path": "/", "mode": "normal", "printing": False}
    told = ServeOptions(**what, certfile=None, keyfile=None, connections=limit)
    opened = []
    server = _UvicornServer(_config(told, app or empty))
    with await bound_to("127.0.0.1", 0) as bound:
        bound.listen()
        serves = asyncio.create_task(server.serve(sockets=[bound]))

        async def connect():
            opened.append(Open(*await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])))
            return opened[-1]

        connect.server = server
        try:
            yield connect
        finally:
            for each in opened:
                each.writer.close()
            server.should_exit = True
            await serves


async def test_more_connections_than_the_limit_are_refused_with_503(caplog):
    """Also those that have been answered before: each request counts all connections that are open."""
    async with connecting(limit=2) as connect:
        first, second, third = [await connect() for _ in range(3)]
        assert await third.ask() == 503
        assert (await third.reader.read()).endswith(b"Service Unavailable")
        assert [await each.ask() for each in (first, second)] == [200] * 2
        await connect()
        assert await first.ask() == 503
    assert set(caplog.messages) == {"Exceeded concurrency limit."}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files")
@pytest.mark.parametrize(
    ("files", "most", "allowed", "raised"),
    [
        (-1, -1, 2000, None),
        (100_000, 100_000, 2000, None),
        (1024, 1024, 1024 - OTHER_FILES, 1024),
        (1024, 1500, 1500 - OTHER_FILES, 1500),
        (1024, -1, 2000, 2000 + OTHER_FILES),
        (1, 1, 1, 1),
    ],
)
def test_as_many_as_there_are_files_for(monkeypatch, files, most, allowed, raised):
    limits = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, most))
    monkeypatch.setattr("resource.setrlimit", lambda _, both: limits.append(both))
    assert _allowed(2000) == allowed
    assert limits == ([] if raised is None else [(raised, most)])


def files_for(count):
    """Raise the soft limit of open files; return whether that many are allowed."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < count:
        return False
    if 0 <= soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    return True


@pytest.mark.skipif(sys.platform == "win32" or not files_for(2_500), reason="not enough open files are allowed")
async def test_a_burst_of_two_thousand_connections_is_answered(tmp_path):
    async def deliver(number):
        body = event(msgId=f"m{number}", to=f"g{number}")
        headers = sign(body, credentials=MINE, now=datetime.now(UTC))
        signed = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        one = Open(*await asyncio.open_connection(receiver.host, receiver.port))
        opened.append(one)
        if len(opened) == COUNT:
            all_open.set()
        await all_open.wait()
        one.send(f"POST / HTTP/1.1\r\nHost: x\r\n{signed}Content-Length: {len(body)}\r\n\r\n")
        one.writer.write(body)
        return int((await one.reader.readuntil(b"\r\n\r\n")).split()[1])

    opened, all_open = [], asyncio.Event()
    with serving(tmp_path / "events.db") as receiver:
        assert await asyncio.gather(*map(deliver, range(COUNT))) == [200] * COUNT
        for each in opened:
            each.writer.close()
        assert receiver.stop()[0] == 0
    async with SqliteInbox(tmp_path / "events.db") as inbox:
        assert (await inbox.counts()).waiting == COUNT


COUNT = 2000


async def test_a_server_that_stops_gives_its_last_answers():
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(_scope, _receive, send):
        begun.set()
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with connecting(slow) as connect:
        one = await connect()
        one.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await begun.wait()
        (connection,) = connect.server.server_state.connections
        connect.server.should_exit = True
        while connection.cycle.keep_alive:
            await asyncio.sleep(0.01)
        goes_on.set()
        assert (await one.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await one.is_closed()


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.exc_info or record.levelno > logging.WARNING]


async def test_bytes_that_are_not_http_are_answered_without_a_traceback(caplog):
    async with connecting() as connect:
        one = await connect()
        one.send("hello\r\n\r\n")
        assert (await one.reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert said(caplog) == []


@pytest.mark.parametrize("method", ["POST", "HEAD"])
async def test_bytes_that_are_not_http_in_a_request_end_the_connection(caplog, method):
    async with connecting() as connect:
        one = await connect()
        one.send(f"{method} / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n")
        assert await one.is_closed()
        assert not connect.server.server_state.tasks
    assert said(caplog) == []


def test_https(tmp_path, cli):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certfile, keyfile, cacert, both = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem", "both.pem"))
    certfile.write_bytes(issued.cert_chain_pems[0].bytes())
    issued.private_key_pem.write_to_path(keyfile)
    issued.private_key_and_cert_chain_pem.write_to_path(both)
    authority.cert_pem.write_to_path(cacert)
    with serving(tmp_path / "events.db", "--print", "--certfile", str(certfile), "--keyfile", str(keyfile)) as receiver:
        assert receiver.url.startswith("https://127.0.0.1:")
        connection = http.client.HTTPSConnection(
            "localhost", receiver.port, timeout=PATIENCE, context=ssl.create_default_context(cafile=str(cacert))
        )
        connection.request("POST", "/", event(), sign(event(), credentials=MINE, now=datetime.now(UTC)))
        assert connection.getresponse().status == 200
        connection.close()
        flags = ("send", "--to", "1", "--sender", "2", "--url", receiver.url)
        assert cli(*flags, "--cacert", cacert)[0] == Exit.DONE
        code, _, err = cli(*flags)
        assert code == Exit.NOT_SENT
        assert "(certificate not trusted)" in err
        assert receiver.stop()[0] == 0
    with serving(tmp_path / "events.db", "--certfile", str(both)) as receiver:
        assert receiver.url.startswith("https://")
        assert receiver.stop()[0] == 0


class Reader(io.StringIO):
    """Standard output whose reader does something with the URL, and may then leave."""

    def __init__(self, act, *, leaves):
        super().__init__()
        self.thread = None
        self._act = act
        self._leaves = leaves

    def write(self, text):
        if self._leaves and self.thread is not None:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)

    def flush(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self._act, args=[Process(None, self.getvalue().strip())])
            self.thread.start()


@pytest.mark.parametrize("leaves", [False, True])
def test_it_serves_in_this_process_as_well(tmp_path, cli, monkeypatch, leaves):
    seen = []

    def act(receiver):
        seen.append(receiver.post(event(), path="/elsewhere")[0])
        seen.append(receiver.post(event(convType="NEW", ext="\ud83c\udf89"))[0])
        if not leaves:
            seen.append(receiver.post(event(antspam="x", atUser=[f"{APP}#1"], msgTimestamp="soon"))[0])
            while stdout.getvalue().count("\n") < 3:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

    stdout = Reader(act, leaves=leaves)
    monkeypatch.setattr(sys, "stdout", stdout)
    code, _, err = cli("serve", "--inbox", tmp_path / "events.db", "--port", "0", "--print")
    stdout.thread.join()
    assert code == (Exit.READER_LEFT if leaves else Exit.DONE)
    assert seen == ([404, 200] if leaves else [404, 200, 200])
    assert "not found: POST /elsewhere" in err
    assert leaves == ("BrokenPipeError" in err)
    assert counts(tmp_path / "events.db").waiting == leaves  # what could not be printed is not lost
    if not leaves:
        shown = [json.loads(line) for line in stdout.getvalue().splitlines()[1:]]
        unknown, known = sorted(shown, key=lambda each: each["convType"])
        assert (unknown["convType"], unknown["ext"]) == ("NEW", "\N{PARTY POPPER}")
        assert (known["antspam"], known["atUser"], known["msgTimestamp"]) == ("x", [f"{APP}#1"], "soon")


IPV6 = [("::", "[::1]")] if speaks_ipv6() else []  # a machine without it has no such address


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("localhost", None), *IPV6])
def test_the_url_can_be_reached(tmp_path, host, shown):
    with serving(tmp_path / "events.db", "--host", host) as receiver:
        assert shown is None or receiver.url == f"http://{shown}:{receiver.port}/"
        assert receiver.post(event())[0] == 200
        assert receiver.stop()[0] == 0


def test_what_keeps_it_from_serving(tmp_path, cli, environment):
    inbox, other = tmp_path / "events.db", tmp_path / "other"
    other.write_text("no database, no certificate")

    def refused(*flags):
        code, out, err = cli("serve", *([] if "--inbox" in flags else ["--inbox", inbox]), *flags)
        assert (code, out) == (Exit.USAGE, "")
        assert err.startswith("rbim: ")
        return err

    assert "--spool is needed" in refused("--inbox", "postgresql://me:secret-word@db.example/app")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused("--port", port) == (
            f"rbim: cannot listen on 127.0.0.1 port {port} (Address already in use): choose another --port or --host\n"
        )
    assert "cannot listen on no such host port 0 (" in refused("--port", "0", "--host", "no such host")
    assert "Must be <= 65535" in refused("--port", "70000")
    assert "invalid path 'copies': it must begin with a slash" in refused("--path", "copies")
    assert "--keyfile needs --certfile" in refused("--keyfile", other)
    assert f"{tmp_path}/nowhere: No such file" in refused("--certfile", tmp_path / "nowhere")
    assert f"{other}: " in refused("--certfile", other)
    assert "--mode" in refused("--mode", "sometimes")
    assert "--inbox" in cli("serve")[2]
    assert not inbox.exists()
    assert str(other) in refused("--port", "0", "--inbox", other)
    assert f"no directory {tmp_path}/nowhere" in refused("--port", "0", "--inbox", tmp_path / "nowhere" / "events.db")
    overflow = tmp_path / "overflow"
    made = Database(overflow, SPOOL, clock=time.time)
    made.open()
    made.close()
    overflow.write_bytes(overflow.read_bytes()[:4096] + b"\xff" * 8192)  # SQLite can open it, and finds the damage later
    damaged = refused("--port", "0", "--inbox", "postgresql://me:secret-word@127.0.0.1:1/app", "--spool", overflow)
    assert damaged == f"rbim: {overflow}: database disk image is malformed\n"
    environment.delenv("RBIM_APP_TOKEN")
    assert "RBIM_APP_TOKEN is not set" in refused()
    environment.setitem(sys.modules, "uvicorn", None)
    assert 'python -m pip install "rbim[server]"' in refused()
