"""The tests of an area, imported once, and a forked process for each mutant.

A process that is forked has all modules and tests loaded, so that a mutant costs the time of its tests alone. A mutant
at the level of a module is imported in a process of its own: functions, classes and constants are made anew with it.
"""

from __future__ import annotations

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
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from attrs import asdict, field, frozen, mutable

from .live import ImportMutant, NotInPlace, in_place, loaded_functions, put_in
from .mutation import ROOT

if TYPE_CHECKING:
    from pathlib import Path
    from types import FunctionType

    from .areas import Area
    from .live import Place
    from .mutation import Mutant

__all__ = ["BUDGET", "Result", "run_area", "run_pairs"]

Say = Callable[[str], None]
Run = Callable[[Sequence[str], Say], None]
Passes = Callable[[str], bool]

LEAST_TIME, TIMES = 8.0, 10.0
"""A test's time-out in seconds: so many, and so many times what it takes without a mutant."""

BUDGET = 25.0
"""Seconds of tests for a mutant, by the time that they take without it: the fastest ones first."""

MEMORY = 6 * 1024**3  # bytes that a process may use: a change can make an endless loop

CERTAIN = 0.3
"""Seconds: a test that takes longer may fail since the machine is busy, so it must fail again."""

OPTIONS = ["-q", "-s", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]


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
    lines: dict[str, set[int]] = field(factory=dict)


UNKNOWN = Test(5.0)
INTERFACE = ("tests/test_public_api.py", "tests/test_kept_files.py")
"""The tests that compare constructors and constants with a list, and with files: run for mutants outside of functions."""


def run_area(
    area: Area,
    mutants: Sequence[Mutant],
    *,
    cache: Path,
    report: Callable[[Result], None],
    ends: float = inf,
    budget: float = BUDGET,
) -> None:
    """Try mutants with the tests of an area; ``report`` gets each result at once. The process must not have loaded rbim.

    None is begun after ``ends``, in seconds of the monotonic clock.
    """
    in_module = [mutant for mutant in mutants if not mutant.function]
    in_function = [mutant for mutant in mutants if mutant.function]
    left = _forked(lambda say: _warm(area, in_function, cache, ends, budget, say), _reporter(report))
    in_module += [mutant for mutant in in_function if mutant.key in left]
    known = _known(area, cache)
    for mutant in in_module:
        if time.monotonic() > ends:
            return
        chosen = _chosen(mutant, known, set(known), {}, budget)
        report(_tried(mutant, chosen, known, lambda names, say, m=mutant: _cold(m, names, known, say)))


def run_pairs(pairs: Sequence[tuple[Mutant, str]], *, report: Callable[[Result], None]) -> None:
    """Try each mutant with one test, which must pass without it. The process must not have loaded rbim."""
    known = {name: UNKNOWN for _, name in pairs}
    in_function = [(mutant, name) for mutant, name in pairs if mutant.function]
    _forked(lambda say: _warm_pairs(in_function, known, say), _reporter(report))
    for mutant, name in pairs:
        if not mutant.function:
            report(_tried(mutant, [name], known, lambda names, say, m=mutant: _cold(m, names, known, say)))


def _warm_pairs(pairs: Sequence[tuple[Mutant, str]], known: dict[str, Test], say: Callable[[Any], None]) -> None:
    def loop(items: dict[str, pytest.Item]) -> None:
        for mutant, _ in pairs:
            importlib.import_module(mutant.module)
        trial = _Trial(items, plugin, known, loaded_functions())
        for mutant, name in pairs:
            say(asdict(trial.result(mutant, [name])))

    plugin = _Plugin(loop)
    _collect([name for _, name in pairs], plugin)


# ---------------------------------------------------------------------- processes


