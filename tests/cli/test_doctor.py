"""``rbim doctor`` against real listeners: each state of each check, and that it changes and shows nothing."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import trustme

from helpers.serving import emulator_served, served
from helpers.sockets import free_port
from rbim.cli import Exit, run
from rbim.credentials import Credentials
from rbim.emulator import EmulatedClock, Emulator
from rbim.operations.groups import SearchPublicGroups
from rbim.testing.conformance.server import RawServer, reply

TOKEN = "a-token-that-nobody-sees"
FOUND = b'{"statusCode":"000000","groups":[]}'


@pytest.fixture
def environment(bare_environment, tmp_path):
    bare_environment.chdir(tmp_path)
    for name, value in {"APP_ID": "app", "APP_TOKEN": TOKEN}.items():
        bare_environment.setenv(f"RBIM_{name}", value)
    bare_environment.setenv("no_proxy", "127.0.0.1,localhost")
    return bare_environment


@pytest.fixture
def doctor(environment, capsys):
    """Run the command with ``--json``; return its exit code, and the state, text and advice of each check by name."""

    def call(url, *tokens):
        environment.setenv("RBIM_BASE_URL", url)
        code = run(["doctor", *map(str, tokens), "--json"])
        out, err = capsys.readouterr()
        assert TOKEN not in out + err
        assert err == ""
        document = json.loads(out)
        assert document["ok"] is (code == Exit.DONE)
        assert [row["check"] for row in document["checks"] if row["state"] == "fail" and not row["advice"]] == []
        return code, {row["check"]: (row["state"], row["text"], row["advice"]) for row in document["checks"]}

    return call


@pytest.fixture(scope="module")
def platform():
    emulator = Emulator(credentials=Credentials(app_id="app", app_token=TOKEN))
    with served(emulator.asgi) as url:
        yield emulator, url


def dated(seconds):
    """Return an answer whose Date differs from our clock by so many seconds."""
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return reply(FOUND, "200 OK", f"Date: {format_datetime(moment, usegmt=True)}")


EVERY = ["versions", "configuration", "settings", "connection", "clock", "credentials", "callbacks"]


def test_all_is_well_with_the_emulator_and_nothing_is_changed(platform, doctor):
    emulator, url = platform
    before = emulator.export()
    code, checks = doctor(url)
    assert code == Exit.DONE
    assert {name: state for name, (state, _, _) in checks.items()} == dict.fromkeys(EVERY, "ok")
    assert emulator.requests.of(SearchPublicGroups)[-1:] == [SearchPublicGroups(name="rbim-doctor")]
    assert emulator.export()["groups"] == before["groups"]


def test_what_an_address_answers(doctor):
    """Each row: the answer, the check that tells of it, its state, and words of its text or advice."""
    html = b"<html>Welcome</html>"
    wrong = []
    for answer, check, state, words in (
        (dated(0), "clock", "ok", "within 1 s of the platform's"),
        (dated(-3600), "clock", "fail", " s ahead of the platform's"),
        (dated(3600), "clock", "fail", "behind the platform's"),
        (dated(-120), "clock", "warn", "NTP"),
        (reply(FOUND, "200 OK", f"Date: 1 Jan 2026 0:0:0 +{10**20}"), "clock", "warn", "cannot be read"),
        (reply(FOUND), "clock", "skip", "there was no answer with a Date header"),
        (reply(html), "credentials", "fail", "rbim help questions#is-this-my-platform"),
        (reply(html, "403 Forbidden", "Server: squid"), "credentials", "fail", "A proxy, a gateway or another server"),
        (reply(html, "403 Forbidden", "Server: squid"), "connection", "ok", "(Server: squid)"),
        (reply(b"", "404 Not Found"), "credentials", "fail", "--dialect api_version"),
        (reply(b'{"statusCode":"161106","statusMsg":"expired"}'), "credentials", "fail", "--dialect zone"),
        (reply(b'{"statusCode":"111109","statusMsg":"signature"}'), "credentials", "fail", "RBIM_APP_TOKEN"),
        (reply(b'{"statusCode":"999123","statusMsg":"?"}'), "credentials", "warn", "may be right"),
        (reply(b"", "429 Too Many Requests"), "credentials", "warn", "later"),
        (reply(b"", "503 Busy"), "credentials", "fail", "another server"),
    ):
        with RawServer(answer) as server:
            code, checks = doctor(server.url())
        found = checks[check]
        failed = any(each == "fail" for each, _, _ in checks.values())
        if found[0] != state or words not in found[1] + found[2] or (code == Exit.REFUSED) is not failed:
            wrong.append((check, state, words, code, found))
    assert not wrong


@pytest.mark.parametrize("hours", [0, -2, 2])
def test_an_emulated_clock_is_not_taken_for_that_of_a_machine(hours, doctor):
    clock = EmulatedClock(datetime.now(UTC) + timedelta(hours=hours))
    emulator = Emulator(credentials=Credentials(app_id="app", app_token=TOKEN), clock=clock)
    with emulator_served(emulator) as server:
        code, checks = doctor(server.url)
    assert (code, checks["clock"][0], checks["credentials"][0]) == (Exit.DONE, "warn" if hours else "ok", "ok")
    assert "the emulated clock of the emulator" in checks["clock"][1]
    assert "NTP" not in checks["clock"][2]


def test_addresses_that_cannot_be_reached(doctor):
    for url, words, advice in (
        ("https://no-such-host.invalid", "no-such-host.invalid:443 (host not found)", "DNS"),
        (f"http://127.0.0.1:{free_port()}", "(refused)", "is the emulator running?"),
    ):
        code, checks = doctor(url)
        assert (code, checks["connection"][0], checks["credentials"][0]) == (Exit.REFUSED, "fail", "skip")
        assert words in checks["connection"][1]
        assert advice in checks["connection"][2]
        assert "clock" not in checks


# ------------------------------------------------------------------------------ TLS


def serving(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return RawServer(dated(0), greet=lambda peer: peer.start_tls(context))


def test_certificates(environment, doctor, platform, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    environment.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    end = datetime.now(UTC) - timedelta(days=1)
    expired = authority.issue_cert("127.0.0.1", not_before=end - timedelta(days=9), not_after=end)
    for certificate, words in (
        (authority.issue_cert("127.0.0.1"), None),
        (expired, "certificate expired"),
        (trustme.CA().issue_cert("127.0.0.1"), "certificate not trusted"),
        (authority.issue_cert("other.example"), "certificate of another host"),
    ):
        with serving(certificate) as server:
            code, checks = doctor(server.url("https"))
        state, text, _ = checks["connection"]
        assert (code, state) == ((Exit.DONE, "ok") if words is None else (Exit.REFUSED, "fail"))
        assert words is None or words in text
    code, checks = doctor(platform[1].replace("http", "https"))
    assert (code, checks["connection"][0]) == (Exit.REFUSED, "fail")
    assert "the server does not speak TLS" in checks["connection"][1]


# ------------------------------------------------------------------------------ configuration


def test_what_is_missing_is_named_and_nothing_is_asked(environment, doctor, capsys):
    environment.delenv("RBIM_APP_TOKEN")
    with RawServer(dated(0)) as server:
        code, checks = doctor(server.url())
        assert all(TOKEN not in str(each) and "sig=" not in str(each) for each in server.requests)
    assert (code, checks["settings"][0], checks["credentials"][0]) == (Exit.REFUSED, "fail", "skip")
    assert "RBIM_APP_TOKEN" in checks["settings"][1]
    environment.delenv("RBIM_BASE_URL")
    assert run(["doctor"]) == Exit.REFUSED
    assert capsys.readouterr().out.endswith("failed: settings\n")


def test_a_configuration_that_cannot_be_read(doctor, environment):
    environment.setenv("RBIM_TIMEOUT", "soon")
    code, checks = doctor("http://127.0.0.1:1")
    assert (code, checks["configuration"][0]) == (Exit.REFUSED, "fail")
    assert "RBIM_TIMEOUT" in checks["configuration"][1]


def test_a_file_with_a_token_that_others_can_read_is_a_warning(platform, doctor, environment, tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN, encoding="utf-8")
    file.chmod(0o644)
    environment.delenv("RBIM_APP_TOKEN")
    environment.setenv("RBIM_APP_TOKEN_FILE", str(file))
    code, checks = doctor(platform[1])
    said = f"{file}: other users can read this file, which contains a token"
    assert (code, checks["files"]) == (Exit.DONE, ("warn", said, f"To fix it: chmod 600 {file}"))


def test_callbacks_have_credentials_of_their_own(platform, doctor, environment, tmp_path):
    path = tmp_path / "callbacks.json"
    environment.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", str(path))
    path.write_text(json.dumps([{"app_id": "other", "app_token": "an-older-token"}]), encoding="utf-8")
    path.chmod(0o600)
    _, checks = doctor(platform[1])
    assert checks["callbacks"][:2] == ("ok", "signatures of app, other are accepted (tokens: 2)")
    path.write_text("{}", encoding="utf-8")
    code, checks = doctor(platform[1])
    assert (code, checks["callbacks"][0]) == (Exit.REFUSED, "fail")


def test_the_address_of_calls_is_checked_too(platform, doctor, environment):
    environment.setenv("RBIM_CALL_BASE_URL", f"http://127.0.0.1:{free_port()}")
    code, checks = doctor(platform[1])
    found = [checks[name][0] for name in ("connection", "connection of calls", "credentials")]
    assert (code, found) == (1, ["ok", "fail", "ok"])


def test_a_proxy_is_looked_at_in_the_platforms_place(doctor, environment):
    environment.delenv("no_proxy")
    with RawServer(reply(FOUND)) as proxy:
        environment.setenv("http_proxy", f"http://user:{TOKEN}@127.0.0.1:{proxy.port}")
        _, checks = doctor("http://im.example")
    assert checks["proxy"][1] == f"requests go through 127.0.0.1:{proxy.port}, as the environment says"
    assert (checks["address"][0], checks["connection"][0], checks["credentials"][0]) == ("warn", "ok", "ok")


# ------------------------------------------------------------------------------ the text


def test_the_lines_say_what_to_do_below_what_they_found(platform):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RBIM_")} | {"PYTHONUTF8": "1", "no_proxy": "*"}
    variables = {"RBIM_BASE_URL": platform[1], "RBIM_APP_ID": "app", "RBIM_APP_TOKEN": "wrong"}
    command = [sys.executable, "-m", "rbim", "doctor"]
    done = subprocess.run(command, env=env | variables, capture_output=True, encoding="utf-8", timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (Exit.REFUSED, "")
    assert lines[0].startswith("ok    versions        rbim ")
    at = next(number for number, line in enumerate(lines) if line.startswith("fail  credentials     "))
    assert lines[at + 1].startswith(f"{' ' * 22}-> Compare RBIM_APP_ID and RBIM_APP_TOKEN ")
    assert lines[-1] == "failed: credentials"
