"""``rbim callback`` as processes: a receiver that is served, what is sent to it, captures that are explained, replays."""

import base64
import io
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone

import anyio
import pytest

from helpers.callback_process import (
    APP,
    CLEAN,
    COMMAND,
    FULL,
    KNOWN,
    MINE,
    OLD_TOKEN,
    PATIENCE,
    TOKEN,
    counts,
    event,
    serving,
)
from rbim import Credentials, InvalidRequest
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.signature import sign
from rbim.cli import Exit
from rbim.cli.callback.capture import capture_of
from rbim.credentials import callback_credentials_from_env
from rbim.emulator.clock import EmulatedClock

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


def test_copies_of_one_message_are_the_same_at_any_time(cli, monkeypatch):
    """A receiver keeps other content under one msgId apart, also another time of the message."""
    minutes = itertools.count()

    class Ticking(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(minutes=next(minutes))

    bodies = []
    monkeypatch.setattr("rbim.cli.callback.send.datetime", Ticking)
    monkeypatch.setattr("rbim.cli.callback.send.sign", lambda body, **_: bodies.append(body) or {"Authorization": "none"})
    with answering(OK, OK, OK) as (url, _):
        assert cli("send", "text", *TO, url, "--msg-id", "m7", "--times", "3")[0] == Exit.DONE
    assert len(bodies) == 3
    assert len(set(bodies)) == 1


@pytest.mark.parametrize("unit", ["milliseconds", "seconds"])
def test_a_message_that_is_sent_again_is_a_resend(tmp_path, cli, unit):
    """With the id alone, a later run sends another message: it has another time."""
    inbox = tmp_path / "events.db"
    send = (
        "--message-time-unit",
        unit,
        "send",
        "--to",
        "g1",
        "--sender",
        "1001",
        "--text",
        "你好",
        "--msg-id",
        "m7",
        "--url",
    )
    with serving(inbox) as receiver:
        code, _, err = cli(*send, receiver.url)
        assert code == Exit.DONE
        again = re.fullmatch(r"rbim: to send this message again: --msg-id m7 --timestamp (\S+)\n", err)[1]
        for flags in ([], ["--resend"]):
            code, _, err = cli(*send, receiver.url, "--timestamp", again, *flags)
            assert (code, err) == (Exit.DONE, "")
        found = counts(inbox)
        assert (found.waiting, found.quarantined) == (1, 0)
        later = (datetime.fromisoformat(again) + timedelta(seconds=2)).astimezone(timezone(timedelta(hours=8))).isoformat()
        assert cli(*send, receiver.url, "--timestamp", later)[0] == Exit.DONE
        assert counts(inbox).quarantined == 1
        receiver.stop()


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
        (
            ("--to", "g8", "--sender", "1", "--member", "1001,1002"),
            "--member: '1001,1002' contains ',': separate values with spaces: 1001 1002",
        ),
        (("--sender", "1"), "--to is required, unless --body names a file to send"),
        (("--to", "1"), "--sender is required, unless --body names a file to send"),
        (("LAUGH", "--to", "1", "--sender", "2"), "'LAUGH' is not one of TEXT, PICTURE"),
        (("--to", "1", "--sender", "2", "--conv-type", "CROWD"), "--conv-type"),
        (("--to", "1", "--sender", "2", "--conv-type", "CUSTOM_PERSON"), "members"),
        (("--to", "1", "--sender", "2", "--times", "0"), "Must be >= 1"),
        (("--to", "1", "--sender", "2", "--text", "\udcff"), "characters that cannot be encoded in UTF-8"),
        (("--to", "1", "--sender", "2", "--cacert", "/nowhere"), "--cacert: /nowhere: no such file"),
        (("--to", "1", "--sender", "2", "--timestamp", "2026-01-31"), "--timestamp: invalid time '2026-01-31': use a time"),
        (("--body", "/nowhere"), "--body: /nowhere: No such file or directory"),
        *[
            (("--to", "1", "--sender", "2", "--url", url), f"--url: invalid URL {url!r}: use an http or https URL")
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
    assert cli("explain", file, *AT) == (0, f"accepted: application {APP} signed it 0.000 s ago\n", "")


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
    assert done.stdout.startswith(
        b"body_mismatch: the body was changed after it was signed: white space around it was added. "
    )
    assert done.stdout.count(b"\n") == 1


def test_an_old_capture_is_only_old(tmp_path, cli):
    file = tmp_path / "capture"
    file.write_bytes(CAPTURES["http"])
    code, out, _ = cli("explain", file)
    first, second = out.splitlines()
    assert code == Exit.REFUSED
    assert first.startswith("stale: CurTime is 2026-01-02 03:04:05+00:00: it is ")
    assert second.startswith("If it was captured a while ago, this is the only problem: ")
    accepted = f"accepted: application {APP} signed it "
    code, out, _ = cli("explain", file, "--delivery-max-age", "none")
    assert (code, out.startswith(accepted)) == (Exit.DONE, True)
    late = ("--at", "2026-01-02T11:04:08+08:00")
    assert cli("explain", file, *late)[0] == Exit.DONE
    assert cli("explain", file, *late, "--delivery-max-age", "2.5")[0] == Exit.REFUSED
    file.write_bytes(CAPTURES["http"].replace(b"MD5", b"MD4"))
    assert "captured a while ago" not in cli("explain", file)[1]


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
        (b"{}", '"headers" must be an object or a list of pairs'),
        (b'{"headers": 7}', '"headers" must be an object or a list of pairs'),
        (b'{"headers": {"MD5": 7}}', '"headers" must be an object or a list of pairs'),
        (b'{"headers": [["MD5"]]}', '"headers" must be an object or a list of pairs'),
        (b'{"headers": {}}', "the body must be a text"),
        (b'{"headers": {}, "body": {}}', "the body must be a text"),
        (b'{"headers": {}, "body_base64": "?"}', "the body must be a text"),
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
    assert f"--at: invalid time '{at}': use a time with its zone, such as 2026-01-31T09:00:00+08:00" in err


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


@pytest.fixture
def inbox(tmp_path):
    """An inbox with one event that is a dead letter, two that wait, and one in quarantine."""

    async def fill():
        clock = EmulatedClock(start=datetime.now(UTC) - timedelta(hours=1))
        async with SqliteInbox(tmp_path / "events.db", clock=clock) as opened:
            for number in range(3):
                body = event(msgId=f"m{number}", to=f"g{number}")
                await opened.accept(delivery_of(body, app_id=APP, received=clock.now()))
            await opened.accept(delivery_of(b"no JSON", app_id=APP, received=clock.now()))
            async with opened.backlog() as backlog:
                (claim,) = await backlog.claim(1)
                await backlog.dead_letter(claim, error="E", more=False)

    anyio.run(fill)
    return tmp_path / "events.db"


def test_the_status_of_an_inbox(inbox, cli, tmp_path):
    code, out, _ = cli("status", inbox)
    assert code == Exit.DONE
    assert re.fullmatch(
        r"waiting        2 \(the oldest for 1:00:\d\d\)\nhandled        0\ndead letters   1 \(TEXT 1\)\nin quarantine  1\n",
        out,
    )
    told = json.loads(cli("status", inbox, "--json")[1])
    assert 3600 <= told.pop("lag") < 3700
    assert told == {"waiting": 2, "done": 0, "dead": 1, "quarantined": 1, "dead_kinds": {"TEXT": 1}}
    (tmp_path / "other").write_text("no database")
    for other in (tmp_path / "missing", tmp_path / "other"):
        code, out, err = cli("status", other)
        assert (code, out, str(other) in err) == (Exit.USAGE, "", True)
    assert not (tmp_path / "missing").exists()


def test_a_replay_of_everything_is_confirmed(inbox, cli, monkeypatch):
    code, out, err = cli("replay", "--inbox", inbox)
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith(
        f"rbim: nothing was replayed: this would have all 1 event of {inbox} handled again, and there is no"
    )
    assert f"rbim callback replay --inbox {inbox} --yes" in err
    monkeypatch.setattr("rbim.cli.confirm.at_terminal", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("no\nyes\n"))
    code, out, err = cli("replay", "--inbox", inbox)
    assert (code, out) == (Exit.USAGE, "")
    assert err == (
        f"This will have all 1 event of {inbox} handled again. Continue? [y/N] rbim: not confirmed: nothing was replayed\n"
    )
    assert cli("replay", "--inbox", inbox)[:2] == (Exit.DONE, "1 event will be handled again\n")
    assert cli("replay", "--inbox", inbox)[:2] == (Exit.DONE, "0 events will be handled again\n")  # nothing to ask for


def test_a_part_is_replayed_unasked(inbox, cli):
    assert cli("replay", "--inbox", inbox, "--dead")[:2] == (Exit.DONE, "1 event will be handled again\n")


def test_what_cannot_be_replayed(tmp_path, cli):
    missing, other = tmp_path / "events.db", tmp_path / "other"
    other.write_text("no database")
    assert cli("replay", "--inbox", missing) == (
        Exit.USAGE,
        "",
        f"rbim: {missing}: no such file; give the inbox of rbim callback serve\n",
    )
    assert not missing.exists()
    for flags, said in (
        (("--inbox", other), str(other)),
        (("--inbox", other, "--since", "soon"), "--since: invalid time 'soon': use 7d, 24h, 30m or a time with its zone"),
        (
            ("--inbox", other, "--kind", "Kick"),
            "--kind: unknown kind 'Kick': use a msgType such as TEAM_KICK or one of At, Audio, ",
        ),
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
    monkeypatch.setattr("rbim.callbacks.inbox.sqlite.SqliteInbox.replay", fails)
    assert cli("replay", "--inbox", inbox, "--yes") == (Exit.USAGE, "", f"rbim: {inbox}: database or disk is full\n")


# ------------------------------------------------------------------------------------------------------ help, credentials


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [[], ["serve"], ["send"], ["explain"], ["replay"], ["status"]], ids=str)
def test_help_fits_and_tells_the_beginning(cli, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = cli(*command, "--help")
    assert code == Exit.DONE
    assert max(map(len, out.splitlines())) <= width
    if not command:
        text = " ".join(out.split())
        assert "rbim callback serve --inbox events.db --print" in text
        assert "RBIM_CALLBACK_CREDENTIALS_FILE" in text


@pytest.mark.parametrize("missing", KNOWN)
@pytest.mark.parametrize(
    "command",
    [["serve", "--inbox", "events.db"], ["explain", "capture"], ["send", "TEXT", "--to", "g1", "--sender", "1001"]],
    ids=lambda command: command[0],
)
def test_the_advice_names_no_more_variables_than_the_other_tests_set(cli, environment, tmp_path, command, missing):
    environment.chdir(tmp_path)
    environment.delenv(missing)
    code, out, err = cli(*command)
    assert (code, out) == (Exit.USAGE, "")
    problem, advice = err.splitlines()
    assert problem == f"rbim: the environment variable {missing} is not set"
    assert {*re.findall(r"RBIM_\w+", advice)} == {*KNOWN, "RBIM_APP_TOKEN_FILE"}


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
