"""With ``--json`` an error is a document on standard output, too: what is in it for each kind of error."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helpers.serving import served
from rbim.cli import Exit, run
from rbim.emulator import Emulator
from rbim.testing.conformance.server import RawServer, reply

CREATE = ("groups", "create", "--name", "x", "--type", "vip")


@pytest.fixture
def environment(bare_environment, tmp_path):
    bare_environment.chdir(tmp_path)
    for name, value in {"BASE_URL": "http://127.0.0.1:1", "APP_ID": "app", "APP_TOKEN": "token"}.items():
        bare_environment.setenv(f"RBIM_{name}", value)
    return bare_environment


@pytest.fixture
def platform(environment):
    emulator = Emulator()
    with served(emulator.asgi) as url:
        environment.setenv("RBIM_BASE_URL", url)
        environment.setenv("RBIM_APP_ID", emulator.credentials.app_id)
        environment.setenv("RBIM_APP_TOKEN", emulator.credentials.app_token.reveal())
        yield emulator


@pytest.fixture
def failed(capsys):
    """Run a command that fails; return its exit code, the error in its only document, and standard error."""

    def call(*tokens):
        code = run([*map(str, tokens), "--json"])
        out, err = capsys.readouterr()
        (line,) = out.splitlines()
        (document,) = json.loads(line).values()
        assert document["exit_code"] == code
        assert list(document) == ["class", "outcome", "code", "status", "docs", "message", "hint", "exit_code"]
        return code, document, err

    return call


REFUSAL = '{"statusCode":"112345","statusMsg":"群组 不允许"}'.encode()
LOOK = "Nothing was done: check the base URL and the proxy; `rbim doctor` shows the way that requests take."


@pytest.mark.parametrize(
    ("answer", "kind", "outcome", "code", "status", "words"),
    [
        (reply(b"<html>no route</html>", "404 Not Found", "Server: nginx"), "IntermediaryError", "refused", None, 404, LOOK),
        (reply(REFUSAL), "ApiError", "refused", "112345", 200, "群组 不允许"),
        (reply(b"", "503 Busy"), "IntermediaryError", "unknown", None, 503, "check its state before repeating"),
        (reply(b"", "429 Slow", "Retry-After: 600"), "Throttled", "refused", None, 429, "HTTP 429"),
    ],
    ids=["a page", "a refusal", "an outage", "throttled"],
)
def test_an_error_has_its_class_outcome_code_status_and_place_in_the_documentation(
    environment, failed, answer, kind, outcome, code, status, words
):
    with RawServer(answer) as server:
        environment.setenv("RBIM_BASE_URL", server.url())
        exit_code, error, err = failed(*CREATE)
    assert exit_code == (Exit.UNKNOWN if outcome == "unknown" else Exit.REFUSED)
    assert (error["class"], error["outcome"], error["code"], error["status"]) == (kind, outcome, code, status)
    assert error["docs"] == f"errors#{kind.lower()}"
    assert words in f"{error['message']} {error['hint']}"
    assert err.splitlines()[0] == f"rbim: {error['message']}"
    assert (error["hint"] or "") in err


def test_a_warning_before_the_error_is_not_the_error(environment, failed, tmp_path):
    (tmp_path / "token").write_text("a-token", encoding="utf-8")
    (tmp_path / "token").chmod(0o644)
    environment.delenv("RBIM_APP_TOKEN")
    environment.setenv("RBIM_APP_TOKEN_FILE", str(tmp_path / "token"))
    environment.delenv("RBIM_BASE_URL")
    code, error, err = failed("groups", "detail", "g1")
    assert (code, err.startswith("rbim: warning: ")) == (Exit.USAGE, True)
    assert error["message"].startswith("the environment variable RBIM_BASE_URL is not set")


def test_a_bug_has_the_class_of_its_exception(environment, failed, monkeypatch):
    assert environment

    def broken(sending):
        sending.close()
        raise ZeroDivisionError

    monkeypatch.setattr("asyncio.run", broken)
    code, error, _ = failed("groups", "detail", "g1")
    assert (code, error["class"], error["outcome"]) == (Exit.FAULT, "ZeroDivisionError", "unknown")


def test_ctrl_c_is_an_error_of_unknown_outcome(environment, failed, monkeypatch):
    assert environment

    def interrupted(sending):
        sending.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("asyncio.run", interrupted)
    code, error, err = failed(*CREATE)
    assert (code, error["class"], error["outcome"], error["message"]) == (130, None, "unknown", "stopped by Ctrl-C")
    assert "may have acted" in error["hint"]
    assert failed("groups", "detail", "g1")[1]["message"] == "stopped by Ctrl-C"
    assert err


def test_a_document_of_the_command_takes_the_errors_place(platform, capsys, environment):
    """An invitation whose answer leaves accounts open, a delivery that is refused: the answer says it all."""
    assert platform
    body = b'{"statusCode":"000000","fails":"some"}'
    with RawServer(reply(body)) as server:
        environment.setenv("RBIM_BASE_URL", server.url())
        assert run(["groups", "invite", "g1", "--members", "a", "b", "--json"]) == Exit.UNKNOWN
        assert json.loads(capsys.readouterr().out)["unknown"] == ["a", "b"]
        assert run(["groups", "remove", "g1", "--members", "a", "--yes", "--json"]) == Exit.UNKNOWN
        printed = capsys.readouterr()
        assert json.loads(printed.out) == {"extra": {"fails": "some"}}
        assert "unknown: the answer has the success code, and fails" in printed.err
        assert run(["callback", "send", "--to", "1", "--sender", "2", "--json", "--url", server.url("http")]) == Exit.DONE
        assert json.loads(capsys.readouterr().out)["status"] == 200


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "rbim", "--version"], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    version = subprocess.run(
        [sys.executable, "-m", "rbim", "nosuch", "--json"], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (Exit.DONE, "rbim")
    assert (version.returncode, json.loads(version.stdout)["error"]["exit_code"]) == (Exit.USAGE, Exit.USAGE)
