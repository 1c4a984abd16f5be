"""The page on performance: its figures come from the recorded run, and it shows each part of it and each missed goal."""

import json
import re

from helpers.paths import ROOT

PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


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