def _forked(run: Callable[[Callable[[Any], None]], None], heard: Callable[[Any], None]) -> set[str]:
    """Run a function in a forked process and hear what it says, line by line; return the keys that it could not do."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as stream:

                def say(value: Any) -> None:
                    stream.write(json.dumps(value) + "\n")
                    stream.flush()

                run(say)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    left = set()
    with os.fdopen(reading) as stream:
        for line in stream:
            value = json.loads(line)
            if "left" in value:
                left.add(value["left"])
            else:
                heard(value)
    _, status = os.waitpid(process, 0)
    if status:
        raise RuntimeError(f"the tests of an area ended with {os.waitstatus_to_exitcode(status)}")
    return left


def _reporter(report: Callable[[Result], None]) -> Callable[[Any], None]:
    return lambda value: report(Result(**value))


def _tried(
    mutant: Mutant, chosen: Sequence[str], known: dict[str, Test], run: Run, passes: Passes = lambda _: True
) -> Result:
    """Try a mutant in a process of its own, which says the name of each test that it begins, and of one that fails.

    A busy machine is no reason for a kill: the test must pass without the mutant (``passes``), and one that takes long must
    fail with it again. Otherwise the others decide.
    """
    began = time.monotonic()
    count, names = 0, list(chosen)
    verdict, test = "survived", ""
    while names or not (mutant.function or count):
        most = 60 + sum(_time_out(known[name]) for name in names)
        code, begun, failed = _watched(lambda say, names=names: run(names, say), most)
        count += len(begun)
        if not code:
            break
        test = failed or (begun[-1] if begun else "(import)")
        verdict = "timed out" if code == -signal.SIGALRM else "killed"
        slow = test in known and known[test].seconds > CERTAIN
        if not slow and passes(test):
            break
        if slow and passes(test) and _watched(lambda say, test=test: run([test], say), most)[0]:
            break
        verdict, names, test = "survived", [name for name in names[names.index(test) + 1 :] if name != test], ""
    seconds = round(time.monotonic() - began, 2)
    return Result(mutant.key, verdict, test, count, seconds, mutant.digest)


def _watched(run: Callable[[Callable[[str], None]], None], most: float) -> tuple[int, list[str], str | None]:
    """Run a function in a forked process with a folder of its own; return its exit code and what it said."""
    folder = tempfile.mkdtemp(prefix="mutant-")
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        code = 3
        try:
            os.setsid()
            os.close(reading)
            _quiet()
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            run(lambda text: os.write(writing, f"{text}\n".encode()) and None)
            code = 0
        except _Failed:
            code = 1
        except BaseException:
            code = 2
        finally:
            os._exit(code)
    os.close(writing)
    said, status = _heard(process, reading, most)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # what its tests have started
    shutil.rmtree(folder, ignore_errors=True)
    lines = said.decode(errors="replace").splitlines()
    failed = next((line[2:] for line in lines if line.startswith("F ")), None)
    return os.waitstatus_to_exitcode(status), [line[2:] for line in lines if line.startswith("B ")], failed


def _heard(process: int, reading: int, most: float) -> tuple[bytes, int]:
    os.set_blocking(reading, False)
    said, ends = b"", time.monotonic() + most
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        with contextlib.suppress(BlockingIOError):
            while part := os.read(reading, 65536):
                said += part
        if done:
            os.close(reading)
            return said, status
        if time.monotonic() > ends:
            os.kill(process, signal.SIGALRM)
        time.sleep(0.005)


def _quiet() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


class _Failed(Exception):
    """A test has failed."""


# ---------------------------------------------------------------------- tests


class _Plugin:
    """What pytest does after it has collected the tests of an area."""

    def __init__(self, loop: Callable[[dict[str, pytest.Item]], None], left_out: Sequence[str] = ()) -> None:
        self._loop = loop
        self._left_out = left_out
        self.reported: Callable[[pytest.TestReport], None] = lambda _: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = session.items if not self._left_out else [i for i in session.items if not self._is_left_out(i)]
        self._loop({item.nodeid: item for item in items})
        return True

    def _is_left_out(self, item: pytest.Item) -> bool:
        return getattr(item, "originalname", item.name) in self._left_out

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reported(report)


def _collect(tests: Sequence[str], plugin: _Plugin) -> None:
    from hypothesis import Phase, settings

    settings.register_profile("mutants", database=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")
    code = pytest.main([*OPTIONS, *tests], plugins=[plugin])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise RuntimeError(f"pytest ended with {code!r}")


def _run(items: Sequence[pytest.Item], plugin: _Plugin, known: dict[str, Test], say: Callable[[str], None]) -> None:
    """Run tests until one fails. A test that takes too long ends the process by SIGALRM."""
    failed: list[str] = []
    plugin.reported = lambda report: failed.append(report.nodeid) if report.failed else None
    for item, following in zip(items, [*items[1:], None], strict=True):
        say(f"B {item.nodeid}")
        signal.setitimer(signal.ITIMER_REAL, _time_out(known.get(item.nodeid, UNKNOWN)))
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if failed:
            say(f"F {failed[0]}")
            raise _Failed


def _time_out(test: Test) -> float:
    return LEAST_TIME + TIMES * test.seconds


def _warm(
    area: Area, mutants: Sequence[Mutant], cache: Path, ends: float, budget: float, say: Callable[[Any], None]
) -> None:
    """Collect the tests once; then try mutants in functions, each in a process that is forked here."""
    sys.path.insert(0, str(ROOT))

    def loop(items: dict[str, pytest.Item]) -> None:
        for path in area.paths():
            importlib.import_module(path.removesuffix(".py").replace("/", "."))
        known = _baseline(area, items, plugin, cache)
        if not mutants:
            return
        trial = _Trial(items, plugin, known, loaded_functions())
        kills: dict[tuple[str, str], int] = {}
        for mutant in mutants:
            if time.monotonic() > ends:
                return
            chosen = _chosen(mutant, known, {name for name in items if _touches(known.get(name), mutant)}, kills, budget)
            try:
                result = trial.result(mutant, chosen)
            except NotInPlace:
                say({"left": mutant.key})
                continue
            if result.verdict == "killed":
                place = (mutant.function, result.test)
                kills[place] = kills.get(place, 0) + 1
            say(asdict(result))

    plugin = _Plugin(loop, area.left_out)
    _collect(area.tests, plugin)


@frozen
class _Trial:
    """What mutants in functions need: the collected tests, and the functions as they are loaded."""

    items: dict[str, pytest.Item]
    plugin: _Plugin
    known: dict[str, Test]
    loaded: dict[Place, list[FunctionType]]

    def result(self, mutant: Mutant, chosen: Sequence[str]) -> Result:
        """Try a mutant with some tests. Raises NotInPlace."""
        changes = in_place(mutant, self.loaded)

        def run(names: Sequence[str], say: Say) -> None:
            put_in(changes)
            _run([self.items[name] for name in names], self.plugin, self.known, say)

        return _tried(mutant, chosen, self.known, run, self.passes)

    def passes(self, name: str) -> bool:
        """Return whether a test passes without a mutant."""
        if name not in self.items:
            return True
        most = 60 + _time_out(self.known[name])
        return not _watched(lambda say: _run([self.items[name]], self.plugin, self.known, say), most)[0]


def _cold(mutant: Mutant, chosen: Sequence[str], known: dict[str, Test], tell: Callable[[str], None]) -> None:
    """Import everything with a mutant, and run tests."""
    sys.path.insert(0, str(ROOT))
    ImportMutant(mutant).use()

    def loop(items: dict[str, pytest.Item]) -> None:
        if not items:
            raise _Failed
        interface = [item for name, item in items.items() if name.startswith(INTERFACE)]
        _run([*(items[name] for name in chosen if name in items), *interface], plugin, known, tell)
        done.append(True)

    done: list[bool] = []
    plugin = _Plugin(loop)
    files = dict.fromkeys(name.partition("::")[0] for name in chosen)
    _collect([*files, *INTERFACE], plugin)
    if not done:
        raise _Failed


def _touches(test: Test | None, mutant: Mutant) -> bool:
    if test is None:
        return False
    first, last = mutant.lines
    return not test.lines.get(mutant.path, set()).isdisjoint(range(first, last + 1))


def _chosen(
    mutant: Mutant, known: dict[str, Test], names: set[str], kills: dict[tuple[str, str], int], budget: float
) -> list[str]:
    """Return the tests for a mutant: those that noticed others of its function, then the fastest, within the budget.

    For one of a module's own level, those that run functions of this module come first.
    """

    def first(name: str) -> tuple[object, ...]:
        test = known[name]
        return -kills.get((mutant.function, name), 0), mutant.path not in test.lines, test.seconds

    chosen, seconds = [], 0.0
    for name in sorted(names, key=first):
        seconds += known[name].seconds
        if chosen and seconds > budget:
            break
        chosen.append(name)
    return chosen


# ---------------------------------------------------------------------- without mutants


def _known(area: Area, cache: Path) -> dict[str, Test]:
    """Return what is noted of the area's tests, by their names: nothing of a file that has changed since."""
    files = (_cache_file(area, path, cache) for path in _test_files(area))
    return {name: test for path in files if path.exists() for name, test in _read(path).items()}


