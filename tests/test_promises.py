"""The table of promises, tests/promises.toml: the pages, headings and tests that it names are there, and each has to run."""

import os
import re
import subprocess
import sys
import tomllib
from functools import cache

import pytest

from helpers.paths import DOCS, ROOT, TESTS
from helpers.promised import named_tests

TABLE = tomllib.loads((TESTS / "promises.toml").read_text(encoding="utf-8"))
PROMISES = TABLE["promise"]


@cache
def headings(page):
    """The anchors of a page, as the sites that show it make them."""
    text = re.sub(r"^( *)```.*?^\1```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in words}


def test_every_promise_has_a_place_and_a_test_and_stands_there_once():
    assert [each["says"] for each in PROMISES if not each["where"] or not each["tests"]] == []
    assert len({each["says"] for each in PROMISES}) == len(PROMISES)
    assert {frozenset(each) for each in PROMISES} == {frozenset({"about", "says", "where", "tests"})}


def test_every_place_of_a_promise_is_there():
    places = {place for each in PROMISES for place in each["where"]}
    pages = {page for page in places if (ROOT / page.partition("#")[0]).is_file()}
    assert places - pages == set()
    assert [each for each in pages if "#" in each and each.partition("#")[2] not in headings(each.partition("#")[0])] == []


def test_every_page_for_users_promises_something_or_is_said_to_promise_nothing():
    pages = {"README.md", *(f"docs/{path.name}" for path in DOCS.glob("*.md"))}
    pages -= {page for page in pages if page.endswith(".zh.md")}
    promising = {place.partition("#")[0] for each in PROMISES for place in each["where"]}
    assert pages - promising == set(TABLE["none"])


def test_every_test_of_a_promise_is_there():
    """At the end of a whole run it is also checked that each has run."""
    missing = []
    for test in named_tests():
        path, _, name = test.partition("::")
        file = ROOT / path
        if not file.is_file() or not re.search(
            rf"^\s*(async )?def {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE
        ):
            missing.append(test)
    assert missing == []


def test_only_tests_of_promises_may_be_skipped():
    assert set(TABLE["may_be_skipped"]) <= set(named_tests())


# ---------------------------------------------------------------------------- a whole run looks for each of them

PROJECT = {
    "pytest.ini": """
[pytest]
testpaths = tests
pythonpath = {tests}
markers = long: long
addopts = -m 'not long' -p no:rbim
""",
    "tests/conftest.py": """
from helpers.promised import Promised

NAMED = {{"promise": [{{"tests": {named}}}], "may_be_skipped": {{"tests/test_a.py::test_root": "only root"}}}}

def pytest_addoption(parser):
    parser.addoption("--promises", action="store_true")

def pytest_configure(config):
    from helpers.promised import named_tests

    config.pluginmanager.register(Promised(config, named_tests(NAMED)))
""",
    "tests/test_a.py": """
import pytest

def test_runs():
    pass

@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.skip("not this one"))])
def test_runs_in_part(case):
    pass

@pytest.mark.long
def test_is_long():
    pass

@pytest.mark.skip("no such program")
def test_is_skipped():
    pass

@pytest.mark.skip("only root can do it")
def test_root():
    pass
""",
}
FINE = ["test_runs", "test_runs_in_part", "test_is_long", "test_root"]
NO_SUCH = "tests/test_a.py::test_is_gone: there is no such test"
SKIPPED = "tests/test_a.py::test_is_skipped: Skipped: no such program"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")

    def run(*arguments, named):
        names = [f"tests/test_a.py::{name}" for name in named]
        for path, text in PROJECT.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text.format(tests=TESTS, named=names) if path != "tests/test_a.py" else text)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *arguments]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return run


@pytest.mark.ci
@pytest.mark.parametrize(
    ("arguments", "named", "code", "said"),
    [
        (["--promises"], FINE, 0, []),
        (["--promises"], [*FINE, "test_is_skipped", "test_is_gone"], 1, [SKIPPED, NO_SUCH]),
        (["--promises", "-n", "2"], [*FINE, "test_is_skipped"], 1, [SKIPPED]),
        (["--promises", "-k", "runs"], ["test_is_skipped"], 0, []),
        ([], ["test_is_skipped"], 0, [SKIPPED]),
    ],
    ids=["all ran", "not all", "not all with xdist", "some by words", "not asked"],
)
def test_a_whole_run_fails_if_a_named_test_has_not_run(project, arguments, named, code, said):
    returned, printed = project(*arguments, named=named)
    assert (returned, [line for line in (SKIPPED, NO_SUCH) if line in printed]) == (code, said), printed
