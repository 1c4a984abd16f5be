"""The receiver as a WSGI application: in a thread of its own, as durable as in an event loop."""

import io
import os
import re
import subprocess
import sys
import threading
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from helpers.credentials import APP_ID, CREDENTIALS, TOKEN
from helpers.receiving_asgi import TINY, content, signed
from rbim import InvalidRequest
from rbim.callbacks import MemorySink, Receiver, SqliteInbox, Text


@pytest.fixture
def receiver(tmp_path):
    made = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"), health="/health")
    yield made
    made.wsgi.stop()


def ask(receiver, body=b"", headers=None, method="POST", path="/copies", **environ):
    """Make a request as a server does; the standard library's validator checks both sides."""
    given = {"SCRIPT_NAME": "", "QUERY_STRING": "", "REQUEST_METHOD": method, "PATH_INFO": path}
    given |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    given |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in (headers or {}).items()} | environ
    setup_testing_defaults(given)
    answers = []

    def start_response(status, headers, _exc_info=None):
        answers.append((int(status.split()[0]), dict(headers)))
        return answers.append

    result = validator(receiver.wsgi)(given, start_response)
    answer = b"".join(result)
    result.close()
    ((status, named),) = answers
    assert named["content-length"] == str(len(answer))
    return status, answer


def test_it_answers_like_the_asgi_application(receiver):
    body = content()
    assert ask(receiver, body, signed(body)) == (200, b"")
    assert ask(receiver, body, signed(body)) == (200, b"")
    assert ask(receiver, body, {}) == (401, TINY)
    assert ask(receiver, body + b" ", signed(body)) == (401, TINY)
    assert ask(receiver, body, signed(body) | {"CheckSum": "a" * 32 + "," + "a" * 32}) == (401, TINY)
    assert ask(receiver, b"x" * (2**20 + 1), signed(body)) == (413, TINY)
    assert ask(receiver, body, signed(body) | {"Content-Encoding": "gzip"}) == (415, TINY)
    assert ask(receiver, method="GET") == (405, TINY)
    assert ask(receiver, body, signed(body), CONTENT_LENGTH=str(len(body) + 1)) == (400, TINY)
    assert ask(receiver, body, signed(body), CONTENT_LENGTH="") == (401, TINY)


def test_a_body_in_chunks_is_read_to_its_end(receiver):
    body, status = content(), []
    environ = {f"HTTP_{name.upper()}": value for name, value in signed(body).items()}
    environ |= {"REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True}
    receiver.wsgi(environ, lambda line, _: status.append(line))
    assert status == ["200 OK"]


class Asked(io.BytesIO):
    """A body that remembers how much of it was asked for."""

    def read(self, size=-1):
        self.size = size
        return super().read(size)


@pytest.mark.parametrize("length", ["-1", "-20", "+3", "1_0", "\u0665", "\u00b2", "x", "1e3", "5, 5"])
def test_a_length_that_is_no_number_is_answered_400_and_nothing_is_read(receiver, length):
    """``read(-1)`` would read without a limit."""
    body, lines = Asked(b"x" * 5), []
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length, "wsgi.input": body}
    receiver.wsgi(environ, lambda line, _: lines.append(line))
    assert lines == ["400 Bad Request"]
    assert not hasattr(body, "size")


def test_health_has_its_path(receiver):
    status, document = ask(receiver, method="GET", path="/health")
    assert (status, b'"accepting":true' in document.replace(b" ", b"")) == (200, True)
    receiver.wsgi.stop()
    assert ask(receiver, method="GET", path="/health") == (503, TINY)


def test_handlers_run_before_the_first_request(receiver):
    handled = threading.Event()
    body = content()
    assert ask(receiver, body, signed(body))[0] == 200
    receiver.wsgi.stop()
    assert receiver.wsgi.receive(signed(body), body).status == 503

    @receiver.fallback
    async def handle(_event):
        handled.set()

    receiver.wsgi.start()
    receiver.wsgi.start()
    assert handled.wait(20)
    assert receiver.wsgi.receive(signed(body), body).status == 200


def test_many_threads_start_it_once(receiver):
    body, statuses = content(), []
    threads = [threading.Thread(target=lambda: statuses.append(ask(receiver, body, signed(body))[0])) for _ in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert statuses == [200] * 20
    assert sum(each.name == "rbim-wsgi" for each in threading.enumerate()) == 1


def test_what_prevents_the_start_is_raised_and_may_be_repaired():
    receiver = Receiver(credentials=CREDENTIALS, sink=MemorySink())
    receiver.on(Text)(print)
    for start in (receiver.wsgi.start, lambda: receiver.wsgi.receive({}, b"")):
        with pytest.raises(InvalidRequest, match="no fallback"):
            start()
    receiver.fallback(print)
    receiver.wsgi.start()
    receiver.wsgi.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be forked")
def test_a_fork_of_a_started_receiver_is_told(receiver, monkeypatch):
    receiver.wsgi.start()
    monkeypatch.setattr(os, "getpid", lambda: 0)
    with pytest.raises(RuntimeError, match="before a fork"):
        receiver.wsgi.start()


PROGRAM = """
import sys, threading, time
from rbim.callbacks import Receiver, SqliteInbox, sign
from rbim import Credentials
from datetime import UTC, datetime

credentials = Credentials(app_id=sys.argv[1], app_token=sys.argv[2])
receiver = Receiver(credentials=credentials, sink=SqliteInbox("events.db"))
begun = threading.Event()

@receiver.fallback
def slow(event):
    print("begun", flush=True)
    begun.set()
    time.sleep(0.3)
    print("ended", flush=True)

body = b'{"convType": "TEAM", "to": "g", "msgType": "TEXT", "msgId": "1"}'
print(receiver.wsgi.receive(sign(body, credentials=credentials, now=datetime.now(UTC)), body).status, flush=True)
assert begun.wait(30)
"""


def test_the_end_of_the_program_waits_for_running_handlers(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, APP_ID, TOKEN], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch("(200\nbegun\n|begun\n200\n)ended\n", done.stdout)