def _cache_file(area: Area, tests: Path, cache: Path) -> Path:
    """Where the tests of one file are noted, for this text of theirs and of the area's modules."""
    digest = hashlib.sha256()
    for path in (*(ROOT / name for name in area.paths()), tests):
        digest.update(path.read_bytes())
    return cache / f"{area.name.replace(' ', '-')}-{tests.stem}-{digest.hexdigest()[:16]}.json"


def _test_files(area: Area) -> list[Path]:
    paths = (ROOT / name.partition("::")[0] for name in area.tests)
    return [path for each in paths for path in (sorted(each.rglob("test_*.py")) if each.is_dir() else [each])]


def _read(path: Path) -> dict[str, Test]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Test(row["seconds"], {module: set(lines) for module, lines in row["lines"].items()})
        for name, row in rows.items()
    }


def _baseline(area: Area, items: dict[str, pytest.Item], plugin: _Plugin, cache: Path) -> dict[str, Test]:
    """Run each test without a mutant and note which lines it runs. One that fails notices nothing, so it is left out."""
    cache.mkdir(parents=True, exist_ok=True)
    for tests in _test_files(area):
        path = _cache_file(area, tests, cache)
        if path.exists():
            continue
        own = [item for item in items.values() if item.path == tests]
        code, _, _ = _watched(lambda say, path=path, own=own: _noted(area, own, plugin, path), 3600)  # noqa: ARG005  # it says nothing
        if code:
            raise RuntimeError(f"{tests.name} ended with {code} without a mutant")
    return _known(area, cache)


