"""Runs of the engine, one process at a time: what they found and reached is kept in a folder, and the next run continues."""

import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from attrs import asdict, define, field

from . import corpora
from .engine import STOPPED

TARGETS = ("http_responses", "http_receiver", "http_emulator")
SLICE = 120  # seconds of one process of the engine
INPUT_SECONDS = 20  # for one input
MEMORY = 3000  # megabytes
ROOT = Path(__file__).parents[3]


class NoEngine(Exception):
    """atheris is not installed."""


def target(name):
    return importlib.import_module(f"tests.ci.fuzz.targets.{name}")


def has_engine():
    return importlib.util.find_spec("atheris") is not None


@define
class Progress:
    """What the runs of one target have done so far; ``edges`` and ``inputs`` are those of the last one."""

    seconds: float = 0.0
    executions: int = 0
    edges: int = 0
    inputs: int = 0
    findings: dict[str, str] = field(factory=dict)  # the kind, and the file


class Runner:
    """Runs targets, and keeps their corpora and progress in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def progress(self, name):
        path = self.folder / name / "progress.json"
        return Progress(**json.loads(path.read_text())) if path.exists() else Progress()

    def run(self, name, seconds):
        """Run a target for some seconds; return the whole progress, which is written down every two minutes."""
        progress = self.progress(name)
        while seconds > 0:
            progress = self.run_once(name, min(SLICE, seconds))
            seconds -= SLICE
        return progress

    def run_once(self, name, seconds, *, fault=None, stop=False):
        """Run the engine once, beginning with everything that is known; return the whole progress."""
        if not has_engine():
            raise NoEngine('atheris is not installed: python -m pip install "rbim[ci]"')
        home = self.folder / name
        corpus, found = home / "corpus", home / "findings"
        for each in (corpus, found):
            each.mkdir(parents=True, exist_ok=True)
        module = target(name)
        for number, data in enumerate([*module.seeds(), *corpora.kept(name), *corpora.findings(name)]):
            (corpus / f"begin-{number:04}").write_bytes(data)
        words = home / "words"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in module.WORDS))
        log = home / "log"
        settings = {"target": name, "instrument": module.INSTRUMENT, "findings": str(found), "fault": fault, "stop": stop}
        command = [
            *(sys.executable, "-m", "tests.ci.fuzz.engine", json.dumps(settings), str(corpus)),
            *(f"-max_total_time={seconds}", f"-max_len={module.MOST}", f"-dict={words}", f"-timeout={INPUT_SECONDS}"),
            *(f"-rss_limit_mb={MEMORY}", f"-artifact_prefix={found}/", "-print_final_stats=1", "-reload=0", "-verbosity=1"),
        ]
        command += ["-seed=1"] if fault is not None else []  # it finds the fault after as many inputs each time
        with log.open("w") as output:
            ended = subprocess.run(command, cwd=ROOT, env=_environment(home), stdout=output, stderr=output, check=False)
        text = log.read_text(errors="replace")
        if ended.returncode not in {0, STOPPED} and not any(found.iterdir()):
            raise RuntimeError(f"the engine ended with code {ended.returncode}:\n{text[-3000:]}")
        progress = self.progress(name)
        _add(progress, text, found)
        (home / "progress.json").write_text(json.dumps(asdict(progress), indent=1))
        return progress

    def minimised(self, name):
        """Return the fewest and shortest inputs of a corpus that reach all that it reaches."""
        home = self.folder / name
        fewest, program = home / "fewest", home / "program"
        shutil.rmtree(fewest, ignore_errors=True)
        fewest.mkdir()
        settings = {"target": name, "instrument": target(name).INSTRUMENT, "findings": str(home / "findings")}
        settings |= {"fault": None, "stop": False, "program": str(program)}
        command = [sys.executable, "-m", "tests.ci.fuzz.engine", json.dumps(settings)]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')  # libFuzzer starts it for the inner process
        program.chmod(0o700)
        command += ["-merge=1", f"-timeout={INPUT_SECONDS}", str(fewest), str(home / "corpus")]
        ended = subprocess.run(command, cwd=ROOT, env=_environment(home), capture_output=True, text=True, check=False)
        found = [path.read_bytes() for path in fewest.iterdir()]
        if not found:
            raise RuntimeError(f"nothing was merged:\n{ended.stderr[-3000:]}")
        return found


def _environment(home):
    """Return the environment of the engine, which ends without removing its temporary files."""
    temporary = home / "temporary"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    return {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": str(temporary)}


def _escaped(word):
    return "".join(chr(each) if 32 <= each < 127 and each not in b'"\\' else f"\\x{each:02x}" for each in word)


def _add(progress, log, found):
    runs = re.findall(r"^#(\d+)\t\w+ +cov: (\d+) ft: \d+ corp: (\d+)/", log, re.MULTILINE)
    executed = re.findall(r"stat::number_of_executed_units: +(\d+)", log) or [runs[-1][0] if runs else 0]
    seconds = re.findall(r"^Done \d+ runs in (\d+) second", log, re.MULTILINE)
    progress.executions += int(executed[-1])
    progress.seconds += int(seconds[-1]) if seconds else 0
    if runs:
        progress.edges, progress.inputs = int(runs[-1][1]), int(runs[-1][2])
    progress.findings = {}
    for path in sorted(found.glob("*.txt")):
        progress.findings[path.read_text().partition("\n")[0]] = path.name
    for path in sorted(found.iterdir()):
        if path.suffix not in {".txt", ".input"}:  # a timeout, a crash, or too much memory
            progress.findings[path.name.partition("-")[0]] = path.name
