"""``rbim callback`` as processes: a receiver that is served, what is sent to it, captures that are explained, replays."""

import asyncio
import base64
import http.client
import io
import itertools
import json
import logging
import os
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import anyio
import pytest
import trustme

from rbim import Credentials, InvalidRequest
from rbim.callbacks.inbox import SqliteInbox
from rbim.callbacks.signature import Reason, sign
from rbim.callbacks.watch import Buried, HandlingFailed, Quarantined, Refused, Spooled
from rbim.cli import Exit, run
from rbim.cli.callback_capture import capture_of
from rbim.cli.callback_connection import ANSWERED, AT_ONCE, BEGUN, most
from rbim.cli.callback_log import WAITING, Trickle
from rbim.cli.callback_scribe import LAST_WORDS, Scribe
from rbim.cli.callback_serve import DRAIN, Serving, _config, _Server, _signals
from rbim.cli.callback_serve import PATIENCE as REQUESTS
from rbim.environment import callback_credentials_from_env
from rbim.sockets import bound_to

APP, TOKEN, OLD_TOKEN = "an-app", "the-very-token", "the-old-token"
MINE = Credentials(app_id=APP, app_token=TOKEN)
COMMAND = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()", "callback"]
PATIENCE = 60
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
FULL = sqlite3.OperationalError("database or disk is full")
KNOWN = {"RBIM_APP_ID": APP, "RBIM_APP_TOKEN": TOKEN}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """An environment with credentials, and nothing of the machine's own."""
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    for name, value in KNOWN.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def anyio_backend():
    """What uvicorn runs on."""
    return "asyncio"


@pytest.fixture
def cli(capsys):
    """Run a command in this process; nothing that it writes has a token in it."""

    def call(*tokens):
        code = run(["callback", *map(str, tokens)])
        out, err = capsys.readouterr()
        for text in (out, err):
            assert "Traceback" not in text
            assert TOKEN not in text
            assert OLD_TOKEN not in text
        return code, out, err

    return call


