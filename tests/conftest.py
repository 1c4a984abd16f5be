"""What pytest has to know of the tests, and fixtures that several folders use."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from rbim.emulator import EmulatedClock

pytest.register_assert_rewrite("helpers", "helpers_ci")  # before anybody imports one of them: they assert, too

settings.register_profile("rbim", settings(), deadline=None)  # a machine with other work is no failure
settings.load_profile("rbim")

# The tests start hundreds of processes: without bytecode files, each would compile rbim again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


CI = Path(__file__).parent / "ci"
"""What only CI runs (`-m ci`): processes, servers, sites, languages, browsers, long simulations, soak, proxies,
secrets, fuzz, mutants. Single cases elsewhere that last long are marked `ci`. All else is the everyday circle."""

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
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background jobs of a script's shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
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


def _everyday(config):
    """Tell whether this is a run of the everyday circle. Who names a mark, a folder of CI or a single test asks for more."""
    named = [
        Path(config.invocation_params.dir, argument.partition("::")[0])
        for argument in config.args
        if not argument.startswith("-")
    ]
    single = any("::" in argument for argument in config.args)
    return not (config.option.markexpr or single or any(CI in (path, *path.parents) for path in named))


def pytest_ignore_collect(collection_path, config):
    return True if collection_path == CI and _everyday(config) else None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if CI in item.path.parents:
            item.add_marker(pytest.mark.ci)
    if _everyday(config):
        long = [item for item in items if item.get_closest_marker("ci")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]


@settings(max_examples=1, database=None)
@given(st.none())
def _draw(_):
    """Let Hypothesis register its random numbers now: it asks the collector who knows them, which sees nothing frozen."""


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector from looking at the collected tests: half a million objects, which live to the end."""
    _draw()
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
"""Words of reasons for which no test may be skipped: `.ci/run` names what it has installed. Elsewhere tests are skipped."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _required((yield))


def _required(report):
    """Let what is skipped fail if the reason has a word of REQUIRED."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        missing = [word for word in REQUIRED if word in reason]
        if missing:
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid}: {reason}; TESTS_REQUIRE names {missing[0]}"
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
    """Monkeypatch, in an environment in which no variable or file of this machine sets rbim up."""
    for name in [name for name in os.environ if name.startswith("RBIM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("home")))
    return monkeypatch
