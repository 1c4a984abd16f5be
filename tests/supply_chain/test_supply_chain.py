"""The questions find a build that differs, a file that is missing and a licence that is not in the list."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("packaging")

from . import builds, command_line, environments, inventory
from .environments import ROOT, Failed

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "text",
    [
        "MIT",
        "MIT License",
        "(MIT)",
        "Apache Software License",
        "Apache-2.0 OR GPL-3.0-only",
        "MPL-2.0 AND (Apache-2.0 OR MIT)",
        "BSD License; MIT License",
        "Mozilla Public License 2.0 (MPL 2.0)",
    ],
)
def test_a_licence_of_the_list_is_allowed(text):
    assert inventory.not_allowed(text) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("GPL-3.0-only", ["GPL-3.0-only"]),
        ("UNKNOWN", ["UNKNOWN"]),
        ("MIT AND GPL-2.0-only", ["GPL-2.0-only"]),
        ("GNU General Public License v3 (GPLv3)", ["GNU General Public License v3 (GPLv3)"]),
        ("MIT License; GNU Lesser General Public License v2", ["GNU Lesser General Public License v2"]),
        ("", [""]),
    ],
)
def test_any_other_licence_is_not(text, wrong):
    assert inventory.not_allowed(text) == wrong


def test_a_package_without_a_licence_in_its_metadata_has_that_of_its_file():
    file = "\n\n        Apache License\n   Version 2.0, January 2004\n"
    assert inventory._licence({"License": "UNKNOWN", "LicenseText": file}) == "Apache License"
    assert inventory._licence({"License": "UNKNOWN", "LicenseText": ""}) == "UNKNOWN"
    assert inventory._licence({"License": "MIT", "LicenseText": "other"}) == "MIT"


def test_the_direct_dependencies_are_those_of_the_project():
    assert inventory._direct("core") == {"anyio", "attrs", "cattrs", "httpx"}
    assert inventory._direct("all") >= {"anyio", "aiohttp", "uvicorn", "nats-py", "opentelemetry-api"}


def test_the_tools_are_those_of_the_project_without_rbim():
    tools = environments.tools_of("gunicorn")
    assert any(each.startswith("pytest>=") for each in tools)
    assert not [each for each in tools if each.startswith(("rbim", "gunicorn"))]


@pytest.mark.slow
@pytest.mark.ci
def test_a_build_that_depends_on_its_place_is_found(tmp_path, monkeypatch):
    copied = builds.sources

    def sources(folder):
        (copied(folder) / "rbim" / "place.py").write_text(f"PLACE = {str(folder)!r}\n", encoding="utf-8")
        return folder

    monkeypatch.setattr(builds, "sources", sources)
    with pytest.raises(Failed, match="two builds differ"):
        builds.reproducible(tmp_path)


@pytest.mark.slow
@pytest.mark.ci
def test_a_file_that_the_source_distribution_lacks_is_found(tmp_path, monkeypatch):
    tracked = builds.tracked()
    monkeypatch.setattr(builds, "tracked", lambda: [*tracked, "tools/needed.py"])
    with pytest.raises(Failed, match=r"has no tools/needed\.py"):
        builds.source_distribution(tmp_path)


def test_an_answer_of_no_is_an_exit_code_and_records_nothing(tmp_path, monkeypatch, capsys):
    def no(_):
        raise Failed("it does not work")

    questions = {"lowest": lambda _: {"passed": "3 passed"}, "newest": no}
    monkeypatch.setattr(command_line, "QUESTIONS", questions)
    path = tmp_path / "proof" / "supply_chain.json"
    assert command_line.main(["newest", "lowest", "--record", str(path)]) == 1
    assert capsys.readouterr().out == 'newest: no: it does not work\nlowest: yes: {"passed": "3 passed"}\n'
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document.keys() == {"lowest"}
    assert document["lowest"].keys() == {"commit", "date", "python", "passed"}


def test_a_command_that_fails_says_the_end_of_what_it_wrote():
    with pytest.raises(Failed, match=r"exit code 3\nx+the end"):
        environments.run([sys.executable, "-c", "print('x' * 9000 + 'the end'); raise SystemExit(3)"])


def test_nothing_here_names_an_index_or_a_place_of_a_machine():
    record = ROOT / "docs" / "proof" / "supply_chain.json"
    texts = [path.read_text(encoding="utf-8") for path in (*HERE.glob("*.py"), record)]
    for text in texts:
        assert not re.findall(r"https?://(?!127\.0\.0\.1)[\w.-]+", text.replace("(?!127", ""))
        assert str(ROOT) not in text
        assert str(Path.home()) + "/" not in text


def test_the_tasks_of_the_project_are_the_questions():
    done = subprocess.run(
        [sys.executable, "-m", "tests.supply_chain", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = re.search(r"\{([\w,]+)\}", done.stdout)[1].split(",")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert listed == [*command_line.QUESTIONS]
    assert {f'cmd = "python -m tests.supply_chain {name}' in text for name in listed} == {True}
