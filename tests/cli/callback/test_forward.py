"""``rbim callback serve`` with ``--forward-to`` and ``--health``, and how it prints what is not ASCII."""

import json
import threading
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helpers.callback_process import APP, MINE, besides_deliveries, counts, event
from rbim import Credentials, InvalidRequest
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.signature import Verified, sign, verify
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import HandlerContext
from rbim.cli import Exit
from rbim.cli.callback.serve import Forwarder, NotForwarded

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
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield app
        finally:
            server.shutdown()


def lowered(headers):
    return {name.lower(): value for name, value in headers.items()}


def test_an_application_gets_what_the_platform_sent(tmp_path, serve):
    body = b" " + event(body="你好") + b"\n"
    signed = sign(body, credentials=MINE, now=datetime.now(UTC) - timedelta(seconds=20)) | {"Content-Type": "text/json"}

    def act(receiver):
        assert receiver.post(body, signed)[0] == 200
        assert receiver.line()["body"] == "你好"

    with application() as app:
        err = serve(act, "--inbox", tmp_path / "events.db", "--forward-to", app.url, "--print")
        assert besides_deliveries(err) == ""
    ((path, headers, sent),) = app.requests
    assert (path, sent) == ("/copies?from=rbim", body)
    assert lowered(headers).items() >= lowered(signed).items()
    assert counts(tmp_path / "events.db").done == 1


def test_a_failure_is_tried_again_before_the_next_of_its_conversation(tmp_path, serve, monkeypatch):
    soon = Backoff(first=0.01, factor=1.0)
    monkeypatch.setattr("rbim.cli.callback.serve.Receiver", partial(Receiver, backoff=soon))
    bodies = [event(msgId=f"m{number}") for number in range(2)]

    def act(receiver):
        for body in bodies:
            assert receiver.post(body)[0] == 200
        app.wait(4)

    with application(500, 302) as app:
        url = f"{app.url}&key=secret".replace("//", "//me:secret@")
        err = serve(act, "--inbox", tmp_path / "events.db", "--forward-to", url)
    assert [body for _, _, body in app.requests] == [bodies[0]] * 3 + [bodies[1]]
    assert "secret" not in err
    assert f"NotForwarded: {app.url.partition('?')[0]} answered 500 'well'; again in" in err
    assert "events wait" not in err


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


async def test_headers_are_kept_while_applications_accept_them_and_signed_anew_otherwise(forwarder_to):
    body, forged = event(), Credentials(app_id=APP, app_token="x")
    for age, by, kept in (
        (0, MINE, True),
        (230, MINE, True),
        (245, MINE, False),
        (-50, MINE, True),
        (-70, MINE, False),
        (0, forged, False),
        (0, None, False),
    ):
        at = datetime.now(UTC) - timedelta(seconds=age)
        signed = {} if by is None else sign(body, credentials=by, now=at)
        with application() as app:
            await forwarder_to(app, [([(name.encode(), value.encode()) for name, value in signed.items()], body)])
        ((_, headers, sent),) = app.requests
        assert sent == body
        assert (lowered(headers)["checksum"] == signed.get("CheckSum")) is kept, (age, by)
        assert isinstance(verify(headers, body, credentials=MINE, now=datetime.now(UTC)), Verified)


async def test_an_event_of_an_application_without_a_token_cannot_be_forwarded(forwarder_to):
    other = Credentials(app_id="another", app_token="x")
    with application() as app:
        with pytest.raises(NotForwarded, match="no token of application an-app"):
            await forwarder_to(app, [([], event())], credentials=(other,))
        assert app.requests == []


def test_an_address_that_is_none_is_refused(tmp_path, cli):
    for url in ("copies", "ftp://127.0.0.1/", "http://u:secret@:1/", "ftp://127.0.0.1/?key=secret"):
        with pytest.raises(InvalidRequest) as raised:
            Forwarder(url, (MINE,))
        assert raised.value.field == "--forward-to"
        code, out, err = cli("serve", "--inbox", tmp_path / "events.db", "--forward-to", url)
        assert (code, out) == (Exit.USAGE, "")
        assert "secret" not in err


def test_health_is_asked_at_a_path_of_its_own(tmp_path, serve, cli):
    def act(receiver):
        assert receiver.post(event(), path="/copies")[0] == 200
        with urllib.request.urlopen(receiver.url.replace("/copies", "/health")) as answer:
            document = json.load(answer)
        assert (document["ok"], document["accepting"], document["waiting"]) == (True, True, 1)
        assert receiver.post(event(), path="/health")[0] == 404

    inbox = tmp_path / "events.db"
    serve(act, "--inbox", inbox, "--health", "/health", "--path", "/copies")
    assert "invalid path 'health'" in cli("serve", "--inbox", inbox, "--health", "health")[2]
