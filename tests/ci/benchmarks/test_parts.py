"""The benchmarks' parts give figures, and the charts are drawn. Each runs in a process of its own, as they do for users."""

import json
import subprocess
import sys

import pytest

from helpers.paths import ROOT


def python(*arguments, codes=(0,)):
    ended = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode in codes, ended.stderr
    return ended.stdout


def quick(part):
    code = (
        f"import json; from benchmarks.results import Options; from benchmarks import {part}; "
        f"print(json.dumps({part}.run(Options(rounds=1, quick=True)).document()))"
    )
    document = json.loads(python("-c", code))
    assert document["part"] == part
    for table in document["tables"]:
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    tables = [{name: cells for name, *cells in table["rows"]} for table in document["tables"]]
    return tables, {goal["name"]: goal for goal in document["goals"]}


@pytest.mark.parametrize("part", ["import_time", "tenants", "congestion"])
def test_a_part_gives_figures_and_goals(part):
    tables, goals = quick(part)
    assert all(rows for rows in tables)
    assert goals
    for goal in goals.values():
        assert goal["at_most"] is None or goal["met"] == (goal["value"] <= goal["at_most"])
