"""The receiver as a WSGI application: in a thread of its own, as durable as in an event loop."""

import io
import os
import signal
import subprocess
import sys
import threading
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from helpers.credentials import CREDENTIALS
from helpers.receiving_asgi import TINY, content, signed
from rbim.callbacks import Receiver, SqliteInbox


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


def test_a_length_that_is_no_number_is_answered_400_and_nothing_is_read(receiver):
    """``read(-1)`` would read without a limit."""
    for length in ("-1", "-20", "+3", "1_0", "\u0665", "\u00b2", "x", "1e3", "5, 5"):
        body, lines = Asked(b"x" * 5), []
        environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length, "wsgi.input": body}
        receiver.wsgi(environ, lambda line, _, lines=lines: lines.append(line))
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


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be forked")
def test_each_request_in_a_fork_of_a_started_receiver_is_refused_in_words(receiver):
    """Its thread is in the other process: it would wait for ever."""
    receiver.wsgi.start()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        for call in (receiver.wsgi.start, lambda: ask(receiver, content(), signed(content()))):
            try:
                call()
            except RuntimeError as error:
                os.write(writing, f"{error}\n".encode())
        signal.alarm(20)  # the default action ends the process
        receiver.wsgi.stop()
        os.write(writing, b"left")
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        *lines, last = said.read().splitlines()
    assert (len(lines), last) == (2, "left")
    assert all("started before the server forked" in line for line in lines)
    assert ask(receiver, content(), signed(content())) == (200, b"")


def test_the_interpreter_waits_until_it_is_left_although_a_thread_of_a_server_started_it(tmp_path):
    """Such as a thread of the development server of Django, which is a daemon."""
    script = tmp_path / "app.py"
    script.write_text(
        """
import sys, threading
from rbim import Credentials
from rbim.callbacks import Receiver, SqliteInbox

class Inbox(SqliteInbox):
    async def __aexit__(self, *error):
        await super().__aexit__(*error)
        print("left")

receiver = Receiver(credentials=Credentials(app_id="a" * 32, app_token="b" * 32), sink=Inbox(sys.argv[1]))
request = threading.Thread(target=receiver.wsgi.start, daemon=True)
request.start()
request.join()
"""
    )
    command = [sys.executable, str(script), str(tmp_path / "events.db")]
    ended = subprocess.run(command, capture_output=True, check=True, encoding="utf-8", timeout=60)
    assert ended.stdout == "left\n"
