"""Every day some seeds of each scenario, and every seed that ever failed; the slow form plants faults and looks for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import planted_jetstream
from .planted_faults import PLANTED
from .runner import invariants

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="each seed runs in a process that is forked")

assert planted_jetstream.__all__ == []  # imported for its faults

ROOT = Path(__file__).parents[2]

SEEDS = {
    "job": "1-20,27,32,35,37,90,121,448,657,738",
    "inbox": "1-20,33,53,56,85",
    "service": "1-20,71,110,200,228,240,415,925,985,1016",
    "jetstream_inbox": "1,2,4,6-8,10,84,271,477,751",
    "trio_inbox": "1-6",
}
"""The seeds of every day: some, and every one that ever failed. Those of the inbox meet every situation."""

TRACED = {
    "job": "1,6,16,21",
    "inbox": "16,23,24,62",
    "service": "1,3,6,29",
    "jetstream_inbox": "1,4",
    "trio_inbox": "2,3",
}
"""Seeds whose traces are compared between processes.

Jobs: some with deaths, with a second operator and with a stalled disk. Inboxes: some with deploys and a disk that errs, with
processes that are killed, frozen and lose power, and with a replay. Services: some with callers that give up, with
several rates, with a job beside them, and one whose client is left under load. On machines: some with servers that die, and
connections that break.
"""


def simulate(*arguments, hash_seed="random"):
    """The results of a run of the command line, in a process of its own: time is replaced before rbim is imported."""
    command = [sys.executable, "-m", "tests.simulation", *arguments, "--seconds", "600", "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode in {0, 1}, ended.stderr
    assert not ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize("scenario", SEEDS)
def test_invariants_hold(scenario):
    broken = {
        f"python -m tests.simulation {scenario} --seed {each['seed']}": invariants(each)
        for each in simulate(scenario, "--seeds", SEEDS[scenario])
        if each["broken"]
    }
    assert not broken


@pytest.mark.parametrize("scenario", SEEDS)
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=[pytest.mark.slow, pytest.mark.ci])])
def test_a_seed_gives_the_same_trace_in_every_process(scenario, processes):
    traces = [
        {each["seed"]: each["digest"] for each in simulate(scenario, "--seeds", TRACED[scenario], hash_seed=str(number))}
        for number in range(processes)
    ]
    assert len(traces[0]) == len(TRACED[scenario].split(","))
    assert traces[1:] == traces[:1] * (processes - 1)


@pytest.mark.parametrize("scenario", SEEDS)
def test_every_planted_fault_applies_to_the_code(scenario):
    command = [sys.executable, "-m", "tests.simulation", scenario, "--faults"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("\n") == sum(each.scenario == scenario for each in PLANTED.values())


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_within_200_seeds(fault):
    scenario = PLANTED[fault].scenario
    *_, last = simulate(scenario, "--fault", fault, "--seeds", "1-200", "--stop")
    assert invariants(last), f"{last['seed']} seeds, and {fault} was not found"
    assert last["fault_used"]
