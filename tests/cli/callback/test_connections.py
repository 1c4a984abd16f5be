"""``rbim callback serve`` and connections: those that ask for nothing, TLS, addresses, and how serving ends."""

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
from pathlib import Path

import pytest
import trustme

from helpers.callback_process import APP, FULL, MINE, PATIENCE, Process, event, serving
from helpers.sockets import speaks_ipv6
from rbim import InvalidRequest
from rbim._support.sockets import bound_to
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.signature import sign
from rbim.cli import Exit
from rbim.cli.callback.connection import MAX_CONNECTIONS, RESERVED_FILES, max_connections
from rbim.cli.callback.serve import ServeOptions, _config, _Server
from rbim.cli.connection import HEAD_TIMEOUT, QUIET, RESPONSE_TIMEOUT, ConnectionTable

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
async def connecting(app=None, limit=1000, **tls):
    """Serve in this event loop; give a function that opens a connection."""

    async def empty(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    what = {"inbox": None, "host": "127.0.0.1", "port": 0, "path": "/", "mode": "normal", "printing": False}
    told = ServeOptions(**(what | {"certfile": None, "keyfile": None} | tls))
    opened, listens = [], asyncio.Event()
    server = _Server(_config(told, app or empty), ConnectionTable(limit), listens.set)
    with await bound_to("127.0.0.1", 0) as bound:
        serves = asyncio.create_task(server.serve(sockets=[bound]))
        await listens.wait()

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


async def test_what_asks_for_nothing_is_closed(monkeypatch):
    """Where no head comes, or not all of it, or not the rest of a body that nobody wants any more."""
    assert HEAD_TIMEOUT == 5
    monkeypatch.setattr("rbim.cli.connection.HEAD_TIMEOUT", 0.05)
    async with connecting() as connect:
        resting = await connect()
        assert await resting.ask() == 200
        silent, half, late, wordy = [await connect() for _ in range(4)]
        half.send("POST / HTT")
        assert await late.ask() == 200
        late.send("POST")
        assert await wordy.ask(length=7) == 200
        for each in (silent, half, late, wordy):
            assert await each.is_closed()
        assert await resting.ask() == 200  # which has the time of a connection between requests
        assert len(connect.server.server_state.connections) == 1


async def test_those_that_are_silent_for_long_give_way_first(monkeypatch, caplog):
    monkeypatch.setattr("rbim.cli.connection.QUIET", 0.0)
    async with connecting(limit=3) as connect:
        known, first, second = [await connect() for _ in range(3)]
        assert await known.ask() == 200
        assert [await (await connect()).ask() for _ in range(2)] == [200] * 2
        assert await first.is_closed()
        assert await second.is_closed()
        assert await known.ask() == 200
        third = await connect()  # in place of the one that asked for nothing for longest
        assert await third.ask() == 200
        assert await known.ask() == 200
    assert caplog.messages == ["3 connections gave way to others: at most 3 are open at once (--connections)"]


async def test_in_a_burst_those_that_have_their_answer_give_way_first():
    assert QUIET == 1
    async with connecting(limit=3) as connect:
        answered, first, second = [await connect() for _ in range(3)]
        assert await answered.ask() == 200
        third = await connect()
        assert await answered.is_closed()
        assert [await each.ask() for each in (first, second, third)] == [200] * 3


async def test_where_nobody_is_idle_the_next_one_is_told():
    begun, goes_on = [], asyncio.Event()

    async def slow(_scope, _receive, send):
        begun.append(1)
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with connecting(slow, limit=2) as connect:
        asking = [asyncio.create_task((await connect()).ask()) for _ in range(2)]
        while len(begun) < 2:
            await asyncio.sleep(0)
        assert await (await connect()).ask() == 503
        goes_on.set()
        assert [await each for each in asking] == [200, 200]


async def test_an_answer_that_is_not_there_in_time_ends_the_connection(monkeypatch):
    """Such as one that nobody reads, while more is asked for."""
    assert RESPONSE_TIMEOUT == 15
    monkeypatch.setattr("rbim.cli.connection.RESPONSE_TIMEOUT", 0.05)
    told = []

    async def stuck(_scope, receive, _send):
        told.extend([await receive() for _ in range(2)])

    async with connecting(stuck) as connect:
        one = await connect()
        one.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1")
        assert await one.is_closed()
    assert [each["type"] for each in told] == ["http.request", "http.disconnect"]


async def test_requests_one_after_the_other_have_their_time_each():
    """On one connection, and sent before the answers to those before them."""
    async with connecting() as connect:
        one = await connect()
        one.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" * 20)
        for _ in range(20):
            assert (await one.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await one.ask() == 200


async def test_a_handshake_that_does_not_come_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("rbim.cli.connection.HEAD_TIMEOUT", 0.05)
    both = tmp_path / "both.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(both)
    async with connecting(certfile=both) as connect:
        assert await (await connect()).is_closed()


@pytest.mark.parametrize(
    ("files", "hard", "count", "raised"),
    [
        (-1, -1, MAX_CONNECTIONS, None),
        (100_000, 100_000, MAX_CONNECTIONS, None),
        (1024, 1024, 1024 - RESERVED_FILES, 1024),
        (1024, 4096, 4096 - RESERVED_FILES, 4096),
        (1024, -1, MAX_CONNECTIONS, MAX_CONNECTIONS + RESERVED_FILES),
        (100, 100, 50, 100),
        (1, 1, 1, 1),
    ],
)
def test_as_many_as_there_are_files_for(monkeypatch, files, hard, count, raised):
    limits = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, hard))
    monkeypatch.setattr("resource.setrlimit", lambda _, both: limits.append(both))
    assert max_connections() == count
    assert limits == ([] if raised is None else [(raised, hard)])
    assert max_connections(1) == 1
    if 0 <= hard < 100_000:
        with pytest.raises(InvalidRequest, match=f"use at most {count}") as refused:
            max_connections(100_000)
        assert refused.value.field == "--connections"


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
        _, _, err = receiver.stop()
        assert "gave way" not in err
    async with SqliteInbox(tmp_path / "events.db") as inbox:
        assert (await inbox.counts()).waiting == COUNT


