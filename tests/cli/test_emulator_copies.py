"""``rbim emulator`` in this process, and whom it sends copies that are signed with a configured token."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.request

import pytest

from rbim.cli import Exit, run
from rbim.testing.conformance.server import RawServer, reply

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PLANTED = {"RBIM_APP_ID": "an-app", "RBIM_APP_TOKEN": "planted-token"}


def control(url, method, path, document=None):
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"{url}/_emulator/{path}", body, {"Content-Type": "application/json"}, method=method)
    try:
        with OPENER.open(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture
def emulator(bare_environment, capsys):
    """Run the command until ``act``, which gets its URL in a thread, has returned; return standard error."""

    def call(act, *flags):
        failed, shown = [], io.StringIO()

        def acting():
            try:
                act(shown.getvalue().split()[0])
            except BaseException as error:  # told by the test's own thread
                failed.append(error)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=acting)
        flush = shown.flush
        shown.flush = lambda: thread.start() if thread.ident is None else flush()
        with bare_environment.context() as patched:
            patched.setattr(sys, "stdout", shown)
            code = run(["emulator", "--port", "0", "--quiet", *flags])
        thread.join()
        for error in failed:
            raise error
        assert code == Exit.DONE
        assert "planted-token" not in shown.getvalue()
        return capsys.readouterr().err

    return call


def test_a_configured_token_signs_copies_to_this_machine_and_to_others_only_with_the_flag(emulator, bare_environment):
    for name, value in PLANTED.items():
        bare_environment.setenv(name, value)
    elsewhere = {"url": "http://192.0.2.7/copy"}

    def without(url):
        status, answer = control(url, "PUT", "copy", elsewhere)
        assert (status, "start rbim emulator with --sign-copies" in answer["error"]) == (409, True)
        assert control(url, "PUT", "copy", {"url": receiver.url()})[0] == 200
        control(url, "POST", "say", {"sender": "1001", "to": "1002", "text": "x"})
        while not control(url, "GET", "deliveries")[1]:
            pass

    with RawServer(reply()) as receiver:
        assert emulator(without, "--remote-copies") == ""
        (copy,) = receiver.requests
    signed = f"an-appplanted-token{copy.header('MD5')}{copy.header('CurTime')}"
    assert copy.header("CheckSum") == hashlib.md5(signed.encode()).hexdigest().upper()

    def accepted(url):
        assert control(url, "PUT", "copy", elsewhere)[0] == 200

    told = "message copies are signed with the configured RBIM_APP_TOKEN"
    err = emulator(accepted, "--sign-copies", "--remote-copies")
    assert err == f"rbim: warning: {told}, for everyone who can reach the emulator\n"
