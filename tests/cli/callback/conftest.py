"""Fixtures of the tests of ``rbim callback``, in this process and in others."""

import io
import json
import os
import queue
import signal
import sys
import threading

import pytest

from helpers.callback_process import CLEAN, KNOWN, OLD_TOKEN, PATIENCE, TOKEN, Process
from rbim.cli import run


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    for name, value in KNOWN.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def anyio_backend():
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


class Shown(io.StringIO):
    """Standard output of ``rbim callback serve`` in this process: once it shows the URL, a thread acts, and stops it."""

    def __init__(self, act, encoding):
        super().__init__()
        self.act, self.encoding_told, self.lines = act, encoding, queue.SimpleQueue()
        self.failed, self.thread = [], None

    @property
    def encoding(self):
        return self.encoding_told

    def write(self, text):
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, args=(text.strip(),))
            self.thread.start()
        else:
            self.lines.put(text)
        return len(text)

    def run(self, url):
        receiver = Process(None, url)
        receiver.text = lambda: self.lines.get(timeout=PATIENCE)
        receiver.line = lambda: json.loads(receiver.text())
        try:
            self.act(receiver)
        except BaseException as error:  # told by the test's own thread
            self.failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # wakes the loop


@pytest.fixture
def serve(capsys, monkeypatch):
    """Serve in this process while ``act`` runs with the receiver, in a thread; return standard error of a good end."""

    def call(act, *flags, encoding="utf-8"):
        shown = Shown(act, encoding)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", shown)
            code = run(["callback", "serve", "--port", "0", *map(str, flags)])
        if shown.thread is not None:
            shown.thread.join(PATIENCE)
        for error in shown.failed:
            raise error
        err = capsys.readouterr().err
        assert code == 0, err
        assert TOKEN not in err
        return err

    return call
