"""The tests of an area, and a forked process for each mutant: it imports rbim with it, and runs tests until one fails."""

import contextlib
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from math import inf

import pytest
from attrs import field, frozen, mutable

from .mutation import ROOT

LEAST_TIME, TIMES = 8.0, 10.0  # A test's time-out in seconds: so many, and so many times what it takes without a mutant
BUDGET = 25.0  # seconds of tests for a mutant, by the time that they take without it: the fastest ones first
MEMORY = 6 * 1024**3  # bytes that a process may use: a change can make an endless loop

CERTAIN = 0.3  # seconds: a test that takes longer may fail since the machine is busy, so it must fail again
OPTIONS = ["-q", "-s", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
INTERFACE = ("tests/test_public_api.py", "tests/test_earlier_files.py")
"""The tests that compare constructors and constants with a list, and with files: run for mutants outside of functions."""


@frozen
class Result:
    """The result for a mutant: ``verdict`` is killed, timed out or survived; ``test`` the one that noticed it."""

    key: str
    verdict: str
    test: str
    tests: int
    seconds: float
    digest: str


@mutable
class Test:
    """A test without mutants: the seconds that it takes, and the lines of each module that it runs."""

    seconds: float
    lines: dict = field(factory=dict)


UNKNOWN = Test(5.0)


def run_area(area, mutants, *, cache, report, ends=inf, budget=BUDGET):
    """Try mutants with the tests of an area; ``report`` gets each result at once. The process must not have loaded rbim.

    None is begun after ``ends``, in seconds of the monotonic clock.
    """
    known, kills = _baseline(area, cache), {}
    for mutant in mutants:
        if time.monotonic() > ends:
            return
        result = _tried(mutant, _chosen(mutant, known, kills, budget), known)
        if result.verdict == "killed":
            place = (mutant.function, result.test)
            kills[place] = kills.get(place, 0) + 1
        report(result)


# ---------------------------------------------------------------------- a mutant in a process


class ImportMutant(MetaPathFinder):
    """An import hook: one module is imported with a mutant's text."""

    def __init__(self, mutant):
        self._name = mutant.module
        self._path = str(ROOT / mutant.path)
        self._text = mutant.text()

    def use(self):
        """Import the module now: pytest puts a hook of its own before others as soon as it begins."""
        assert self._name not in sys.modules
        sys.meta_path.insert(0, self)
        importlib.import_module(self._name)

    def find_spec(self, fullname, path=None, target=None):  # noqa: ARG002  # a protocol
        if fullname != self._name:
            return None
        return spec_from_file_location(fullname, self._path, loader=_Loader(fullname, self._path, self._text))


class _Loader(SourceFileLoader):
    def __init__(self, name, path, text):
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname):  # noqa: ARG002  # a protocol
        return compile(self._text, self.path, "exec", dont_inherit=True)


# ---------------------------------------------------------------------- processes


def _tried(mutant, chosen, known):
    """Try a mutant. A test that takes long must fail with it twice; otherwise the next tests decide."""
    began, count, names = time.monotonic(), 0, list(chosen)
    verdict, test = "survived", ""
    while names or not (mutant.function or count):
        most = 60 + sum(_time_out(known.get(name, UNKNOWN)) for name in names)
        code, begun, failed = _watched(lambda say, names=names: _run(mutant, names, known, say), most)
        count += len(begun)
        if not code:
            break
        test = failed or (begun[-1] if begun else "(import)")
        verdict = "timed out" if code == -signal.SIGALRM else "killed"
        slow = test in known and known[test].seconds > CERTAIN
        if not slow or _watched(lambda say, test=test: _run(mutant, [test], known, say), most)[0]:
            break
        verdict, names, test = "survived", [name for name in names[names.index(test) + 1 :] if name != test], ""
    return Result(mutant.key, verdict, test, count, round(time.monotonic() - began, 2), mutant.digest)


def _watched(run, most):
    """Run a function in a forked process with a folder of its own; return its exit code and what it said."""
    folder = tempfile.mkdtemp(prefix="mutant-")
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 2
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            code = run(lambda text: os.write(writing, f"{text}\n".encode()))
        finally:
            os._exit(code)
    os.close(writing)
    os.set_blocking(reading, False)
    said, done, ends = b"", 0, time.monotonic() + most
    while not done:
        done, status = os.waitpid(process, os.WNOHANG)
        with contextlib.suppress(BlockingIOError):
            while part := os.read(reading, 65536):
                said += part
        if time.monotonic() > ends:
            os.kill(process, signal.SIGALRM)
        time.sleep(0.005)
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # what its tests have started
    shutil.rmtree(folder, ignore_errors=True)
    lines = said.decode(errors="replace").splitlines()
    failed = next((line[2:] for line in lines if line.startswith("F ")), None)
    return os.waitstatus_to_exitcode(status), [line[2:] for line in lines if line.startswith("B ")], failed