def _noted(area: Area, every: Sequence[pytest.Item], plugin: _Plugin, path: Path) -> None:
    from coverage import Coverage

    modules = {str(ROOT / name): name for name in area.paths()}
    coverage = Coverage(data_file=None, include=list(modules), config_file=False, branch=False)
    coverage.set_option("run:disable_warnings", ["no-data-collected"])  # tests of other modules are no mistake
    tests: dict[str, Test] = {}
    failed: set[str] = set()
    plugin.reported = lambda report: failed.add(report.nodeid) if report.failed else None
    coverage.start()
    for item, following in zip(every, [*every[1:], None], strict=True):
        coverage.switch_context(item.nodeid)
        began = time.monotonic()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        tests[item.nodeid] = Test(time.monotonic() - began)
    coverage.stop()
    data = coverage.get_data()
    for name in data.measured_files():
        for line, contexts in data.contexts_by_lineno(name).items():
            for context in contexts:
                if context in tests:
                    tests[context].lines.setdefault(modules[name], set()).add(line)
    rows = {
        name: {"seconds": round(test.seconds, 3), "lines": {module: sorted(lines) for module, lines in test.lines.items()}}
        for name, test in tests.items()
        if name not in failed and test.lines
    }
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(rows), encoding="utf-8")
    beside.replace(path)
