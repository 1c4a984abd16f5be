"""The tasks of contributors: docs/internals/contributing.md, CI, the hooks and the workflow name those of pyproject.toml."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from helpers.paths import ROOT

PAGE = "docs/internals/contributing.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
TASKS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["poe"]["tasks"]


def steps(task):
    return TASKS[task].get("sequence") or [TASKS[task]["cmd"]]


def called(text):
    return set(re.findall(r"\bpoe (\w+)", text))


def test_every_task_that_the_page_names_exists_and_has_a_help():
    assert called(TEXT) - TASKS.keys() == set()
    assert all(task["help"] for task in TASKS.values())


def test_ci_runs_all_that_is_checked():
    """The tests are there as the README's command, with the coverage."""
    assert called((ROOT / ".ci" / "run").read_text(encoding="utf-8")) == {*steps("check")} - {"tests"}


CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_ci_requires_the_programs_that_tests_would_be_skipped_without():
    """A name that CI requires stands in the reason for which some test is skipped."""
    (table,) = re.findall(r"^programs='(.*?)'$", CI, re.MULTILINE | re.DOTALL)
    required = {line.split()[0] for line in table.splitlines()} | {"nats-server"}
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")]
    assert {
        name for name in required if not any(re.search(rf"(reason=|skip\().*\b{name}\b", text) for text in texts)
    } == set()


SKIPPED = """
import pytest
def test_a(): pytest.skip("promtool is not installed")
def test_b(): pytest.importorskip("no_such_package")
"""
SKIPPED_MODULE = """
import pytest
pytest.importorskip("no_such_package")
"""


@pytest.mark.ci
def test_a_test_without_a_required_program_or_package_fails(tmp_path):
    (tmp_path / "test_made.py").write_text(SKIPPED, encoding="utf-8")
    (tmp_path / "test_module.py").write_text(SKIPPED_MODULE, encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-p", "conftest", "-c", os.devnull, "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    counts = {}
    for required in ("nginx promtool", "import"):
        environment = os.environ | {"TESTS_REQUIRE": required, "PYTHONPATH": str(ROOT / "tests")}
        ran = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
        counts[required] = ran.stdout.splitlines()[-1].partition(" in ")[0]
    assert counts == {"nginx promtool": "1 failed, 2 skipped", "import": "1 failed, 1 skipped, 1 error"}
