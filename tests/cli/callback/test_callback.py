"""``rbim callback send``, ``explain``, ``replay`` and ``status``, and the credentials of all of them."""

import base64
import io
import json
import re
import sys
from datetime import UTC, datetime, timedelta, timezone

import anyio
import pytest

from helpers.callback_process import APP, MINE, TOKEN, event
from helpers.shown import shown
from helpers.sockets import free_port
from rbim import InvalidRequest
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.signature import sign
from rbim.cli import Exit
from rbim.config import callback_credentials_from_env
from rbim.emulator.clock import EmulatedClock
from rbim.testing.conformance.server import RawServer, closing, reply

# ------------------------------------------------------------------------------------------------------------------- send


TO = ("--to", "g1", "--sender", "1001", "--url")


def test_refused_ones_are_shown_and_the_rest_is_sent(cli):
    with RawServer(reply(b"an \x1b[1merror\n", "500 No"), reply()) as server:
        code, out, err = cli("send", "--type", "TEAM_KICK", *TO, f"{server.url()}/path?a=b", "--times", "2")
    assert (code, err) == (Exit.REFUSED, "")
    first, second = out.splitlines()
    assert re.fullmatch(r"500  \d+\.\d ms  'an \N{REPLACEMENT CHARACTER}\[1merror'", first)
    assert re.fullmatch(r"200  \d+\.\d ms", second)
    assert server.requests[0].line == "POST /path?a=b HTTP/1.1"


def test_what_does_not_answer_ends_it(cli):
    for url, expected in ((f"http://127.0.0.1:{free_port()}/", Exit.NOT_SENT), (None, Exit.UNKNOWN)):
        with RawServer(closing(b"")) as server:
            code, out, err = cli("send", *TO, url or server.url(), "--times", "3")
        assert (code, out, err.count("\n")) == (expected, "", 2 if url else 1)


def test_a_message_that_is_sent_again_is_a_resend(cli):
    """With the id alone, a later run sends another message: it has another time."""
    words = ("send", "你好", "--to", "g1", "--sender", "1001", "--msg-id", "m7", "--url")
    for unit in ("milliseconds", "seconds"):
        with RawServer(reply()) as receiver:
            send = ("--dialect", f"message_time_unit={unit}", *words, receiver.url())
            code, _, err = cli(*send, "--times", "2")
            assert code == Exit.DONE
            again = re.fullmatch(r"rbim: to send this message again: --msg-id m7 --timestamp (\S+)\n", err)[1]
            later = (datetime.fromisoformat(again) + timedelta(seconds=2)).astimezone(timezone(timedelta(hours=8)))
            for flags in (["--timestamp", again], ["--timestamp", again, "--resend"], ["--timestamp", later.isoformat()]):
                assert cli(*send, *flags)[::2] == (Exit.DONE, "")
            first, second, third, resent, another = (request.body for request in receiver.requests)
        assert first == second == third  # copies of one message are the same at any time
        assert json.loads(resent) == json.loads(first) | {"resendFlag": "1"}
        assert json.loads(another)["msgTimestamp"] != json.loads(first)["msgTimestamp"]


def test_one_word_is_enough(cli):
    with RawServer(reply()) as receiver:
        assert cli("send", "hello", "--url", receiver.url())[0] == Exit.DONE
        document = json.loads(receiver.requests[0].body)
    assert (document["body"], document["msgType"], document["to"]) == ("hello", "TEXT", "1002")


def test_a_files_bytes_go_out_as_they_stand(tmp_path, cli):
    body = tmp_path / "body"
    body.write_bytes(b'\xff{"a": 1}\r\n')
    with RawServer(reply()) as receiver:
        assert cli("send", "--body", body, "--url", receiver.url())[0] == Exit.DONE
        assert [request.body for request in receiver.requests] == [body.read_bytes()]


