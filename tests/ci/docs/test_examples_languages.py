"""docs/examples/node, java and container: the suites of other languages, and the commands of the container, as processes."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from helpers.paths import ROOT
from helpers.processes import CLEAN, ran
from helpers.sockets import free_port

EXAMPLES = ROOT / "docs" / "examples"
CONTAINER = EXAMPLES / "container"
COMPOSE = yaml.safe_load((CONTAINER / "compose.yml").read_text(encoding="utf-8"))
PATIENCE = 120
JUNIT = Path("/usr/share/java")
RBIM = [sys.executable, "-X", "utf8", "-m", "rbim"]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here: install nodejs")
needs_java = [
    pytest.mark.skipif(shutil.which("javac") is None, reason="there is no javac here: install a JDK of version 17"),
    pytest.mark.skipif(not (JUNIT / "junit-platform-console.jar").exists(), reason="there is no junit5 here: install it"),
]


@pytest.fixture
def environment(tmp_path):
    """The variables of a reader whose ``rbim`` is that of this interpreter."""
    program = tmp_path / "bin" / "rbim"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -X utf8 -m rbim "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return CLEAN | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "no_proxy": "*"}


def run_suite(command, folder, environment):
    done = ran(*command, cwd=folder, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def passed_in_node(shown):
    return [int(re.search(rf"^\S+ {word} (\d+)$", shown, re.MULTILINE)[1]) for word in ("tests", "pass", "skipped")]


@needs_node
def test_the_node_suite_starts_its_emulator_and_passes(environment):
    tests, passed, skipped = passed_in_node(run_suite(["node", "--test"], EXAMPLES / "node", environment))
    assert (tests >= 15, passed, skipped) == (True, tests, 0)


@pytest.mark.skipif(os.name == "nt", reason="the script is for a shell")
@needs_java[0]
@needs_java[1]
def test_the_java_suite_starts_its_emulator_and_passes(environment, tmp_path):
    shown = run_suite(["./test.sh"], EXAMPLES / "java", environment | {"BUILD": str(tmp_path / "build")})
    found, successful = (int(re.search(rf"(\d+) tests {word} ", shown)[1]) for word in ("found", "successful"))
    assert (found >= 15, successful) == (True, found)
    assert not (EXAMPLES / "java" / "build").exists()


def instructions():
    text = (CONTAINER / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(re.fullmatch(r"([A-Z]+) +(.*)", line).groups()) for line in lines]


def of(word):
    return [rest for each, rest in instructions() if each == word]


def health():
    (check,) = of("HEALTHCHECK")
    flags, _, command = check.partition("CMD ")
    return dict(re.findall(r"--([a-z-]+)=(\d+s?)", flags)), json.loads(command)


class Emulator:
    """The service of the emulator as a process, at ports of this machine."""

    def __init__(self, environment):
        self.port, self.control = str(free_port()), str(free_port())
        service = COMPOSE["services"]["emulator"]
        words = [self.here(word) for word in json.loads(of("ENTRYPOINT")[0])[1:]]
        command = [*RBIM, *words, *map(self.here, service["command"])]
        self.environment = environment | service["environment"]
        self.process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
        )

    def here(self, text):
        for inside, outside in (("8883", self.port), ("8884", self.control), ("0.0.0.0", "127.0.0.1")):
            text = text.replace(inside, outside)
        return text

    def healthy(self):
        _, command = health()
        assert command[0] == "python"
        return ran(sys.executable, *map(self.here, command[1:]), timeout=PATIENCE).returncode == 0

    def shell(self, script):
        command = ["bash", "-euo", "pipefail", "-c", self.here(script)]
        environment = self.environment | {"no_proxy": "*"}
        return subprocess.run(command, env=environment, check=True, capture_output=True, timeout=PATIENCE).stdout


@pytest.fixture
def emulator(environment):
    emulator = Emulator(environment)
    try:
        assert emulator.process.stdout.readline().startswith("http://")
        yield emulator
    finally:
        emulator.process.kill()
        emulator.process.communicate()


def test_an_outage_leaves_it_healthy_and_its_end_does_not(emulator):
    commands = re.findall(r"^#   (curl .*)$", (CONTAINER / "compose.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert b'"status":503' in emulator.shell("\n".join(commands))
    control = f"http://127.0.0.1:{emulator.control}/_emulator/outage"
    body, headers = b'{"seconds": 600}', {"Content-Type": "application/json"}
    with OPENER.open(urllib.request.Request(control, body, headers), timeout=PATIENCE) as answer:
        assert answer.status == 200
    assert emulator.healthy()
    emulator.process.terminate()
    assert emulator.process.wait(PATIENCE) == 0
    assert not emulator.healthy()
