"""The platform of the commands for jobs: an emulator over HTTP, and the commands in this process."""

import pytest

from helpers.holding import Holding
from helpers.job_commands import CREDENTIALS, STRANGER, made_group
from helpers.serving import served
from rbim.cli import run
from rbim.emulator import Emulator


@pytest.fixture(scope="module")
def served_platform():
    emulator = Emulator(credentials=CREDENTIALS)
    emulator.never_logged_in(STRANGER)
    emulator.door = Holding(emulator.asgi)
    with served(emulator.door) as url:
        yield emulator, url


@pytest.fixture
def environment(bare_environment, tmp_path):
    """An environment without a platform, and a working directory of one's own."""
    bare_environment.chdir(tmp_path)
    return bare_environment


@pytest.fixture
def platform(served_platform, environment):
    emulator, url = served_platform
    for name, value in {"BASE_URL": url, "APP_ID": "app", "APP_TOKEN": "the-token", "USER_NAME": "admin"}.items():
        environment.setenv(f"RBIM_{name}", value)
    emulator.faults.clear()
    yield emulator
    emulator.faults.clear()
    emulator.door.holding = False


@pytest.fixture
def cli(capsys):
    def call(*tokens):
        code = run([str(token) for token in tokens])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "the-token" not in out + err
        return code, out, err

    return call


@pytest.fixture
def group(platform):
    return made_group(platform)
