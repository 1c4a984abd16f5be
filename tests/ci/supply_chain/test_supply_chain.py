"""The questions find a build that differs, a file that is missing and a licence that is not in the list."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("packaging")

from . import builds, dependencies, inventory
from .environments import ROOT, Failed

HERE = Path(__file__).parent


def test_a_licence_of_the_list_is_allowed_and_any_other_one_is_not():
    for text in (
        "MIT License",
        "(MIT)",
        "Apache-2.0 OR GPL-3.0-only",
        "MPL-2.0 AND (Apache-2.0 OR MIT)",
        "BSD License; MIT",
    ):
        assert inventory.not_allowed(text) == [], text
    for text in ("GPL-3.0-only", "UNKNOWN", "GNU General Public License v3 (GPLv3)", ""):
        assert inventory.not_allowed(text) == [text]
    assert inventory.not_allowed("MIT AND GPL-2.0-only") == ["GPL-2.0-only"]


def test_the_tests_that_are_run_are_there():
    paths = [*builds.SHORT, *(f"tests/{name}" for name in dependencies.TESTS)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_build_that_depends_on_its_place_is_found(tmp_path, monkeypatch):
    copied = builds.sources

    def sources(folder):
        (copied(folder) / "rbim" / "place.py").write_text(f"PLACE = {str(folder)!r}\n", encoding="utf-8")
        return folder

    monkeypatch.setattr(builds, "sources", sources)
    with pytest.raises(Failed, match="two builds differ"):
        builds.reproducible(tmp_path)


def test_a_file_that_the_source_distribution_lacks_is_found(tmp_path, monkeypatch):
    tracked = builds.tracked()
    monkeypatch.setattr(builds, "tracked", lambda: [*tracked, "tools/needed.py"])
    with pytest.raises(Failed, match=r"has no tools/needed\.py"):
        builds.source_distribution(tmp_path)


def test_nothing_here_names_an_index_or_a_place_of_a_machine():
    record = ROOT / "docs" / "internals" / "proof" / "supply_chain.json"
    texts = [path.read_text(encoding="utf-8") for path in (*HERE.glob("*.py"), record)]
    for text in texts:
        assert not re.findall(r"https?://(?!127\.0\.0\.1)[\w.-]+", text.replace("(?!127", ""))
        assert str(ROOT) not in text
        assert str(Path.home()) + "/" not in text


def test_the_tasks_of_the_project_are_the_questions():
    done = subprocess.run(
        [sys.executable, "-m", "tests.ci.supply_chain", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = re.search(r"\{([\w,]+)\}", done.stdout)[1].split(",")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {f'cmd = "python -m tests.ci.supply_chain {name}' in text for name in listed} == {True}
