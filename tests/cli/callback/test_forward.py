"""``rbim callback serve`` with ``--forward-to`` and ``--health``, and how it prints what is not ASCII."""

import json
import threading
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest

from helpers.callback_process import APP, MINE, counts, event, serving
from rbim import Credentials, InvalidRequest
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.signature import Verified, sign, verify
from rbim.callbacks.worker.router import HandlerContext
from rbim.cli import Exit
from rbim.cli.callback.forward import Forwarder, NotForwarded
from rbim.emulator.clock import EmulatedClock

NOW = datetime.now(UTC)


class App:
    """A local application: keeps what it gets, and answers with the next status, at last 200."""

    def __init__(self, statuses):
        self.statuses = list(statuses)
        self.requests = []
        self.came = threading.Semaphore(0)

    def wait(self, count):
        for _ in range(count):
            assert self.came.acquire(timeout=30)


@contextmanager
def application(*statuses):
    app = App(statuses)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            app.requests.append((self.path, dict(self.headers.items()), body))
            self.send_response(app.statuses.pop(0) if app.statuses else 200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"well")
            app.came.release()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        app.url = f"http://127.0.0.1:{server.server_port}/copies?from=rbim"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield app
        finally:
            server.shutdown()


def lowered(headers):
    return {name.lower(): value for name, value in headers.items()}


def test_an_application_gets_what_the_platform_sent(tmp_path):
    with application() as app, serving(tmp_path / "events.db", "--forward-to", app.url, "--print") as receiver:
        body = b" " + event(body="你好") + b"\n"
        signed = sign(body, credentials=MINE, now=datetime.now(UTC) - timedelta(seconds=20)) | {"Content-Type": "text/json"}
        assert receiver.post(body, signed)[0] == 200
        assert receiver.line()["body"] == "你好"
        ((path, headers, sent),) = app.requests
        assert (path, sent) == ("/copies?from=rbim", body)
        assert lowered(headers).items() >= lowered(signed).items()
        assert receiver.stop() == (0, "", "")
    assert counts(tmp_path / "events.db").done == 1


def test_a_failure_is_tried_again_before_the_next_of_its_conversation(tmp_path):
    with application(500, 302) as app, serving(tmp_path / "events.db", "--forward-to", app.url) as receiver:
        bodies = [event(msgId=f"m{number}") for number in range(2)]
        for body in bodies:
            assert receiver.post(body)[0] == 200
        app.wait(4)
        assert [body for _, _, body in app.requests] == [bodies[0]] * 3 + [bodies[1]]
        err = receiver.stop()[2]
    assert f"NotForwarded: {app.url} answered 500 'well'; again in" in err
    assert "events wait" not in err


def test_a_dead_letter_of_yesterday_is_forwarded_with_a_signature_of_now(tmp_path, cli):
    inbox, body = tmp_path / "events.db", b" " + event(body="你好") + b"\n"

    async def bury():
        clock = EmulatedClock(start=datetime.now(UTC) - timedelta(days=1))
        async with SqliteInbox(inbox, clock=clock) as opened, opened.backlog() as backlog:
            await opened.accept(delivery_of(body, app_id=APP, received=clock.now()))
            (claim,) = await backlog.claim(1)
            await backlog.dead_letter(claim, error="E", more=0)

    anyio.run(bury)
    with application() as app, serving(inbox, "--forward-to", app.url) as receiver:
        assert cli("letters", "requeue", inbox, 1)[0] == Exit.DONE
        app.wait(1)
        assert receiver.stop()[0] == 0
    ((_, headers, sent),) = app.requests
    assert sent == body
    assert isinstance(verify(headers, sent, credentials=MINE, now=datetime.now(UTC)), Verified)
    assert counts(inbox).done == 1


