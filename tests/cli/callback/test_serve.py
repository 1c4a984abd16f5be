"""``rbim callback serve``: what is sent to it is kept, printed and completed, in this process and at last in others."""

import io
import json
import os
import re
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import pytest
import trustme

from helpers.callback_process import APP, MINE, OLD_TOKEN, PATIENCE, Process, besides_deliveries, counts, event, serving
from rbim import Credentials
from rbim.callbacks import SqliteInbox
from rbim.callbacks.signature import sign
from rbim.cli import Exit
from rbim.cli.callback.serve import DRAIN_TIMEOUT
from rbim.cli.callback.signals import stopped_by_signals, stopping_signals
from rbim.emulator import Emulator
from rbim.transports.httpx import HttpxTransport


def test_copies_arrive_over_https(tmp_path, serve):
    authority = trustme.CA()
    certificate, key, bundle = (tmp_path / name for name in ("here.pem", "here.key", "ca.pem"))
    here = authority.issue_cert("127.0.0.1")
    here.cert_chain_pems[0].write_to_path(str(certificate))
    here.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(bundle))
    emulator = Emulator(credentials=MINE)

    async def send(receiver):
        for trusted in (str(bundle), True):  # the second does not know the authority
            emulator.copy_to(receiver.url, transport=partial(HttpxTransport, verify=trusted, trust_env=False))
            emulator.say("1001", "1002", "你好")
            await emulator.deliver()

    def act(receiver):
        assert re.fullmatch(r"https://127\.0\.0\.1:\d+/", receiver.url)
        anyio.run(send, receiver)
        assert receiver.line()["body"] == "你好"

    serve(act, "--inbox", tmp_path / "events.db", "--print", "--certfile", certificate, "--keyfile", key)
    assert [each.status for each in emulator.deliveries] == [200, None]


def test_it_is_kept_printed_and_replayed(tmp_path, serve, cli):
    def first(receiver):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/copies", receiver.url)
        assert receiver.post(event(body="\x7f\u2028"), path="/copies")[0] == 200

    inbox = tmp_path / "events.db"
    err = serve(first, "--inbox", inbox, "--path", "/copies")
    waits, accepted = err.splitlines()
    assert waits == f"rbim: events wait in {inbox} for another process; --print handles them here"
    assert re.fullmatch(r"rbim: accepted: [0-9a-f]{32}: \d+\.\d ms", accepted)

    def second(receiver):
        told = receiver.text()
        assert told.rstrip("\n").isprintable()
        document = json.loads(told)
        assert (document["body"], document["attempt"]) == ("\x7f\u2028", 1)
        assert datetime.fromisoformat(document["received"]).utcoffset() == timedelta()

    assert serve(second, "--inbox", inbox, "--print") == ""
    assert cli("replay", "--inbox", inbox, "--yes") == (0, "1 event will be handled again\n", "")
    assert serve(second, "--inbox", inbox, "--print") == ""
    assert counts(inbox).done == 1


def test_what_is_refused_is_one_line_each(tmp_path, serve):
    def act(receiver):
        assert receiver.post(event(), {})[0] == 401
        assert receiver.post(event(), path="/elsewhere\x1b[31m".replace("\x1b", "%1b"))[0] == 404
        status, headers = receiver.post(b"", {}, method="GET")
        assert (status, "server" in {name.lower() for name in headers}) == (405, False)
        assert receiver.post(b"no json")[0] == 200
        assert receiver.post(event(fromAccount="other#1"))[0] == 200

    err = besides_deliveries(serve(act, "--inbox", tmp_path / "events.db", "--print"))
    first, second, third, fourth = err.splitlines()
    assert first == "rbim: refused: missing_header: the header CheckSum is missing"
    assert second == "rbim: not found: POST /elsewhere\N{REPLACEMENT CHARACTER}[31m: the receiver is at /"
    assert "rbim: in quarantine: " in third
    assert fourth.endswith(f"app_mismatch: signed by application {APP}, sent by an account of other")


def test_the_dialect_chooses_which_deliveries_it_accepts(tmp_path, serve, environment):
    body, statuses = event(msgId="m1"), []

    def act(receiver):
        an_hour_old = sign(body, credentials=MINE, now=datetime.now(UTC) - timedelta(hours=1))
        statuses.append(receiver.post(body, an_hour_old)[0])

    file = tmp_path / "rbim.toml"
    file.write_text('[dialect]\nnormal_out_of_time = "refused"\ndelivery_max_age = 5000.5\n', encoding="utf-8")
    inbox = ("--inbox", tmp_path / "events.db")
    refused = ("--dialect", "normal_out_of_time=refused")
    for flags in ((), refused, (*refused, "--dialect", "delivery_max_age=none"), ("--config", str(file))):
        serve(act, *inbox, *flags)
    environment.setenv("RBIM_DIALECT", "normal_out_of_time=refused")
    serve(act, *inbox)
    assert statuses == [200, 401, 200, 200, 401]


