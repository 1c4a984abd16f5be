"""Each setting by its key, variable and flag, in a process of its own; and folders whose files must change nothing."""

import json
import os
import sys

import pytest

from helpers.processes import ran
from rbim.config import KEYS, VARIABLES

FLAGS = {"base_url": "--base-url", "transport": "--transport"}
VALUES = {
    "base_url": "http://platform.example:8883",
    "call_base_url": "https://calls.example",
    "transport": "asyncio",
    "concurrency": 7,
    "timeout": 2.5,
    "deadline": 9.0,
    "rates": ["50/s", "600/min"],
    "token_env": "HOME",
}
SHOWN = {"app_token": "***", "token_file": "***", "token_env": "***"}


@pytest.fixture
def shown(tmp_path):
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("RBIM_", "XDG_"))}

    def show(*flags, folder=tmp_path, **variables):
        own = clean | {"HOME": str(tmp_path / "home"), **variables}
        done = ran(sys.executable, "-m", "rbim", "config", "show", "--json", *flags, cwd=folder, env=own, check=True)
        return {key: (row["value"], row["source"]) for key, row in json.loads(done.stdout)["values"].items()}

    return show


def value_of(key, folder):
    return VALUES.get(key, str(folder / f"{key}.json") if key.endswith("_file") else f"a-{key}")


def test_every_setting_has_its_key_its_variable_and_its_flag(shown, tmp_path):
    file = tmp_path / "some.toml"
    for key in KEYS:
        value = value_of(key, tmp_path)
        row = "app_token" if key.startswith(("token_", "app_token")) else key
        want = "a file that does not exist" if key == "callback_credentials_file" else SHOWN.get(key, value)
        file.write_text(f'profile = "p"\n[profiles.p]\n{key} = {json.dumps(value)}\n')
        found, source = shown("--config", "some.toml")[row]
        assert (found, f"{file}: profiles.p.{key}" in source) == (want, True), (key, source)
        if key in VARIABLES:
            text = ",".join(value) if isinstance(value, list) else str(value)
            found, source = shown(**{VARIABLES[key]: text})[row]
            assert (found, source.endswith(VARIABLES[key])) == (want, True), (key, source)
        if key in FLAGS:
            assert shown(FLAGS[key], value)[row] == (want, f"flag {FLAGS[key]}")


HOSTILE = '[profiles.p]\nbase_url = "http://evil.example"\napp_id = "evil"\n[dialect]\ninvite_limit = 1\n'


def test_no_file_of_a_project_changes_anything(shown, tmp_path):
    project = tmp_path / "project" / "deep" / "deeper"
    project.mkdir(parents=True)
    before = shown(folder=project)
    for folder in (project, *project.parents[:3]):
        for name in ("rbim.toml", ".rbim.toml", "pyproject.toml", ".env", ".config/rbim/rbim.toml", "config/rbim/rbim.toml"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f'profile = "p"\n{HOSTILE}RBIM_BASE_URL=http://evil.example\n')
    assert shown(folder=project) == before
    assert shown(folder=project, XDG_CONFIG_HOME="config") == before  # only an absolute path is the user's own
    (project / "rbim.toml").unlink()
    (project / "rbim.toml").mkdir()
    assert shown(folder=project) == before
    (project / "rbim.toml").rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(project / "rbim.toml")  # to open it would wait for ever
        assert shown(folder=project) == before
