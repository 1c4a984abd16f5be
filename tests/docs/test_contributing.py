"""The tasks of contributors: docs/CONTRIBUTING.md, CI, the hooks and the workflow name those of pyproject.toml."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from helpers.pages import blocks_of
from helpers.paths import ROOT
from rbim.dialect import Grade

PAGE = "docs/CONTRIBUTING.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
TASKS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["poe"]["tasks"]


def steps(task):
    """Return the commands or tasks that a task runs."""
    return TASKS[task].get("sequence") or [TASKS[task]["cmd"]]


def called(text):
    return set(re.findall(r"\bpoe (\w+)", text))


def parsed(path):
    return pytest.importorskip("yaml").safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_table_of_tasks_is_that_of_the_project():
    rows = re.findall(r"^\| `poe (\w+)` \| (.*) \|$", TEXT, re.MULTILINE)
    assert rows == [(name, task["help"]) for name, task in TASKS.items()]


def test_the_five_commands_are_a_task_that_corrects_and_those_of_the_check():
    (block,) = [block for block in blocks_of(PAGE, "sh") if block.title == "The tasks" and "poe" in block.text]
    assert block.text.split() == " ".join(f"poe {task}" for task in ["format", *steps("check")]).split()


def test_a_task_runs_the_tests_as_the_readme_does():
    (command,) = steps("tests")
    assert f'python -m pip install -e ".[dev]" && {command}\n' in (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_all_that_is_checked():
    """The tests are there as the README's command, with the coverage."""
    assert called((ROOT / ".ci" / "run").read_text(encoding="utf-8")) == {*steps("check"), "build"} - {"tests"}


def test_the_workflow_runs_all_that_is_checked_and_the_script():
    jobs = parsed(".github/workflows/ci.yml")["jobs"].values()
    runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert called("\n".join(runs)) == set(steps("check"))
    assert ".ci/run" in runs


def test_the_hooks_are_commands_of_the_tasks_and_download_nothing():
    (repository,) = parsed(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    entries = {hook["entry"].removesuffix(" --force-exclude") for hook in repository["hooks"]}
    commands = {command.removesuffix(" .") for task in ("lint", "docs", "format") for command in steps(task)}
    assert entries <= commands
    assert {command.replace(" --check .", "").removesuffix(" .") for command in steps("lint")} <= entries


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_the_files_of_the_repositorys_host_are_yaml(path):
    assert isinstance(parsed(path), dict)


def test_a_question_about_the_platform_asks_for_a_grade():
    fields = {field.get("id"): field for field in parsed(".github/ISSUE_TEMPLATE/platform_behaviour.yml")["body"]}
    named = {option.split(":")[0] for option in fields["grade"]["attributes"]["options"]}
    assert named == {str(grade) for grade in Grade} - {Grade.EMULATOR} | {"observed"}


def test_every_path_that_the_page_names_exists():
    """But for those of a version and of a page, and for what is built."""
    named = set(re.findall(r"`([\w./-]+/[\w./-]*|\.[\w-]+\.yaml|[\w.-]+\.(?:toml|md))`", TEXT))
    missing = {path for path in named if not (ROOT / path).exists()}
    assert missing - {"dist/"} == {"tests/kept/VERSION/", "docs/_derive/words/PAGE.toml"}


CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
PROMTOOL = "tests/docs/test_monitoring.py::test_prometheus_accepts_the_alerts"


def test_ci_requires_the_programs_that_tests_would_be_skipped_without():
    required = set(re.findall(r"^provide_for_tests (\S+)", CI, re.MULTILINE))
    assert required == {"nginx", "haproxy", "PostgreSQL", "promtool", "node", "javac", "junit5", "chromium"}
    for name in required:
        reasons = rf'reason="[^"]*\b{name}\b'
        assert any(re.search(reasons, file.read_text(encoding="utf-8")) for file in (ROOT / "tests").rglob("*.py")), name
    assert re.search(r"^export TESTS_REQUIRE=nats-server\b", CI, re.MULTILINE)


@pytest.mark.parametrize(("required", "code", "word"), [("nginx promtool", 1, "1 error"), ("nginx", 0, "1 skipped")])
def test_a_test_without_a_required_program_fails(required, code, word, tmp_path):
    environment = os.environ | {"PATH": str(tmp_path), "TESTS_REQUIRE": required}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", PROMTOOL]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (ran.returncode, word in ran.stdout) == (code, True), ran.stdout
    assert ("TESTS_REQUIRE names promtool" in ran.stdout) == bool(code)
