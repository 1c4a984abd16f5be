"""The verdict and the record; a soak of seconds finds nothing, unless a leak is planted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .record import record
from .verdict import BOUNDS, Bound, judged, slope

ROOT = Path(__file__).parents[3]
linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it reads /proc")
EVERY = ("memory", "heap", "blocks", "descriptors", "connections", "threads", "tasks", "log")


def samples(values, *, figure="memory", requests=10):
    """Samples of one figure, a second apart, with so many requests in each second."""
    return [{"at": float(at), figure: each, "counts": {"requests": at * requests}} for at, each in enumerate(values)]


def test_the_slope_is_the_median_of_all_pairs():
    assert slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert slope([(0, 0), (1, 1), (2, 90), (3, 3), (4, 4)]) == 1  # an outlier


def test_a_figure_is_flat_if_its_trend_keeps_the_bound():
    for values, flat in [
        ([100] * 40, True),
        ([0, 50, 90, 99, 100, *[100] * 35], True),  # the warm-up does not count
        ([100 + at for at in range(40)], False),  # 20 in the second half, of which 10 are allowed
        ([100, 500] * 20, True),  # a saw has no trend
        ([200 - at for at in range(40)], True),
    ]:
        (verdict,) = judged(samples(values), {"memory": Bound("KiB", 10)})
        assert verdict.flat is flat, values


def test_a_bound_grows_with_the_requests():
    rising = samples([100 + at for at in range(40)])
    assert [judged(rising, {"memory": Bound("KiB", 0, per_thousand=each)})[0].flat for each in (90, 110)] == [False, True]


def test_a_figure_that_was_once_too_high_is_not_flat():
    assert not judged(samples([1] * 20 + [99] + [1] * 20), {"memory": Bound("KiB", 10, at_most=98)})[0].flat


def test_few_samples_are_no_verdict():
    with pytest.raises(ValueError, match="7 samples are too few"):
        judged(samples([1] * 7), BOUNDS)


def result(**changed):
    known = {"figure": "memory", "unit": "KiB", "growth": 2048.0, "allowed": 1024.0, "highest": 90, "at_most": None}
    return {
        "scenario": "client",
        "commit": "0123456789",
        "date": "2026-11-24",
        "minutes": 15.0,
        "rate": 50.0,
        "samples": [{"at": float(at), **dict.fromkeys(EVERY, at), "counts": {}} for at in range(90)],
        "counts": {"answers": 5, "requests": 7},
        "verdicts": [{**known, "flat": False}],
        "losses": ["u7 was invited, and is no member"],
        **changed,
    }


def test_a_record_has_no_name_of_this_machine(tmp_path):
    record([result()], tmp_path / "proof" / "soak.json")
    text = (tmp_path / "proof" / "soak.json").read_text(encoding="utf-8")
    document = json.loads(text)
    assert (document["commit"], document["date"]) == ("0123456789", "2026-11-24")
    (run,) = document["runs"]
    assert len(run["courses"]["memory"]) == 60
    assert list(run["counts"]) == ["requests", "answers"]
    for name in (os.uname().nodename, str(ROOT), str(Path.home()) + "/"):
        assert name not in text


def soak(*words, seconds):
    """The results of a short soak, whose bounds are those of a long one; what is not settled in seconds is left out."""
    command = [sys.executable, "-m", "tests.ci.soak", *words, "--minutes", str(seconds / 60), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@linux
def test_four_parts_lose_nothing_in_seconds():
    found = soak("--rate", "40", "--life", "3", seconds=12)
    assert [each["scenario"] for each in found] == ["client", "job", "receiver", "emulator"]
    assert {each["scenario"]: each["losses"] for each in found if each["losses"]} == {}
    assert all(each["counts"]["requests"] > 50 and each["counts"]["reloads"] > 1 for each in found)
    assert [
        each["scenario"] for each in found for it in each["verdicts"] if it["figure"] == "threads" and not it["flat"]
    ] == []


@linux
@pytest.mark.parametrize(("plant", "figure", "leaked"), [("memory", "heap", 4), ("descriptors", "descriptors", 0.1)])
def test_a_leak_that_is_planted_is_found_in_seconds(plant, figure, leaked):
    """A list that grows by 4 KiB a request, or a descriptor for ten requests that stays open.

    Judged over requests instead of seconds: a busy machine may have done most of them in the first half of the time.
    """
    (found,) = soak("emulator", "--plant", plant, "--rate", "200", "--life", "60", "--requests", "2000", seconds=60)
    over_requests = [{**each, "at": float(each["counts"].get("requests", 0))} for each in found["samples"]]
    (verdict,) = judged(over_requests, {figure: BOUNDS[figure]})
    assert not verdict.flat, (verdict, found["counts"])
    assert verdict.growth > over_requests[-1]["at"] / 2 * leaked / 2, (verdict, found["counts"])
