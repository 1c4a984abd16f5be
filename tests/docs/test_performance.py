"""The page on performance: its figures come from the recorded run, and it shows each part of it and each missed goal."""

import json
import re

import pytest

from helpers.pages import docs_module
from helpers.paths import ROOT

PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
RUN = {
    "versions": "Python 3.11.7, rbim 0.1.0",
    "machine": "Linux x86_64, 2 cores",
    "results": [
        {
            "part": "throughput",
            "rounds": 5,
            "seconds": 600.0,
            "tables": [
                {
                    "title": "CPU ms per 1000 calls, no latency, by calls in flight",
                    "columns": ["client", "1", "100"],
                    "rows": [["aiohttp by hand", 200.04, 100.0], ["rbim over X", 1234.56, 50.0], ["floor", None, 10.0]],
                    "digits": 1,
                    "note": "",
                }
            ],
            "goals": [
                {"name": "good", "value": 0.5, "at_most": 1.7, "at_least": None, "met": True},
                {"name": "bad", "value": 2.0, "at_most": 1.7, "at_least": None, "met": False},
                {"name": "low", "value": 1500.0, "at_most": None, "at_least": 2000, "met": False},
                {"name": "just so", "value": 3.0, "at_most": None, "at_least": None, "met": None},
            ],
            "notes": ["It costs 2.00 times as much.", "another"],
        }
    ],
}


@pytest.fixture
def regions(tmp_path, monkeypatch):
    performance = docs_module("_derive.performance")
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(RUN), encoding="utf-8")
    monkeypatch.setattr(performance, "RECORDED", path)
    return performance.regions()


def test_a_table_of_the_run_is_a_table_of_the_page(regions):
    assert regions["no latency"]().splitlines() == [
        "",
        "CPU ms per 1000 calls, no latency, by calls in flight:",
        "",
        "| client | 1 | 100 |",
        "| --- | ---: | ---: |",
        "| aiohttp by hand | 200.0 | 100.0 |",
        "| rbim over X | 1,234.6 | 50.0 |",
        "| floor | - | 10.0 |",
        "",
    ]
    assert regions["tls"]() == "\n"  # it was not measured


def test_missed_goals_come_first_and_are_called_so(regions):
    assert regions["goals"]().splitlines() == [
        "",
        "| Missed | measured | goal |",
        "| --- | ---: | ---: |",
        "| bad | 2.00 | at most 1.7 |",
        "| low | 1,500.00 | at least 2000 |",
        "",
        "| Met | measured | goal |",
        "| --- | ---: | ---: |",
        "| good | 0.50 | at most 1.7 |",
        "",
        "| Without a goal | measured |",
        "| --- | ---: |",
        "| just so | 3.00 |",
        "",
    ]
    assert regions["goals in short"]().strip() == "1 of 3 [goals](#goals) are met, 2 are missed."


def test_sentences_are_made_of_the_run(regions):
    where = "on one shared virtual machine (Linux x86_64, 2 cores)"
    how = "as medians of 5 interleaved rounds: Python 3.11.7, rbim 0.1.0."
    assert " ".join(regions["run"]().split()) == f"It took 10 minutes to measure them, {where}, {how}"
    assert regions["notes on growth"]() == "\n- It costs 2.00 times as much.\n\n"
    rows = regions["in short"]().splitlines()[3:]
    assert rows == ["| rbim over X | 50 | 0.50 | - | - |", "| aiohttp by hand | 100 | 1.00 | - | - |", ""]


def test_every_part_of_the_recorded_run_is_on_the_page():
    run = json.loads((ROOT / "benchmarks" / "measured.json").read_text(encoding="utf-8"))
    titles = [table["title"] for result in run["results"] for table in result["tables"]]
    assert titles
    for title in titles:
        assert f"{title}:" in " ".join(PAGE.split()), title
    for goal in (goal for result in run["results"] for goal in result["goals"]):
        assert f"| {goal['name']} | {goal['value']:,.2f} |" in PAGE


def test_no_figure_is_typed_by_hand():
    """Outside the derived regions there are no fractions, no shares and no amounts with a unit of time."""
    prose = re.sub(r"<!-- derived: .*?<!-- end -->", "", PAGE, flags=re.DOTALL)
    typed = re.findall(r"\S*\d+\.\d+\S*|\d+ ?%|\d+ (?:us|ms|seconds|minutes)\b|\w+ times (?:as|the)\b", prose)
    assert typed == []