class Process:
    """A receiver in a process of its own; ``url`` is the first line it writes."""

    def __init__(self, popen, url):
        self.popen = popen
        self.url = url
        self.host, self.port = urlsplit(url).hostname, urlsplit(url).port

    def post(self, body, headers=None, path="/", method="POST"):
        """Post a body, signed unless told otherwise, and return the status."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.request(
                method, path, body, sign(body, credentials=MINE, now=datetime.now(UTC)) if headers is None else headers
            )
            answer = connection.getresponse()
            answer.read()
            return answer.status, dict(answer.getheaders())
        finally:
            connection.close()

    def connect_forever(self):
        while True:
            socket.create_connection((self.host, self.port), timeout=PATIENCE).close()
            time.sleep(0.01)

    def line(self):
        return json.loads(self.popen.stdout.readline())

    def stop(self, number=signal.SIGTERM):
        self.popen.send_signal(number)
        out, err = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, out, err


@contextmanager
def serving(inbox, *flags, **environment):
    with subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--inbox", str(inbox), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=CLEAN | KNOWN | environment,
        encoding="utf-8",
    ) as popen:
        watchdog = threading.Timer(PATIENCE, popen.kill)  # a line that never comes must not be waited for
        watchdog.start()
        try:
            yield Process(popen, popen.stdout.readline().rstrip("\n"))
        finally:
            watchdog.cancel()
            popen.kill()


def event(**fields):
    given = {
        "eventType": "1",
        "convType": "TEAM",
        "to": "g1",
        "fromAccount": f"{APP}#1001",
        "msgType": "TEXT",
        "msgId": "m1",
    }
    return json.dumps(given | fields).encode()


# ------------------------------------------------------------------------------------------------------------------ serve


def test_it_is_sent_kept_printed_and_replayed(tmp_path, cli):
    inbox = tmp_path / "events.db"
    with serving(inbox, "--print") as receiver:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", receiver.url)
        code, out, err = cli(
            "send", "TEAM_JOIN", "--to", "g1", "--sender", "1001", "--member", "1002", "1003", "--url", receiver.url
        )
        assert (code, err) == (0, "")
        assert re.fullmatch(r"200  \d+\.\d ms\n", out)
        joined = receiver.line()
        assert joined | dict.fromkeys(("msgId", "msgTimestamp", "key", "received")) == {
            "eventType": "1",
            "convType": "NOTIFY_TEAM",
            "to": "g1",
            "fromAccount": f"{APP}#1001",
            "msgType": "TEAM_JOIN",
            "tMembers": [f"{APP}#1002", f"{APP}#1003"],
            "attempt": 1,
            **dict.fromkeys(("msgId", "msgTimestamp", "key", "received")),
        }
        assert datetime.fromisoformat(joined["received"]).utcoffset() == timedelta()

        code, out, _ = cli(
            "send",
            "--to",
            "1002",
            "--sender",
            "1001",
            "--text",
            "你好",
            "--msg-id",
            "m7",
            "--times",
            "3",
            "--url",
            receiver.url,
        )
        assert (code, out.count("200  ")) == (0, 3)  # copies of one message
        code, out, _ = cli(
            "send",
            "text",
            "--to",
            "g1",
            "--sender",
            "1001",
            "--member",
            "1002",
            "--resend",
            "--times",
            "2",
            "--url",
            receiver.url,
        )
        assert (code, out.count("200  ")) == (0, 2)
        said, first, second = (receiver.line() for _ in range(3))
        assert (said["convType"], said["body"], said["msgId"]) == ("PERSON", "你好", "m7")
        assert (first["convType"], first["resendFlag"]) == ("TEAM", True)
        assert first["msgId"] != second["msgId"]

        assert cli("replay", "--inbox", inbox, "--kind", "TEAM_JOIN", "--since", "1h") == (
            0,
            "1 event will be handled again\n",
            "",
        )
        assert receiver.line() | {"key": "", "received": ""} == joined | {"key": "", "received": ""}
        assert receiver.stop(signal.SIGINT) == (0, "", "")
    assert cli("replay", "--inbox", inbox) == (0, "4 events will be handled again\n", "")
    with serving(inbox, "--print") as receiver:
        assert {receiver.line()["msgType"] for _ in range(4)} == {"TEXT", "TEAM_JOIN"}
        assert receiver.stop() == (0, "", "")


def test_without_print_events_wait_for_another_process(tmp_path):
    inbox = tmp_path / "events.db"
    with serving(inbox, "--path", "/copies") as receiver:
        assert receiver.url.endswith("/copies")
        assert receiver.post(event(body="\x7f\u2028"), path="/copies")[0] == 200
        code, out, err = receiver.stop()
    assert (code, out) == (0, "")
    assert err == f"rbim: events are kept in {inbox} and wait there; --print handles them as well\n"
    with serving(inbox, "--print") as receiver:
        line = receiver.popen.stdout.readline()
        assert line.isascii()
        assert json.loads(line)["body"] == "\x7f\u2028"
        assert receiver.stop()[0] == 0


def md5sum(content):
    done = subprocess.run([shutil.which("md5sum")], input=content, capture_output=True, check=True, timeout=PATIENCE)
    return done.stdout[:32]


def test_signed_by_other_programs(tmp_path):
    """A delivery that ``md5sum`` signed, posted by the standard library's client."""
    body = event(body="你好")
    digest, moment = md5sum(body).upper(), b"%d" % (time.time() * 1000)
    told = {"MD5": digest, "CurTime": moment, "CheckSum": md5sum(f"{APP}{TOKEN}".encode() + digest + moment)}
    with serving(tmp_path / "events.db", "--print") as receiver:
        status, headers = receiver.post(body, told)
        assert status == 200
        assert "server" not in {name.lower() for name in headers}
        assert receiver.line()["body"] == "你好"
        assert receiver.stop() == (0, "", "")


def test_what_is_refused_is_one_line_each(tmp_path):
    with serving(tmp_path / "events.db", "--print") as receiver:
        assert receiver.post(event(), {})[0] == 401
        assert receiver.post(event(), path="/elsewhere\x1b[31m".replace("\x1b", "%1b"))[0] == 404
        assert receiver.post(b"", {}, method="GET")[0] == 405
        assert receiver.post(b"no json")[0] == 200
        assert receiver.post(event(fromAccount="other#1"))[0] == 200
        code, out, err = receiver.stop()
    assert (code, out) == (0, "")
    lines = err.splitlines()
    assert lines[0] == "rbim: refused: missing_header: there is no header CheckSum"
    assert lines[1] == "rbim: not found: POST /elsewhere\N{REPLACEMENT CHARACTER}[31m: copies are received at / only"
    assert "rbim: in quarantine: " in lines[2]
    assert lines[3].endswith(f"app_mismatch: signed by application {APP}, sent by an account of other")
    assert len(lines) == 4


def test_a_flood_of_refused_ones_is_few_lines(tmp_path):
    with serving(tmp_path / "events.db") as receiver:
        began = time.monotonic()
        for _ in range(60):
            assert receiver.post(b"{}", {})[0] == 401
        most = 10 + (time.monotonic() - began) * 10 + 1
        _, _, err = receiver.stop()
    lines = err.splitlines()
    assert 10 <= sum("rbim: refused" in line for line in lines) <= most
    left_out = sum(int(line.split()[1]) for line in lines if "left out" in line)
    assert left_out + sum("rbim: refused" in line for line in lines) == 60