def test_what_cannot_be_sent(cli):
    wrong = []
    known = ("--to", "1", "--sender", "2")
    url = "--url: invalid URL {!r}: use an http or https URL"
    for flags, said in [
        (
            ("--to", "g8", "--sender", "1", "--member", "1001,1002"),
            "--member: '1001,1002' contains ',': separate values with spaces: 1001 1002",
        ),
        (("--type", "LAUGH", *known), "'LAUGH' is not one of TEXT, PICTURE"),
        ((*known, "--conv-type", "CROWD"), "--conv-type"),
        ((*known, "--conv-type", "CUSTOM_PERSON"), "members"),
        ((*known, "--times", "0"), "Must be >= 1"),
        ((*known, "\udcff"), "characters that cannot be encoded in UTF-8"),
        ((*known, "--cacert", "/nowhere"), "--cacert: /nowhere: no such file"),
        ((*known, "--timestamp", "2026-01-31"), "--timestamp: invalid time '2026-01-31': use a time"),
        (("--body", "/nowhere"), "--body: /nowhere: No such file or directory"),
        *[((*known, "--url", text), url.format(text)) for text in ("ftp://x", "x", "http://x:y")],
    ]:
        code, out, err = cli("send", *flags)
        if (code, out) != (Exit.USAGE, "") or said not in err or not err.endswith("See: rbim callback send --help\n"):
            wrong.append((flags, code, out, err))
    assert wrong == []


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


def test_a_capture_is_read_as_it_came(tmp_path, cli):
    file = tmp_path / "capture"
    told = {}
    for name, capture in CAPTURES.items():
        file.write_bytes(capture)
        told[name] = cli("explain", file, *AT)
    assert told == dict.fromkeys(CAPTURES, (0, f"accepted: application {APP} signed it 0.000 s ago\n", ""))


def test_a_capture_may_come_from_a_pipe(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CAPTURES["http"] + b"\n")))
    code, out, err = cli("explain", "-", *AT)
    assert (code, err, out.count("\n")) == (Exit.REFUSED, "", 1)
    assert out.startswith("body_mismatch: the body was changed after it was signed: white space around it was added. ")


def test_an_old_capture_is_only_old(tmp_path, cli):
    file = tmp_path / "capture"
    file.write_bytes(CAPTURES["http"])
    code, out, _ = cli("explain", file)
    first, second = out.splitlines()
    assert code == Exit.REFUSED
    assert first.startswith("stale: CurTime is 2026-01-02 03:04:05+00:00: it is ")
    assert second.startswith("If it was captured a while ago, this is the only problem: ")
    accepted = f"accepted: application {APP} signed it "
    code, out, _ = cli("explain", file, "--dialect", "delivery_max_age=none")
    assert (code, out.startswith(accepted)) == (Exit.DONE, True)
    late = ("--at", "2026-01-02T11:04:08+08:00")
    assert cli("explain", file, *late)[0] == Exit.DONE
    assert cli("explain", file, *late, "--dialect", "delivery_max_age=2.5")[0] == Exit.REFUSED
    file.write_bytes(CAPTURES["http"].replace(b"MD5", b"MD4"))
    assert "captured a while ago" not in cli("explain", file)[1]


def test_a_capture_that_cannot_be_read(tmp_path, cli):
    file, wrong = tmp_path / "capture", []
    pairs, text = '"headers" must be an object or a list of pairs', "the body must be a text"
    for content, said in [
        (None, "No such file or directory"),
        (b"", "there are no headers"),
        (b"POST / HTTP/1.1\r\n\r\n{}", "there are no headers"),
        (f"MD5: a\n{TOKEN}\n\n".encode(), "line 2 of the headers has no name and ':'"),
        (b"{", "not JSON at character 1"),
        *[(content, pairs) for content in (b"{}", b'{"headers": 7}', b'{"headers": {"MD5": 7}}', b'{"headers": [["MD5"]]}')],
        (b'{"headers": {}}', text),
        (b'{"headers": {}, "body": {}}', text),
        (b'{"headers": {}, "body_base64": "?"}', text),
    ]:
        if content is not None:
            file.write_bytes(content)
        code, out, err = cli("explain", file)
        if (code, out) != (Exit.USAGE, "") or not err.startswith(f"rbim: {file}: ") or said not in err:
            wrong.append((content, code, out, err))
    for at in ("yesterday", "2026-01-02", "2026-01-02T03:04:05"):
        code, out, err = cli("explain", "-", "--at", at)
        said = f"--at: invalid time '{at}': use a time with its zone, such as 2026-01-31T09:00:00+08:00"
        if code != Exit.USAGE or said not in err:
            wrong.append((at, code, out, err))
    assert wrong == []