# ---------------------------------------------------------------------- tests


class _Plugin:
    """Says which test begins and which fails, and ends one that takes too long by SIGALRM."""

    def __init__(self, known, say):
        self._known, self._say = known, say

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._say(f"B {item.nodeid}")
        signal.setitimer(signal.ITIMER_REAL, _time_out(self._known.get(item.nodeid, UNKNOWN)))
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._say(f"F {report.nodeid}")


def _run(mutant, names, known, say):
    """Import rbim with a mutant and run tests until one fails; return the exit code of pytest."""
    sys.path.insert(0, str(ROOT))
    ImportMutant(mutant).use()
    return _pytest([*names, *(() if mutant.function else INTERFACE)], _Plugin(known, say))


def _pytest(tests, plugin):
    from hypothesis import Phase, settings

    settings.register_profile("mutants", database=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")
    return int(pytest.main([*OPTIONS, "-x", *tests], plugins=[plugin]))


def _time_out(test):
    return LEAST_TIME + TIMES * test.seconds


def _chosen(mutant, known, kills, budget):
    """Return the tests for a mutant: those that noticed others of its function, then the fastest, within the budget.

    For one of a module's own level, all of the area; those that run functions of this module come first.
    """
    first, last = mutant.lines
    statement = set(range(first, last + 1))
    names = [name for name, test in known.items() if not mutant.function or test.lines.get(mutant.path, set()) & statement]

    def order(name):
        return -kills.get((mutant.function, name), 0), mutant.path not in known[name].lines, known[name].seconds

    chosen, seconds = [], 0.0
    for name in sorted(names, key=order):
        seconds += known[name].seconds
        if chosen and seconds > budget:
            break
        chosen.append(name)
    return chosen


# ---------------------------------------------------------------------- without mutants


class _Noting:
    """Notes the seconds and the lines of each test of an area. One that fails notices nothing, so it is left out."""

    def __init__(self, area):
        from coverage import Coverage

        self._modules = {str(ROOT / name): name for name in area.paths()}
        self._left_out = area.left_out
        self._tests, self._failed = {}, set()
        self._coverage = Coverage(data_file=None, include=list(self._modules), config_file=False, branch=False)
        self._coverage.start()

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if getattr(item, "originalname", item.name) not in self._left_out]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._coverage.switch_context(item.nodeid)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._tests[item.nodeid] = Test(time.monotonic() - began)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._failed.add(report.nodeid)

    def rows(self):
        self._coverage.stop()
        data = self._coverage.get_data()
        for name in data.measured_files():
            for line, contexts in data.contexts_by_lineno(name).items():
                for context in set(contexts) & self._tests.keys():
                    self._tests[context].lines.setdefault(self._modules[name], []).append(line)
        tests = {name: test for name, test in self._tests.items() if name not in self._failed and test.lines}
        return {name: {"seconds": round(test.seconds, 3), "lines": test.lines} for name, test in tests.items()}


def _baseline(area, cache):
    """Return the tests of an area, each run once without a mutant; they are noted for this text of tests and modules."""
    paths = [ROOT / name.partition("::")[0] for name in area.tests]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*(ROOT / name for name in area.paths()), *files)))
    noted = cache / f"{area.name.replace(' ', '-')}-{digest.hexdigest()[:16]}.json"

    def note(_):
        noting = _Noting(area)
        _pytest(["--maxfail=1000", *area.tests], noting)
        noted.write_text(json.dumps(noting.rows()), encoding="utf-8")
        return 0

    if not noted.exists():
        cache.mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(ROOT))
        if code := _watched(note, 3600)[0]:
            raise RuntimeError(f"the tests of {area.name} ended with {code} without a mutant")
    rows = json.loads(noted.read_text(encoding="utf-8"))
    return {
        name: Test(row["seconds"], {module: set(lines) for module, lines in row["lines"].items()})
        for name, row in rows.items()
    }