def test_several_applications_and_an_old_token(tmp_path):
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps([{"app_id": APP, "app_token": OLD_TOKEN}, {"app_id": "two", "app_token": "token-of-two"}]))
    file.chmod(0o600)
    with serving(tmp_path / "events.db", "--print", RBIM_CALLBACK_CREDENTIALS_FILE=str(file)) as receiver:
        for app, token in ((APP, OLD_TOKEN), ("two", "token-of-two")):
            body = event(fromAccount=f"{app}#1", msgId=app)
            by = Credentials(app_id=app, app_token=token)
            assert receiver.post(body, sign(body, credentials=by, now=datetime.now(UTC)))[0] == 200
            assert receiver.line()["fromAccount"] == f"{app}#1"
        code, _, err = receiver.stop()
    assert (code, err) == (0, f"rbim: signed with an older token: {APP} (older token 1)\n")


def test_what_was_begun_is_completed(tmp_path):
    """A request that is half there when the signal comes is answered, kept, and nothing is lost."""
    body = event(msgId="late")
    inbox = tmp_path / "events.db"
    with serving(inbox) as receiver:
        told = sign(body, credentials=MINE, now=datetime.now(UTC))
        head = "".join(f"{name}: {value}\r\n" for name, value in {**told, "Host": "x", "Content-Length": len(body)}.items())
        with socket.create_connection((receiver.host, receiver.port), timeout=PATIENCE) as connection:
            connection.sendall(f"POST / HTTP/1.1\r\n{head}\r\n".encode() + body[:10])
            while receiver.post(b"{}")[0] != 200:
                pass  # which has come after it
            receiver.popen.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionError):
                receiver.connect_forever()
            connection.sendall(body[10:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        out, _ = receiver.popen.communicate(timeout=PATIENCE)
        assert (receiver.popen.returncode, out) == (0, "")
    with serving(inbox, "--print") as receiver:
        assert receiver.line()["msgId"] == "late"
        assert receiver.stop()[0] == 0


def test_what_is_being_handled_is_completed(tmp_path):
    """A line that nobody has read yet is written to its end after the signal, and its event is done."""
    inbox = tmp_path / "events.db"
    with serving(inbox, "--print") as receiver:
        assert receiver.post(event(body="x" * 500_000))[0] == 200
        begun = os.read(receiver.popen.stdout.fileno(), 1).decode()  # a pipe does not hold the rest
        receiver.popen.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionError):
            receiver.connect_forever()
        out, err = receiver.popen.communicate(timeout=PATIENCE)
    assert (receiver.popen.returncode, err) == (0, "")
    assert len(json.loads(begun + out)["body"]) == 500_000
    counted = counts(inbox)
    assert (counted.done, counted.waiting) == (1, 0)


def counts(inbox):
    async def counted():
        async with SqliteInbox(inbox) as opened:
            return await opened.counts()

    return anyio.run(counted)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once(tmp_path, number, code):
    """Whatever it waits for: here for who reads what it prints."""
    inbox = tmp_path / "events.db"
    with serving(inbox, "--print") as receiver:
        assert receiver.post(event(body="x" * 500_000))[0] == 200
        os.read(receiver.popen.stdout.fileno(), 1)
        receiver.popen.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionError):
            receiver.connect_forever()
        began = time.monotonic()
        receiver.popen.send_signal(number)
        assert receiver.popen.wait(PATIENCE) == code
        assert time.monotonic() - began < DRAIN
    counted = counts(inbox)
    assert (counted.done, counted.dead) == (0, 0)


def test_the_second_signal_is_told_from_the_first(monkeypatch):
    class Stoppable:
        should_exit = False

    ended, server = [], Stoppable()
    monkeypatch.setattr(os, "_exit", ended.append)
    with _signals(server):
        assert not server.should_exit
        signal.raise_signal(signal.SIGINT)
        assert (server.should_exit, ended) == (True, [])
        signal.raise_signal(signal.SIGTERM)
    assert ended == [143]


class Stuck(io.StringIO):
    """Standard output whose reader reads the URL, and nothing else until it is told to."""

    def __init__(self):
        super().__init__()
        self.read = threading.Event()
        self.writing = threading.Event()

    def write(self, text):
        if text.startswith("{"):
            self.writing.set()
            assert self.read.wait(PATIENCE)
        else:
            self.url = text.strip()
        return super().write(text)

    def flush(self):
        if not self.writing.is_set():
            self.thread = threading.Thread(target=self.act)
            self.thread.start()

    def act(self):
        assert Process(None, self.url).post(event())[0] == 200
        assert self.writing.wait(PATIENCE)
        signal.raise_signal(signal.SIGTERM)


