"""A plugin for pytest: at the end of a whole run it looks whether each test that ``tests/promises.toml`` names has run.

A run is whole if no paths, no ``-k`` and nothing like them was given. It answers for its own circle: a test that it leaves
out by its marks, or that stands in ``tests/ci`` when that is not collected, need not have run. With ``--promises`` the run
fails otherwise; without, what has not run is only told.
"""

import tomllib
from typing import Any

import pytest

from helpers.paths import TESTS

TABLE = TESTS / "promises.toml"
CI = "tests/ci/"
LEFT_OUT = "promised_left_out"
PARTIAL = (
    *("keyword", "deselect", "ignore", "ignore_glob", "lf", "last_failed", "stepwise", "collectonly", "maxfail"),
    "pyargs",
)


def named_tests(document=None):
    table = tomllib.loads(TABLE.read_text(encoding="utf-8")) if document is None else document
    may_skip = table.get("may_be_skipped", {})
    return {test: may_skip.get(test, "") for promise in table["promise"] for test in promise["tests"]}


def name_of(node_id):
    return node_id.partition("[")[0]


class Promised:
    """Notes which tests have run; in a process of xdist, which ones its marks left out."""

    def __init__(self, config, named):
        self._config = config
        self._named = named
        self._ran = set()
        self._left_out = set()
        self._skipped = {}
        self.missing = []

    def pytest_deselected(self, items):
        self._left_out.update(name for item in items if (name := name_of(item.nodeid)) in self._named)

    def pytest_runtest_logreport(self, report):
        name = name_of(report.nodeid)
        if name not in self._named:
            return
        if report.skipped:
            self._skipped[name] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        elif report.when == "call":
            self._ran.add(name)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a process of xdist has noted."""
        self._left_out.update(getattr(node, "workeroutput", {}).get(LEFT_OUT, ()))

    def is_whole(self):
        asked = self._config.args_source is pytest.Config.ArgsSource.TESTPATHS
        return asked and not any(self._config.getoption(name, default=None) for name in PARTIAL)

    def not_run(self):
        """Return the tests that had to run and have not, each with the reason, if it is known."""
        found = []
        for name, allowed in self._named.items():
            if name in self._ran or name in self._left_out or (name.startswith(CI) and not self._config.option.markexpr):
                continue
            reason = self._skipped.get(name)
            if reason is None:
                found.append(f"{name}: there is no such test")
            elif not (allowed and allowed in reason):
                found.append(f"{name}: {reason}")
        return found

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            self._config.workeroutput[LEFT_OUT] = sorted(self._left_out)
            return
        if not self.is_whole() or session.shouldstop or session.shouldfail or session.exitstatus not in {0, 1}:
            return
        self.missing = self.not_run()
        if self.missing and self._config.getoption("promises"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.missing:
            terminalreporter.section("tests of promises that have not run", sep="=")
            for line in self.missing:
                terminalreporter.line(line)