# ----------------------------------------------------------------------------------------------------------------- replay


@pytest.fixture
def inbox(tmp_path):
    """An inbox with one event that is a dead letter, two that wait, and one in quarantine."""

    async def fill():
        clock = EmulatedClock(start=datetime.now(UTC) - timedelta(hours=1))
        async with SqliteInbox(tmp_path / "of the day.db", clock=clock) as opened:
            for number in range(3):
                body = event(msgId=f"m{number}", to=f"g{number}")
                await opened.accept(delivery_of(body, app_id=APP, received=clock.now()))
            await opened.accept(delivery_of(b"no JSON", app_id=APP, received=clock.now()))
            async with opened.backlog() as backlog:
                (claim,) = await backlog.claim(1)
                await backlog.dead_letter(claim, error="E", more=False)

    anyio.run(fill)
    return tmp_path / "of the day.db"


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


def test_a_finding_and_a_replay_as_json(inbox, tmp_path, cli):
    (tmp_path / "capture").write_bytes(CAPTURES["http"])
    code, out, _ = cli("explain", tmp_path / "capture", "--json")
    assert (code, json.loads(out)["reason"]) == (Exit.REFUSED, "stale")
    assert json.loads(cli("replay", "--inbox", inbox, "--yes", "--json")[1]) == {"events": 1}


def test_a_replay_is_confirmed_and_the_question_says_how_many_of_which_kind(inbox, cli, monkeypatch):
    assert cli("replay", "--inbox", inbox, "--since", "30m") == (Exit.DONE, "0 events will be handled again\n", "")
    code, out, err = cli("replay", "--inbox", inbox, "--since", "2h", "--kind", "TEXT")
    assert (code, out) == (Exit.USAGE, "")
    question = f"have 1 event of {inbox} (TEXT 1) handled again"
    assert err.startswith(f"rbim: nothing was replayed: this would {question}, and there is no terminal")
    assert f"To skip the confirmation: rbim callback replay --inbox '{inbox}' --since 2h --kind TEXT --yes\n" in err
    err = cli("replay", "--inbox", inbox, "--since", "2020-01-31 09:00:00+08:00", "--kind", "TEXT")[2]
    assert f"rbim callback replay --inbox '{inbox}' --since '2020-01-31 09:00:00+08:00' --kind TEXT --yes\n" in err
    monkeypatch.setattr("rbim.cli.confirm.at_terminal", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("no\nyes\n"))
    code, out, err = cli("replay", "--inbox", inbox)
    assert (code, out) == (Exit.USAGE, "")
    assert err == f"This will {question}. Continue? [y/N] rbim: not confirmed: nothing was replayed\n"
    assert cli("replay", "--inbox", inbox)[:2] == (Exit.DONE, "1 event will be handled again\n")


# ------------------------------------------------------------------------------------------------------ credentials


def test_a_credentials_file_that_is_none_shows_no_token(tmp_path, environment):
    file = tmp_path / "credentials.json"
    environment.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", str(file))
    mine = {"app_id": APP, "app_token": TOKEN}
    needed = "an object with app_id and app_token is needed"
    listed = 'a list such as [{"app_id": "...", "app_token": "..."}] is needed'
    for content, said in [
        (None, "No such file"),
        (TOKEN, f"not JSON at character 0: {listed}"),
        (f"[{TOKEN}", "not JSON at character"),
        ("{}", listed),
        ("[]", listed),
        (json.dumps([mine, TOKEN]), f"entry 2: {needed}"),
        (json.dumps([{"app_token": TOKEN}]), f"entry 1: {needed}"),
        (json.dumps([mine | {"app_token": f"{TOKEN} {TOKEN}"}]), "entry 1: app_token: ASCII text without"),
        (json.dumps([mine | {"app_id": 7}]), "entry 1: app_id: ASCII text without"),
        (json.dumps([mine | {"app_token": [TOKEN]}]), "entry 1: app_token: ASCII text without"),
    ]:
        if content is not None:
            file.write_text(content)
        with pytest.raises(InvalidRequest) as caught:
            callback_credentials_from_env()
        error = caught.value
        assert error.field == "RBIM_CALLBACK_CREDENTIALS_FILE"
        assert said in error.message
        assert error.__context__ is None
        assert TOKEN not in shown(error)