def test_it_stops_though_nobody_reads_what_it_prints(tmp_path, cli, monkeypatch):
    assert REQUESTS + DRAIN + 2 * LAST_WORDS < 8
    inbox, stdout = tmp_path / "events.db", Stuck()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr("rbim.cli.callback_serve.DRAIN", 0.05)
    monkeypatch.setattr("rbim.cli.callback_scribe.LAST_WORDS", 0.01)
    began = time.monotonic()
    code, _, err = cli("serve", "--inbox", inbox, "--port", "0", "--print")
    assert time.monotonic() - began < 6
    assert (code, err) == (0, "")
    stdout.thread.join()
    stdout.read.set()
    counted = counts(inbox)
    assert (counted.done, counted.waiting) == (0, 1)


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
async def connecting(app=None, **tls):
    """Serve in this event loop; give a function that opens a connection."""

    async def empty(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    what = {"inbox": None, "host": "127.0.0.1", "port": 0, "path": "/", "mode": "normal", "printing": False}
    told = Serving(**(what | {"certfile": None, "keyfile": None} | tls))
    opened, listens = [], asyncio.Event()
    server = _Server(_config(told, app or empty), listens.set)
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
    assert BEGUN == 5
    monkeypatch.setattr("rbim.cli.callback_connection.BEGUN", 0.05)
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


async def test_the_idle_give_way(monkeypatch):
    monkeypatch.setattr("rbim.cli.callback_connection.most", lambda: 3)
    async with connecting() as connect:
        known, first, second = [await connect() for _ in range(3)]
        assert await known.ask() == 200
        assert [await (await connect()).ask() for _ in range(2)] == [200] * 2
        assert await first.is_closed()
        assert await second.is_closed()
        assert await known.ask() == 200
        third = await connect()  # in place of the one that asked for nothing for longest
        assert await third.ask() == 200
        assert await known.ask() == 200


async def test_where_nobody_is_idle_the_next_one_is_told(monkeypatch):
    monkeypatch.setattr("rbim.cli.callback_connection.most", lambda: 2)
    begun, goes_on = [], asyncio.Event()

    async def slow(_scope, _receive, send):
        begun.append(1)
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with connecting(slow) as connect:
        asking = [asyncio.create_task((await connect()).ask()) for _ in range(2)]
        while len(begun) < 2:
            await asyncio.sleep(0)
        assert await (await connect()).ask() == 503
        goes_on.set()
        assert [await each for each in asking] == [200, 200]


async def test_an_answer_that_is_not_there_in_time_ends_the_connection(monkeypatch):
    """Such as one that nobody reads, while more is asked for."""
    assert ANSWERED == 15
    monkeypatch.setattr("rbim.cli.callback_connection.ANSWERED", 0.05)
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
    monkeypatch.setattr("rbim.cli.callback_connection.BEGUN", 0.05)
    both = tmp_path / "both.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(both)
    async with connecting(certfile=both) as connect:
        assert await (await connect()).is_closed()


def test_as_many_as_there_are_files_for(monkeypatch):
    for files, count in ((-1, AT_ONCE), (100_000, AT_ONCE), (1024, 512), (1, 1)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert most() == count


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
        assert "CERTIFICATE_VERIFY_FAILED" in err
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
    monkeypatch.setattr("rbim.cli.callback_serve._url", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT), list(logging.getLogger("rbim").handlers)
    assert cli("serve", "--inbox", tmp_path / "events.db", "--port", "0", "--print", "--host", "0.0.0.0") == (
        0,
        "None\n",
        "",
    )
    assert (signal.getsignal(signal.SIGINT), list(logging.getLogger("rbim").handlers)) == before


def speaks_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


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
        assert refused("--port", port) == f"rbim: cannot listen on port {port} of 127.0.0.1: Address already in use\n"
    assert "cannot listen on port 0 of no such host" in refused("--port", "0", "--host", "no such host")
    assert "Must be <= 65535" in refused("--port", "70000")
    assert "it begins with a slash" in refused("--path", "copies")
    assert "there is a key, and no --certfile" in refused("--keyfile", other)
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

    monkeypatch.setattr("rbim.callbacks.inbox.SqliteInbox.__aenter__", fails)
    code, out, err = cli("serve", "--inbox", tmp_path / "events.db", "--port", "0")
    assert (code, out, err) == (Exit.USAGE, "", f"rbim: {tmp_path}/events.db: database or disk is full\n")


# -------------------------------------------------------------------------------------------------------- standard error


def record(message, *args, error=None):
    return logging.LogRecord("rbim", logging.WARNING, "", 0, message, args, (type(error), error, None) if error else None)


def test_facts_are_said_in_words(capsys):
    facts = (
        Refused(reason=Reason.STALE, detail="too old"),
        Quarantined(key="k", problem="p\nq"),
        Spooled(key="k", why="slow", kept=True),
        Spooled(key="k", why="slow", kept=False),
        HandlingFailed(key="k", attempt=2, error="E: e", pause=3.0),
        Buried(key="k", attempt=9, error="E: e"),
    )
    with Scribe(sys.stderr) as scribe:
        trickle = Trickle(scribe, lambda: 0.0)
        for fact in facts:
            trickle.handle(record("%s", fact))
        trickle.handle(record("another %s", "thing", error=ValueError("wrong")))
    assert capsys.readouterr().err.splitlines() == [
        "rbim: refused: stale: too old",
        "rbim: in quarantine: k: p q",
        "rbim: spooled: k: slow",
        "rbim: answered 503: k: slow",
        "rbim: failed: k: attempt 2: E: e; again in 3 s",
        "rbim: given up: k: attempt 9: E: e",
        "rbim: another thing: ValueError: wrong",
    ]


def test_ten_lines_a_second(capsys):
    now = [0.0]
    with Scribe(sys.stderr) as scribe:
        trickle = Trickle(scribe, lambda: now[0])
        for second in range(3):
            now[0] = second
            for _ in range(12):
                trickle.say("line")
        trickle.settle()
    lines = [line.removeprefix("rbim: ") for line in capsys.readouterr().err.splitlines()]
    told = ["line"] * 10, ["2 more lines were left out"]
    assert lines == [*told[0], *told[1], *told[0], *told[1], *told[0], *told[1]]
    with Scribe(sys.stderr) as scribe:
        trickle = Trickle(scribe, lambda: now[0])
        for _ in range(11):
            trickle.say("line")
        trickle.settle()
        trickle.settle()
        trickle.tell("said whatever the rate")
    assert capsys.readouterr().err.splitlines()[10:] == ["rbim: 1 more line was left out", "rbim: said whatever the rate"]


def test_lines_that_nobody_reads_are_counted():
    class Full:
        waiting = WAITING
        written = ()

        def write(self, text):
            self.written = (*self.written, text)

    scribe, now = Full(), itertools.count()
    trickle = Trickle(scribe, lambda: float(next(now)))
    for _ in range(3):
        trickle.say("line")
    trickle.settle()
    assert scribe.written == ()
    scribe.waiting = WAITING - 1
    trickle.say("another")
    assert scribe.written == ("rbim: 3 more lines were left out\n", "rbim: another\n")


def test_a_scribe_waits_for_nobody(monkeypatch):
    """Neither the one who has something written, nor the end."""
    monkeypatch.setattr("rbim.cli.callback_scribe.LAST_WORDS", 0.01)
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as stream:  # noqa: PTH123  # a descriptor
        with Scribe(stream) as scribe:
            first, second, third = (scribe.write("\udcff" + "x" * 500_000) for _ in range(3))
            os.read(reading, 1)  # it has begun
            assert second.cancel()
            assert not first.cancel()
            assert scribe.waiting == 2
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            first.result(PATIENCE)
        with pytest.raises(CancelledError):
            second.result(PATIENCE)
        with pytest.raises(BrokenPipeError):
            third.result(PATIENCE)
        scribe._thread.join(PATIENCE)


def test_standard_error_that_is_full(tmp_path):
    """Its reader is there and does not read: deliveries are answered all the same, and it stops when it is told to."""
    inbox = tmp_path / "events.db"
    with serving(inbox) as receiver:
        for _ in range(12):
            assert receiver.post(b"", {}, path=f"/{'e' * 15_000}")[0] == 404  # more than a pipe holds
        assert receiver.post(event())[0] == 200
        receiver.popen.send_signal(signal.SIGTERM)
        assert receiver.popen.wait(PATIENCE) == 0
    assert counts(inbox).waiting == 1


def test_nobody_reads_standard_error(tmp_path):
    with serving(tmp_path / "events.db", "--print") as receiver:
        receiver.popen.stderr.close()
        assert [receiver.post(event(), {})[0] for _ in range(3)] == [401] * 3
        assert receiver.post(event())[0] == 200
        assert receiver.line()["msgId"] == "m1"
        receiver.popen.send_signal(signal.SIGTERM)
        assert receiver.popen.wait(PATIENCE) == 0


# ------------------------------------------------------------------------------------------------------------------- send


@contextmanager
def answering(*answers):
    """A server that gives each connection one answer and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        seen = []

        def serve():
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    with connection.makefile("rb") as lines:
                        seen.append(b"".join(itertools.takewhile(bytes.strip, lines)))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/path?a=b", seen
        finally:
            thread.join()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
NO = b"HTTP/1.1 500 No\r\ncontent-length: 12\r\nconnection: close\r\n\r\nan \x1b[1merror\n"
TO = ("--to", "g1", "--sender", "1001", "--url")


def test_refused_ones_are_shown_and_the_rest_is_sent(cli):
    with answering(NO, OK) as (url, seen):
        code, out, err = cli("send", "TEAM_KICK", *TO, url, "--times", "2")
    assert (code, err) == (Exit.REFUSED, "")
    first, second = out.splitlines()
    assert re.fullmatch(r"500  \d+\.\d ms  'an \N{REPLACEMENT CHARACTER}\[1merror'", first)
    assert re.fullmatch(r"200  \d+\.\d ms", second)
    assert seen[0].startswith(b"POST /path?a=b HTTP/1.1\r\n")


def test_what_does_not_answer_ends_it(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    code, out, err = cli("send", *TO, f"http://127.0.0.1:{free}/", "--times", "3")
    assert (code, out, err.count("\n")) == (Exit.NOT_SENT, "", 1)
    with answering(b"") as (url, _):
        code, out, err = cli("send", *TO, url, "--times", "3")
    assert (code, out) == (Exit.UNKNOWN, "")
    assert err.count("\n") == 1


def test_a_files_bytes_go_out_as_they_stand(tmp_path, cli):
    body = tmp_path / "body"
    body.write_bytes(b'\xff{"a": 1}\r\n')
    with serving(tmp_path / "events.db") as receiver:
        assert cli("send", "--body", body, "--url", receiver.url)[0] == Exit.DONE
        _, _, err = receiver.stop()
    assert "in quarantine" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--sender", "1"), "--to is needed, or the --body to send"),
        (("--to", "1"), "--sender is needed, or the --body to send"),
        (("LAUGH", "--to", "1", "--sender", "2"), "'LAUGH' is none of TEXT, PICTURE"),
        (("--to", "1", "--sender", "2", "--conv-type", "CROWD"), "--conv-type"),
        (("--to", "1", "--sender", "2", "--conv-type", "CUSTOM_PERSON"), "members"),
        (("--to", "1", "--sender", "2", "--times", "0"), "Must be >= 1"),
        (("--to", "1", "--sender", "2", "--text", "\udcff"), "characters that are no text"),
        (("--to", "1", "--sender", "2", "--cacert", "/nowhere"), "--cacert: /nowhere: there is no such file"),
        (("--body", "/nowhere"), "--body: /nowhere: No such file or directory"),
        *[
            (("--to", "1", "--sender", "2", "--url", url), "an http or https URL is needed")
            for url in ("ftp://x", "x", "http://x:y")
        ],
    ],
)
def test_what_cannot_be_sent(cli, flags, said):
    code, out, err = cli("send", *flags)
    assert (code, out) == (Exit.USAGE, "")
    assert said in err
    assert err.endswith("See: rbim callback send --help\n")


# ---------------------------------------------------------------------------------------------------------------- explain

BODY = event(body="你好")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AT = ("--at", "2026-01-02T11:04:05+08:00")
SIGNED = sign(BODY, credentials=MINE, now=NOW)
HEAD = "".join(f"{name}: {value}\r\n" for name, value in SIGNED.items())
CAPTURES = {
    "http": f"POST /x HTTP/1.1\r\nHost: x\r\n{HEAD}\r\n".encode() + BODY,
    "without a request line": f"{HEAD}\r\n".encode() + BODY,
    "with LF": f"POST /x\n{HEAD}\n".replace("\r", "").encode() + BODY,
    "with a folded header": f"X-Y: a\r\n  b\r\n{HEAD}\r\n".encode() + BODY,
    "json": json.dumps({"headers": SIGNED, "body": BODY.decode()}).encode(),
    "json pairs": json.dumps({"headers": [*SIGNED.items()], "body": BODY.decode()}).encode(),
    "json lists": json.dumps({"headers": {name: [value] for name, value in SIGNED.items()}, "body": BODY.decode()}).encode(),
    "json base64": json.dumps({"headers": SIGNED, "body_base64": base64.b64encode(BODY).decode()}).encode(),
    "json of a gateway": json.dumps(
        {"headers": SIGNED, "body": base64.b64encode(BODY).decode(), "isBase64Encoded": True}
    ).encode(),
    "json with a mark": b"\xef\xbb\xbf\n" + json.dumps({"headers": SIGNED, "body": BODY.decode()}).encode(),
}


@pytest.mark.parametrize("capture", CAPTURES.values(), ids=CAPTURES)
def test_a_capture_is_read_as_it_came(tmp_path, cli, capture):
    file = tmp_path / "capture"
    file.write_bytes(capture)
    assert cli("explain", file, *AT) == (0, f"accepted: it was signed by application {APP}, and is 0 ms old\n", "")


def test_a_capture_may_come_from_a_pipe():
    done = subprocess.run(
        [*COMMAND, "explain", "-", *AT],
        input=CAPTURES["http"] + b"\n",
        env=CLEAN | KNOWN,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (Exit.REFUSED, b"")
    assert done.stdout.startswith(b"body_mismatch: MD5 is the digest of the body without the newline at its end. ")
    assert done.stdout.count(b"\n") == 1


def test_an_old_capture_is_only_old(tmp_path, cli):
    file = tmp_path / "capture"
    file.write_bytes(CAPTURES["http"])
    code, out, _ = cli("explain", file)
    first, second = out.splitlines()
    assert code == Exit.REFUSED
    assert first.startswith("stale: CurTime says 2026-01-02 03:04:05.000+00:00")
    assert second.startswith("Captured a while ago? Then this is all: with --at")
    file.write_bytes(CAPTURES["http"].replace(b"MD5", b"MD4"))
    assert "Captured a while ago" not in cli("explain", file)[1]


MANY = 1_000_000


@pytest.mark.parametrize(
    "header",
    [
        b"x" + b" " * MANY + b"y",
        b" " * MANY,
        b"x" + b"\r\n y" * (MANY // 4),
        b"x" + b"\r\n " * (MANY // 3),
        b"x\r\n " + b"\t" * MANY + b"y",
        b"x " * (MANY // 2),
    ],
    ids=["blanks", "blanks only", "folded", "folded to nothing", "folded blanks", "words"],
)
def test_a_long_capture_is_read_in_no_time(tmp_path, cli, header):
    file = tmp_path / "capture"
    file.write_bytes(b"X-Y: " + header + f"\r\n{HEAD}\r\n".encode() + BODY)
    began = time.monotonic()
    assert cli("explain", file, *AT)[0] == Exit.DONE
    assert time.monotonic() - began < 5


def test_blanks_around_a_value_are_none_of_it():
    assert capture_of(b"MD5 :\t a  b \t\r\nCurTime:\n 1\n\t 2 \n\n") == ([(b"MD5", b"a  b"), (b"CurTime", b"1 2")], b"")
    with pytest.raises(InvalidRequest, match="line 1 of the headers"):
        capture_of(b" MD5: a\n\n")


def test_headers_without_a_body():
    assert capture_of(b"MD5: a\r\nCurTime:b\r\n") == ([(b"MD5", b"a"), (b"CurTime", b"b")], b"")
    assert capture_of(b"MD5:a\r\n\r\n\r\n\n") == ([(b"MD5", b"a")], b"\r\n\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"", "there are no headers"),
        (b"POST / HTTP/1.1\r\n\r\n{}", "there are no headers"),
        (f"MD5: a\n{TOKEN}\n\n".encode(), "line 2 of the headers has no name and ':'"),
        (b"{", "not JSON at character 1"),
        (b"{}", '"headers" is needed'),
        (b'{"headers": 7}', '"headers" is needed'),
        (b'{"headers": {"MD5": 7}}', '"headers" is needed'),
        (b'{"headers": [["MD5"]]}', '"headers" is needed'),
        (b'{"headers": {}}', "the body as a text is needed"),
        (b'{"headers": {}, "body": {}}', "the body as a text is needed"),
        (b'{"headers": {}, "body_base64": "?"}', "the body as a text is needed"),
    ],
)
def test_a_capture_that_cannot_be_read(tmp_path, cli, content, said):
    file = tmp_path / "capture"
    if content is not None:
        file.write_bytes(content)
    code, out, err = cli("explain", file)
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith(f"rbim: {file}: ")
    assert said in err


@pytest.mark.parametrize("at", ["yesterday", "2026-01-02", "2026-01-02T03:04:05"])
def test_a_time_needs_its_zone(cli, at):
    code, _, err = cli("explain", "-", "--at", at)
    assert code == Exit.USAGE
    assert f"--at: a time with its zone is needed, such as 2026-01-31T09:00:00+08:00, not '{at}'" in err


# ----------------------------------------------------------------------------------------------------------------- replay


def test_only_some_are_replayed(tmp_path, cli):
    inbox = tmp_path / "events.db"
    with serving(inbox, "--print") as receiver:
        for number, kind in enumerate(("TEAM_KICK", "TEAM_JOIN", "TEAM_FUTURE")):
            body = event(convType="NOTIFY_TEAM", msgType=kind, msgId=f"m{number}", to=f"g{number}")
            assert receiver.post(body)[0] == 200
            receiver.line()
        ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        for flags, count in (
            (["--since", "9999999d"], 3),
            (["--since", ahead], 0),
            (["--since", "24h", "--dead"], 0),
            (["--kind", "team-kick"], 1),
            (["--kind", "teamjoin"], 1),
            (["--kind", "TEAM_FUTURE"], 1),
        ):
            code, out, _ = cli("replay", "--inbox", inbox, *flags)
            assert (code, int(out.split()[0]), flags) == (0, count, flags)
            for _ in range(count):
                receiver.line()
        assert receiver.stop() == (0, "", "")


def test_what_cannot_be_replayed(tmp_path, cli):
    missing, other = tmp_path / "events.db", tmp_path / "other"
    other.write_text("no database")
    assert cli("replay", "--inbox", missing) == (Exit.USAGE, "", f"rbim: {missing}: there is no such file\n")
    assert not missing.exists()
    for flags, said in (
        (("--inbox", other), str(other)),
        (("--inbox", other, "--since", "soon"), "--since: 7d, 24h, 30m or a time with its zone is needed"),
        (("--inbox", other, "--kind", "Kick"), "--kind: a msgType such as TEAM_KICK or one of At, Audio, "),
        ((), "--inbox"),
    ):
        code, out, err = cli("replay", *flags)
        assert (code, out) == (Exit.USAGE, "")
        assert said in err


def test_an_inbox_that_fails_is_said(tmp_path, cli, monkeypatch):
    async def fails(*_, **__):
        raise FULL

    inbox = tmp_path / "events.db"
    with serving(inbox) as receiver:
        receiver.stop()
    monkeypatch.setattr("rbim.callbacks.inbox.SqliteInbox.replay", fails)
    assert cli("replay", "--inbox", inbox) == (Exit.USAGE, "", f"rbim: {inbox}: database or disk is full\n")


# ------------------------------------------------------------------------------------------------------ help, credentials


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [[], ["serve"], ["send"], ["explain"], ["replay"]], ids=str)
def test_help_fits_and_tells_the_beginning(cli, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = cli(*command, "--help")
    assert code == Exit.DONE
    assert max(map(len, out.splitlines())) <= width
    if not command:
        text = " ".join(out.split())
        assert "rbim callback serve --inbox events.db --print" in text
        assert "RBIM_CALLBACK_CREDENTIALS_FILE" in text


def test_credentials_of_the_environment_come_first(tmp_path, environment):
    file = tmp_path / "credentials.json"
    environment.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", str(file))
    listed = [
        {"app_id": "two", "app_token": "t2"},
        {"app_id": APP, "app_token": OLD_TOKEN},
        {"app_id": APP, "app_token": TOKEN},
    ]
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(listed).encode())
    two, old = Credentials(app_id="two", app_token="t2"), Credentials(app_id=APP, app_token=OLD_TOKEN)
    assert callback_credentials_from_env() == (MINE, two, old)
    for name in KNOWN:
        environment.delenv(name)
    assert callback_credentials_from_env() == (two, old, MINE)
    environment.setenv("RBIM_APP_ID", APP)
    with pytest.raises(InvalidRequest, match="RBIM_APP_TOKEN is not set"):
        callback_credentials_from_env()
    environment.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", "")
    environment.setenv("RBIM_APP_TOKEN", TOKEN)
    assert callback_credentials_from_env() == (MINE,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (f"[{TOKEN}", "not JSON at character"),
        ("{}", "a list of at least one object"),
        ("[]", "a list of at least one object"),
        (json.dumps([{"app_id": APP, "app_token": TOKEN}, TOKEN]), "entry 2: an object with app_id and app_token is needed"),
        (json.dumps([{"app_token": TOKEN}]), "entry 1: an object with app_id and app_token is needed"),
        (json.dumps([{"app_id": APP, "app_token": f"{TOKEN} {TOKEN}"}]), "entry 1: app_token: ASCII text without"),
        (json.dumps([{"app_id": 7, "app_token": TOKEN}]), "entry 1: app_id: ASCII text without"),
        (json.dumps([{"app_id": APP, "app_token": [TOKEN]}]), "entry 1: app_token: ASCII text without"),
    ],
)
def test_a_credentials_file_that_is_none_shows_no_token(tmp_path, environment, content, said):
    file = tmp_path / "credentials.json"
    if content is not None:
        file.write_text(content)
    environment.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", str(file))
    with pytest.raises(InvalidRequest) as caught:
        callback_credentials_from_env()
    error = caught.value
    assert error.field == "RBIM_CALLBACK_CREDENTIALS_FILE"
    assert said in error.message
    assert error.__context__ is None
    frame = error.__traceback__
    while frame is not None:
        if "/rbim/" in frame.tb_frame.f_code.co_filename:
            assert TOKEN not in repr(frame.tb_frame.f_locals)
        frame = frame.tb_next
