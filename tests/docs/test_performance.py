"""The pages on performance: their figures come from the recorded run, and they show each goal."""

import json
import re

from helpers.paths import ROOT

PAGES = [ROOT / "docs" / "performance.md", ROOT / "docs" / "internals" / "performance.md"]


def test_every_goal_of_the_recorded_run_is_on_the_page():
    run = json.loads((ROOT / "benchmarks" / "measured.json").read_text(encoding="utf-8"))
    goals = [goal for result in run["results"] for goal in result["goals"] if goal["met"] is not None]
    assert len(goals) > 50
    text = PAGES[1].read_text(encoding="utf-8")
    assert [goal["name"] for goal in goals if f"| {goal['name']} | {goal['value']:,.2f} |" not in text] == []


def test_no_figure_is_typed_by_hand():
    """Outside the derived regions there are no fractions, no shares and no amounts with a unit of time."""
    for page in PAGES:
        prose = re.sub(r"<!-- derived: .*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        typed = re.findall(r"\S*\d+\.\d+\S*|\d+ ?%|\d+ (?:us|ms|seconds|minutes)\b|\w+ times (?:as|the)\b", prose)
        assert typed == []
