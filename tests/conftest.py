"""What pytest has to know of the tests, and fixtures that several folders use."""

import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis  # noqa: F401  # before gc.freeze(): it asks the garbage collector who knows the random numbers of trio
import pytest

from rbim.emulator import EmulatedClock

pytest.register_assert_rewrite("helpers")  # before anybody imports one of them: they assert, too

# The tests start hundreds of processes: without bytecode files, each would compile rbim again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
ROOM = 2 * 1024**3  # bytes: several times what the tests write


def pytest_addoption(parser):
    parser.addoption(
        "--promises",
        action="store_true",
        help="fail a whole run in which a test that tests/promises.toml names has not run, or was skipped",
    )


def pytest_configure(config):
    from helpers.promised import Promised, named_tests

    config.pluginmanager.register(Promised(config, named_tests()))
    _in_memory(config)


def _in_memory(config):
    """Let temporary files be in memory, so that no test waits for a disk, unless TMPDIR says where they are to be."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        return
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:  # some tests start programs that they write
        return
    folder = Path(tempfile.mkdtemp(prefix="rbim-tests-", dir=MEMORY))
    folder.chmod(0o1777)  # as that of /tmp: some tests are of two users
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # also that of the processes that the tests start

    def remove():
        del os.environ["TMPDIR"]
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(remove)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector from looking at the collected tests: half a million objects, which live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Do the same with what pytest keeps of the tests of a file, when it has run."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


REQUIRED = os.environ.get("TESTS_REQUIRE", "").split()
"""Programs without which tests fail: `.ci/run` names those that it has installed. Elsewhere their tests are skipped."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Have a test that is skipped because of a program fail if that program is required."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        missing = [program for program in REQUIRED if program in reason]
        if missing:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: {reason}; TESTS_REQUIRE names {missing[0]}"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With -n, let a process that has nothing left take tests from another one: some tests last long, and stand together."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture
def clock():
    """Emulated time, which stands still until a test lets it pass."""
    return EmulatedClock()


@pytest.fixture
def no_proxy_of_this_machine(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def bare_environment(monkeypatch, tmp_path_factory):
    """Monkeypatch, in an environment in which no variable or file of this machine sets rbim up or is trusted."""
    for name in [name for name in os.environ if name.startswith("RBIM_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("home")))
    return monkeypatch
