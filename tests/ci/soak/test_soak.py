"""A soak of seconds finds nothing, unless a leak is planted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .verdict import BOUNDS, judged

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it reads /proc")


def soak(*words, seconds):
    """The results of a short soak, whose bounds are those of a long one; what is not settled in seconds is left out."""
    command = [sys.executable, "-m", "tests.ci.soak", *words, "--minutes", str(seconds / 60), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_parts_work_for_seconds():
    found = soak("--rate", "40", "--life", "3", seconds=12)
    assert [each["scenario"] for each in found] == ["client", "job", "receiver"]
    for each in found:
        assert each["counts"]["requests"] > 50, each["counts"]
        assert each["counts"]["reloads"] > 1, each["counts"]
    (calls, jobs, handled) = (each["counts"] for each in found)
    assert min(calls["answers"], jobs["rows done"], handled["handlers called"]) > 50
    assert [
        each["scenario"] for each in found for it in each["verdicts"] if (it["figure"], it["flat"]) == ("threads", False)
    ] == []


@pytest.mark.parametrize(("plant", "figure", "leaked"), [("memory", "heap", 4), ("descriptors", "descriptors", 0.1)])
def test_a_leak_that_is_planted_is_found_in_seconds(plant, figure, leaked):
    """A list that grows by 4 KiB a request, or a descriptor for ten requests that stays open.

    Judged over requests instead of seconds: a busy machine may have done most of them in the first half of the time.
    """
    (found,) = soak("client", "--plant", plant, "--rate", "200", "--life", "60", "--requests", "2000", seconds=60)
    over_requests = [{**each, "at": float(each["requests"])} for each in found["samples"]]
    (verdict,) = judged(over_requests, {figure: BOUNDS[figure]})
    assert not verdict.flat, (verdict, found["counts"])
    assert verdict.growth > over_requests[-1]["at"] / 2 * leaked / 2, (verdict, found["counts"])