COUNT = 2000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not files_for(10_500), reason="not enough open files are allowed")
def test_ten_thousand_connections_that_ask_for_nothing_hold_up_no_delivery(tmp_path):
    """Some have sent half a head, some a head without its body."""
    beginnings = (b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
    idle = []
    with serving(tmp_path / "events.db") as receiver:
        try:
            for number in range(10_000):
                idle.append(socket.create_connection((receiver.host, receiver.port), timeout=PATIENCE))
                idle[-1].sendall(beginnings[number % 3])
                if number % 1000 == 999:
                    began = time.monotonic()
                    assert receiver.post(event(msgId=str(number)))[0] == 200
                    assert time.monotonic() - began < 5  # the platform's patience
            status = Path(f"/proc/{receiver.popen.pid}/status").read_text()
        finally:
            for each in idle:
                each.close()
        assert receiver.stop()[0] == 0
    (peak,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    assert peak < 200_000  # KiB


async def test_a_server_that_stops_says_so_in_its_last_answers():
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
        connect.server.should_exit = True
        while connect.server.server_state.connections and not one.reader.at_eof():
            (connection,) = connect.server.server_state.connections
            if not connection.cycle.keep_alive:
                break
            await asyncio.sleep(0.01)
        goes_on.set()
        assert b"connection: close\r\n" in (await one.reader.readuntil(b"\r\n\r\n")).lower()
        assert await one.is_closed()


async def test_another_protocol_that_is_asked_for_is_ignored_in_silence(caplog):
    async with connecting() as connect:
        for protocol in ("websocket", "h2c"):
            one = await connect()
            one.send(f"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n")
            assert (await one.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert caplog.messages == []


NOT_HTTP = {
    "no line of HTTP": "hello\r\n\r\n",
    "no chunk": "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    "no chunk of a HEAD": "HEAD / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
}


@pytest.mark.parametrize("name", NOT_HTTP)
async def test_bytes_that_are_not_http_are_answered_once_and_without_a_traceback(caplog, name):
    async with connecting() as connect:
        one = await connect()
        one.send(NOT_HTTP[name])
        answer = await one.reader.read()
        assert not connect.server.server_state.tasks
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert [record.getMessage() for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


async def test_bytes_that_are_not_http_behind_an_answer_end_the_connection(caplog):
    async with connecting() as connect:
        one = await connect()
        one.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await one.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        one.send("ZZ\r\n")
        assert await one.reader.read() == b""
    assert [record.getMessage() for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


def test_a_request_target_in_absolute_form_has_its_path(tmp_path):
    with serving(tmp_path / "events.db", "--path", "/copies") as receiver:
        target = "HTTP://receiver.example:8000/copies?x=1"
        assert receiver.post(event(), path=target)[0] == 200
        assert receiver.post(event(), path="http://receiver.example/elsewhere")[0] == 404
        assert receiver.post(event(), path="http://receiver.example")[0] == 404
        assert "not found: POST /elsewhere" in receiver.stop()[2]


def test_nobody_reads_what_it_prints(tmp_path):
    """Then it stops, and the event is not lost."""
    inbox = tmp_path / "events.db"
    with serving(inbox, "--print") as receiver:
        receiver.popen.stdout.close()
        assert receiver.post(event())[0] == 200
        assert receiver.popen.wait(PATIENCE) == Exit.READER_LEFT
        err = receiver.popen.stderr.read()
        assert "Traceback" not in err
        assert "BrokenPipeError" in err
    with serving(inbox, "--print") as receiver:
        assert receiver.line()["attempt"] == 2
        assert receiver.stop()[0] == 0


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
    if not leaves:
        shown = [json.loads(line) for line in stdout.getvalue().splitlines()[1:]]
        unknown, known = sorted(shown, key=lambda each: each["convType"])
        assert (unknown["convType"], unknown["ext"]) == ("NEW", "\N{PARTY POPPER}")
        assert (known["antspam"], known["atUser"], known["msgTimestamp"]) == ("x", [f"{APP}#1"], "soon")


async def test_of_several_addresses_the_first_that_can_be_had(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", each)) for each in (port, 0)]

        async def both(*_, **__):
            return found

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
        with await bound_to("two", port) as bound:
            assert bound.getsockname()[1] != port
        found.reverse()
        found[0] = found[1]
        with pytest.raises(OSError, match="in use"):
            await bound_to("two", port)


def test_it_ends_at_once_if_told_so(tmp_path, cli, monkeypatch):
    """Whoever presses Ctrl-C as soon as there is something to read."""
    monkeypatch.setattr("rbim.cli.callback.serve._url", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT), list(logging.getLogger("rbim").handlers)
    assert cli("serve", "--inbox", tmp_path / "events.db", "--port", "0", "--print", "--host", "0.0.0.0") == (
        0,
        "None\n",
        "",
    )
    assert (signal.getsignal(signal.SIGINT), list(logging.getLogger("rbim").handlers)) == before


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
    environment.delenv("RBIM_APP_TOKEN")
    assert "RBIM_APP_TOKEN is not set" in refused()
    environment.setitem(sys.modules, "uvicorn", None)
    assert 'python -m pip install "rbim[server]"' in refused()


def test_a_store_that_fails_is_said(tmp_path, cli, monkeypatch):
    def fails(_):
        raise FULL

    monkeypatch.setattr("rbim.callbacks.inbox.sqlite.SqliteInbox.__aenter__", fails)
    code, out, err = cli("serve", "--inbox", tmp_path / "events.db", "--port", "0")
    assert (code, out, err) == (Exit.USAGE, "", f"rbim: {tmp_path}/events.db: database or disk is full\n")
