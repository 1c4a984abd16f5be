"""Every day few seeds of each scenario, and few planted faults; in CI every seed that ever failed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .planted_faults import PLANTED
from .runner import invariants
from .scenarios import MODULES

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="each seed runs in a process that is forked")

ROOT = Path(__file__).parents[2]

EVERYDAY = {"job": "1,3,6", "inbox": "1-3,6,8", "service": "1,2,6,7", "trio_inbox": "1-3"}
"""Storms of everything at once, and some of the special situations."""

FAILED = {
    "job": "27,32,35,37,90,121,448,657,738,1092,1867,8439",
    "inbox": "33,53,56,85,654,1830",
    "service": "71,110,200,228,240,415,608,707,733,896,925,985,1016,1568",
}
"""Every seed that ever failed."""

TRACED = {"job": "1,6", "inbox": "16,24", "service": "3,6", "trio_inbox": "2"}
"""Seeds with deaths, losses of power, stalled disks, callers that give up and a job beside them."""

FOUND = {"intent-not-written": 1, "never-is-retried": 3, "failure-is-done": 1, "newest-first-on-trio": 3}
"""A planted fault of each scenario, and a seed that finds it."""


def command_line(*arguments, hash_seed="random"):
    """What a run of the command line prints, in a process of its own: time is replaced before rbim is imported."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode in {0, 1}, ended.stderr
    assert not ended.stderr
    return ended.stdout.splitlines()


def simulate(*arguments, **options):
    """Return the results of seeds."""
    return [json.loads(line) for line in command_line(*arguments, "--seconds", "600", "--json", **options)]


def broken(scenario, seeds):
    return {
        f"python -m tests.simulation {scenario} --seed {each['seed']}": invariants(each)
        for each in simulate(scenario, "--seeds", seeds)
        if each["broken"]
    }


@pytest.mark.parametrize("scenario", MODULES)
def test_invariants_hold(scenario):
    assert broken(scenario, EVERYDAY[scenario]) == {}


@pytest.mark.ci
@pytest.mark.parametrize("scenario", FAILED)
def test_a_seed_that_once_failed_breaks_no_invariant(scenario):
    assert broken(scenario, FAILED[scenario]) == {}


@pytest.mark.parametrize("scenario", MODULES)
def test_a_seed_gives_the_same_trace_in_every_process(scenario):
    first, second = (
        {each["seed"]: each["digest"] for each in simulate(scenario, "--seeds", TRACED[scenario], hash_seed=hash_seed)}
        for hash_seed in ("0", "1")
    )
    assert len(first) == len(TRACED[scenario].split(","))
    assert first == second


def test_a_planted_fault_is_found():
    assert {PLANTED[fault].scenario for fault in FOUND} == {*MODULES}
    for fault, seed in FOUND.items():
        (result,) = simulate(PLANTED[fault].scenario, "--fault", fault, "--seed", str(seed))
        assert invariants(result), f"{fault} was not found"
        assert result["fault_used"]


@pytest.mark.ci
def test_every_planted_fault_applies_to_the_code():
    for scenario in MODULES:
        names = {line.partition(":")[0]: line for line in command_line(scenario, "--faults")}
        assert names == {name: f"{name}: {each.what}" for name, each in PLANTED.items() if each.scenario == scenario}
