"""The pages on performance: their figures come from the recorded run, and they show each goal that is missed."""

import json
import re

from helpers.paths import ROOT

MEASURED = (ROOT / "docs" / "internals" / "performance.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "transports.md").read_text(encoding="utf-8")
FOR_USERS = PAGE.partition("### CPU time\n")[2].partition("\n## ")[0]


def test_every_missed_goal_of_the_recorded_run_is_on_the_page():
    run = json.loads((ROOT / "benchmarks" / "measured.json").read_text(encoding="utf-8"))
    goals = [goal for result in run["results"] for goal in result["goals"] if goal["met"] is not None]
    assert len(goals) > 50
    missed = [goal for goal in goals if not goal["met"]]
    assert [goal["name"] for goal in missed if f"| {goal['name']} | {goal['value']:,.2f} |" not in MEASURED] == []
    assert f"{len(goals) - len(missed)} of {len(goals)} goals are met" in MEASURED


def test_no_figure_is_typed_by_hand():
    """Outside the derived regions there are no fractions, no shares and no amounts with a unit of time."""
    for text in (MEASURED, FOR_USERS):
        assert "<!-- derived: " in text
        prose = re.sub(r"<!-- derived: .*?<!-- end -->", "", text, flags=re.DOTALL)
        typed = re.findall(r"\S*\d+\.\d+\S*|\d+ ?%|\d+ (?:us|ms|seconds|minutes)\b|\w+ times (?:as|the)\b", prose)
        assert typed == []
