"""``rbim callback serve`` as a process: what is sent to it is kept, printed and completed."""

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import trustme

from helpers.callback_process import APP, MINE, OLD_TOKEN, PATIENCE, TOKEN, Process, counts, event, serving
from rbim import Credentials
from rbim.callbacks.signature import sign
from rbim.cli import Exit
from rbim.cli.background_writer import FLUSH_TIMEOUT
from rbim.cli.callback.serve import DRAIN_TIMEOUT, SHUTDOWN_TIMEOUT
from rbim.cli.callback.signals import stopped_by_signals
from rbim.emulator import Emulator
from rbim.transports.httpx import HttpxTransport

# ------------------------------------------------------------------------------------------------------------------ serve


async def test_copies_arrive_over_https(tmp_path):
    authority = trustme.CA()
    certificate, key, bundle = (tmp_path / name for name in ("here.pem", "here.key", "ca.pem"))
    here = authority.issue_cert("127.0.0.1")
    here.cert_chain_pems[0].write_to_path(str(certificate))
    here.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(bundle))
    with serving(tmp_path / "events.db", "--print", "--certfile", certificate, "--keyfile", key) as receiver:
        assert re.fullmatch(r"https://127\.0\.0\.1:\d+/", receiver.url)
        emulator = Emulator(credentials=MINE)
        for trusted in (str(bundle), True):  # the second does not know the authority
            emulator.copy_to(receiver.url, transport=partial(HttpxTransport, verify=trusted, trust_env=False))
            emulator.say("1001", "1002", "你好")
            await emulator.deliver()
        assert receiver.line()["body"] == "你好"
    assert [each.status for each in emulator.deliveries] == [200, None]


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
    assert cli("replay", "--inbox", inbox, "--yes") == (0, "4 events will be handled again\n", "")
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
    assert err == f"rbim: events wait in {inbox} for another process; --print handles them here\n"
    with serving(inbox, "--print") as receiver:
        line = receiver.popen.stdout.readline()
        assert line.rstrip("\n").isprintable()
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
    assert lines[0] == "rbim: refused: missing_header: the header CheckSum is missing"
    assert lines[1] == "rbim: not found: POST /elsewhere\N{REPLACEMENT CHARACTER}[31m: the receiver is at /"
    assert "rbim: in quarantine: " in lines[2]
    assert lines[3].endswith(f"app_mismatch: signed by application {APP}, sent by an account of other")
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({}, 200),
        ({"RBIM_NORMAL_OUT_OF_TIME": "refused"}, 401),
        ({"flags": ("--normal-out-of-time", "refused")}, 401),
        ({"flags": ("--normal-out-of-time", "refused", "--delivery-max-age", "none")}, 200),
        ({"toml": 'normal_out_of_time = "refused"'}, 401),
        ({"toml": 'normal_out_of_time = "refused"\ndelivery_max_age = 5000.5'}, 200),
    ],
)
def test_the_dialect_chooses_which_deliveries_it_accepts(tmp_path, how, status):
    flags = how.pop("flags", ())
    if "toml" in how:
        (tmp_path / "rbim.toml").write_text(f"[dialect]\n{how.pop('toml')}\n", encoding="utf-8")
        flags = ("--config", str(tmp_path / "rbim.toml"))
    body = event(msgId="m1")
    with serving(tmp_path / "events.db", *flags, **how) as receiver:
        an_hour_old = sign(body, credentials=MINE, now=datetime.now(UTC) - timedelta(hours=1))
        assert receiver.post(body, an_hour_old)[0] == status


def test_a_test_delivery_has_the_time_unit_of_the_dialect(tmp_path, cli):
    with serving(tmp_path / "events.db", "--print", "--message-time-unit", "seconds") as receiver:
        for flags, digits in (((), 13), (("--message-time-unit", "seconds"), 10)):
            code, _, err = cli("send", "--to", "1", "--sender", "2", "--url", receiver.url, *flags)
            assert (code, err) == (Exit.DONE, "")
            assert len(receiver.line()["msgTimestamp"]) == digits


def test_a_flood_of_refused_ones_is_few_lines(tmp_path):
    with serving(tmp_path / "events.db") as receiver:
        began = time.monotonic()
        for _ in range(60):
            assert receiver.post(b"{}", {})[0] == 401
        most = 10 + (time.monotonic() - began) * 10 + 1
        _, _, err = receiver.stop()
    lines = err.splitlines()
    assert 10 <= sum("rbim: refused" in line for line in lines) <= most
    omitted = sum(int(line.split()[1]) for line in lines if "omitted" in line)
    assert omitted + sum("rbim: refused" in line for line in lines) == 60


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


def test_the_second_signal_is_told_from_the_first(monkeypatch):
    ended, stopped = [], []
    monkeypatch.setattr(os, "_exit", ended.append)
    with stopped_by_signals(lambda: stopped.append("once")):
        assert not stopped
        signal.raise_signal(signal.SIGINT)
        assert (stopped, ended) == (["once"], [])
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
    assert SHUTDOWN_TIMEOUT + DRAIN_TIMEOUT + 2 * FLUSH_TIMEOUT < 8
    inbox, stdout = tmp_path / "events.db", Stuck()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr("rbim.cli.callback.serve.DRAIN_TIMEOUT", 0.05)
    monkeypatch.setattr("rbim.cli.background_writer.FLUSH_TIMEOUT", 0.01)
    began = time.monotonic()
    code, _, err = cli("serve", "--inbox", inbox, "--port", "0", "--print")
    assert time.monotonic() - began < 6
    assert (code, err) == (0, "")
    stdout.thread.join()
    stdout.read.set()
    counted = counts(inbox)
    assert (counted.done, counted.waiting) == (0, 1)