@pytest.mark.parametrize(("age", "kept"), [(0, True), (230, True), (245, False), (-50, True), (-70, False)])
async def test_headers_are_kept_while_applications_accept_their_time(age, kept):
    body = event()
    signed = sign(body, credentials=MINE, now=datetime.now(UTC) - timedelta(seconds=age))
    with application() as app:
        forwarder = Forwarder(app.url, (MINE,))
        async with forwarder.transport:
            forwarder.received([(name.encode(), value.encode()) for name, value in signed.items()], body)
            await forwarder.forward(context(body))
    ((_, headers, _),) = app.requests
    assert (lowered(headers)["curtime"] == signed["CurTime"]) is kept
    assert isinstance(verify(headers, body, credentials=MINE, now=datetime.now(UTC)), Verified)


@pytest.fixture
async def forwarder_to():
    async def forward(app, bodies, credentials=(MINE,)):
        forwarder = Forwarder(app.url, credentials)
        async with forwarder.transport:
            for headers, body in bodies:
                forwarder.received(headers, body)
                await forwarder.forward(context(body))

    return forward


def context(body, app_id=APP):
    return HandlerContext(key="k", attempt=1, received=NOW, replays=0, number=1, app_id=app_id, resource=None, body=body)


@pytest.mark.parametrize("known", ["forged", "old", "none"])
async def test_headers_that_no_application_would_accept_are_signed_anew(forwarder_to, known):
    body, at = event(), datetime.now(UTC) - timedelta(seconds=280 if known == "old" else 0)
    signed = sign(body, credentials=Credentials(app_id=APP, app_token="x") if known == "forged" else MINE, now=at)
    pairs = [] if known == "none" else [(name.encode(), value.encode()) for name, value in signed.items()]
    with application() as app:
        await forwarder_to(app, [(pairs, body)])
    ((_, headers, sent),) = app.requests
    assert sent == body
    assert isinstance(verify(headers, sent, credentials=MINE, now=datetime.now(UTC)), Verified)
    assert lowered(headers)["curtime"] != signed["CurTime"] or known != "old"


async def test_an_event_of_an_application_without_a_token_cannot_be_forwarded(forwarder_to):
    other = Credentials(app_id="another", app_token="x")
    with application() as app:
        with pytest.raises(NotForwarded, match="no token of application an-app"):
            await forwarder_to(app, [([], event())], credentials=(other,))
        assert app.requests == []


def test_an_address_that_is_none_is_refused(tmp_path, cli):
    for url in ("copies", "ftp://127.0.0.1/", "http://u:secret@:1/"):
        with pytest.raises(InvalidRequest) as raised:
            Forwarder(url, (MINE,))
        assert raised.value.field == "--forward-to"
        code, out, err = cli("serve", "--inbox", tmp_path / "events.db", "--forward-to", url)
        assert (code, out) == (Exit.USAGE, "")
        assert "secret" not in err


def test_health_is_asked_at_a_path_of_its_own(tmp_path, cli):
    with serving(tmp_path / "events.db", "--health", "/health", "--path", "/copies") as receiver:
        assert receiver.post(event(), path="/copies")[0] == 200
        with urllib.request.urlopen(receiver.url.replace("/copies", "/health")) as answer:
            document = json.load(answer)
        assert (document["ok"], document["accepting"], document["waiting"]) == (True, True, 1)
        assert receiver.post(event(), path="/health")[0] == 404
        assert receiver.stop()[0] == 0
    assert "invalid path 'health'" in cli("serve", "--inbox", tmp_path / "events.db", "--health", "health")[2]


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "你好 \N{PARTY POPPER}"), ("gb18030", None), ("ascii", None)])
def test_chinese_is_printed_as_chinese_where_it_can_be(tmp_path, encoding, shown):
    with serving(tmp_path / "events.db", "--print", PYTHONUTF8="0", PYTHONIOENCODING=encoding) as receiver:
        assert receiver.post(event(body="你好 \N{PARTY POPPER}"))[0] == 200
        line = receiver.popen.stdout.readline()
        assert json.loads(line)["body"] == "你好 \N{PARTY POPPER}"
        assert (shown in line) if shown else line.isascii()
        assert receiver.stop()[0] == 0
