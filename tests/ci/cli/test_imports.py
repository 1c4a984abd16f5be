"""What a command of a new process imports, and what it says where a package is missing or broken."""

import os
import sys

import pytest

from helpers.job_commands import CREDENTIALS, made_group
from helpers.processes import ran
from helpers.serving import served
from rbim.cli import Exit
from rbim.emulator import Emulator

HEAVY = {"httpx", "anyio", "asyncio", "sqlite3", "cattrs", "cyclopts", "rich", "ssl", "uvicorn", "tomllib", "platformdirs"}


@pytest.fixture
def group(bare_environment):
    emulator = Emulator(credentials=CREDENTIALS)
    with served(emulator.asgi) as url:
        for name, value in {"BASE_URL": url, "APP_ID": "app", "APP_TOKEN": "the-token", "USER_NAME": "admin"}.items():
            bare_environment.setenv(f"RBIM_{name}", value)
        yield made_group(emulator)


@pytest.mark.parametrize("module", ["cyclopts", "rich"])
def test_a_missing_extra_is_one_line_that_names_the_pip_command(module):
    code = f"import sys; sys.modules[{module!r}] = None; from rbim.cli import main; main(['operations'])"
    done = ran(sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert done.stderr == (f'rbim: this command needs {module}; install it with: python -m pip install "rbim[cli]"\n')


@pytest.fixture
def imported_by(tmp_path):
    def call(*tokens):
        code = f"import sys; from rbim.cli import run; code = run({list(tokens)!r}); print(*sys.modules); sys.exit(code)"
        own = {"RBIM_TRANSPORT": "asyncio", "XDG_CONFIG_HOME": str(tmp_path / "config")}
        done = ran(sys.executable, "-c", code, cwd=tmp_path, env=os.environ | own)
        assert done.stdout, done.stderr
        return done.returncode, set(done.stdout.splitlines()[-1].split())

    return call


HTTP = {"aiohttp", "httpcore", "httpx", "httpx2", "trio", "uvicorn"}
DRAWING = {"cyclopts.help", "rich.console", "rich.progress_bar", "rich.table", "rich.text"}
OF_FILES = {"platformdirs", "tomllib"} if sys.platform == "linux" else {"tomllib"}
NOT_FOR_AN_OPERATION = {"anyio", "sniffio", "sqlite3", "zoneinfo"}
NOT_FOR_AN_OPERATION |= {"rbim.bulk", "rbim.cli.jobs", "rbim.client.observers", "rbim.observers"}
NOT_FOR_A_JOB = {"matplotlib", "zoneinfo", "rbim.cli.operations", "rbim.operations.call_tasks"}


def test_an_operation_imports_only_what_it_needs(imported_by, group):
    code, modules = imported_by("groups", "modify", group, "--name", "x", "--permission", "keep")

    assert code == Exit.DONE
    assert "rbim.transports.asyncio.transport" in modules
    assert modules & (HTTP | DRAWING | OF_FILES | NOT_FOR_AN_OPERATION) == set()


def test_a_job_draws_nothing_without_a_terminal(imported_by, group, tmp_path):
    (tmp_path / "rows.csv").write_text(f"group,account\n{group},1001\n", encoding="utf-8")

    code, modules = imported_by("invite", "rows.csv")

    assert code == Exit.DONE
    assert "rbim.bulk.job" in modules
    assert modules & (HTTP | DRAWING | OF_FILES | NOT_FOR_A_JOB) == set()


def test_help_imports_nothing_that_it_does_not_need(imported_by):
    for tokens, loaded in [
        (["--help"], set()),
        (["--version"], set()),
        ([], set()),
        (["groups", "create", "--help"], {"cyclopts", "rich", "tomllib"}),
        (["invite", "--help"], {"cyclopts", "rich", "tomllib"}),
    ]:
        code, modules = imported_by(*tokens)
        assert (code, modules & HEAVY - loaded) == (Exit.DONE, set()), tokens