def test_several_applications_and_an_old_token(tmp_path, serve, environment):
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps([{"app_id": APP, "app_token": OLD_TOKEN}, {"app_id": "two", "app_token": "token-of-two"}]))
    file.chmod(0o600)
    environment.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", str(file))

    def act(receiver):
        for app, token in ((APP, OLD_TOKEN), ("two", "token-of-two")):
            body = event(fromAccount=f"{app}#1", msgId=app)
            by = Credentials(app_id=app, app_token=token)
            assert receiver.post(body, sign(body, credentials=by, now=datetime.now(UTC)))[0] == 200
            assert receiver.line()["fromAccount"] == f"{app}#1"

    err = serve(act, "--inbox", tmp_path / "events.db", "--print")
    assert besides_deliveries(err) == f"rbim: signed with an older token: {APP} (older token 1)\n"


def test_chinese_is_printed_as_chinese_where_it_can_be(tmp_path, serve):
    for encoding in ("utf-8", "gb18030", "ascii"):

        def act(receiver, encoding=encoding):
            assert receiver.post(event(body="你好 \N{PARTY POPPER}"))[0] == 200
            line = receiver.text()
            assert json.loads(line)["body"] == "你好 \N{PARTY POPPER}"
            assert ("你好 \N{PARTY POPPER}" in line) if encoding == "utf-8" else line.isascii()

        serve(act, "--inbox", tmp_path / f"{encoding}.db", "--print", encoding=encoding)


def test_the_second_signal_is_told_from_the_first(monkeypatch):
    ended, stopped = [], []
    monkeypatch.setattr(os, "_exit", ended.append)
    with stopped_by_signals(lambda: stopped.append("once")):
        assert not stopped
        signal.raise_signal(signal.SIGINT)
        assert (stopped, ended) == (["once"], [])
        signal.raise_signal(signal.SIGTERM)
    assert ended == [143]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no terminals")
def test_a_closed_terminal_stops_it_like_ctrl_c_but_for_nohup(monkeypatch):
    ended, stopped = [], []
    monkeypatch.setattr(os, "_exit", ended.append)
    with stopped_by_signals(lambda: stopped.append("once"), stopping_signals()):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # of the shell, and of the system
    assert (stopped, ended) == (["once"], [])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stopping_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


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
    inbox, stdout = tmp_path / "events.db", Stuck()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr("rbim.cli.callback.serve.DRAIN_TIMEOUT", 0.05)
    monkeypatch.setattr("rbim.cli.background_writer.FLUSH_TIMEOUT", 0.01)
    code, _, err = cli("serve", "--inbox", inbox, "--port", "0", "--print")
    assert (code, besides_deliveries(err), "{" in stdout.getvalue()) == (0, "", False)
    stdout.thread.join()
    stdout.read.set()
    counted = counts(inbox)
    assert (counted.done, counted.waiting) == (0, 1)


class NoLeader(SqliteInbox):
    """An inbox on servers that run and cannot store yet."""

    ready = False

    async def __aenter__(self):
        raise LookupError("no leader")


def test_an_inbox_that_cannot_store_yet_is_away_and_not_a_bug(tmp_path, serve, monkeypatch):
    monkeypatch.setattr("rbim.cli.callback.serve.inbox_of", NoLeader)

    def act(receiver):
        assert receiver.post(event(), path="/")[0] == 200

    err = serve(act, "--inbox", tmp_path / "events.db", "--spool", tmp_path / "overflow")
    assert "the sink ended with an error: deliveries go into the overflow file" in err
    assert "LookupError: no leader" in err
    with closing(sqlite3.connect(tmp_path / "overflow")) as file:
        assert file.execute("SELECT count(*) FROM delivery").fetchall() == [(1,)]


# As a process.


@pytest.mark.ci
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
    assert (receiver.popen.returncode, besides_deliveries(err)) == (0, "")
    assert len(json.loads(begun + out)["body"]) == 500_000
    counted = counts(inbox)
    assert (counted.done, counted.waiting) == (1, 0)


@pytest.mark.ci
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
        assert time.monotonic() - began < DRAIN_TIMEOUT
    counted = counts(inbox)
    assert (counted.done, counted.dead) == (0, 0)


@pytest.mark.ci
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
