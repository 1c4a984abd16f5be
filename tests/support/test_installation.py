"""The pip command for an extra fits the way in which rbim is installed."""

import importlib.metadata
import shlex

from rbim._support.text import install_command, missing_extra


def test_an_installed_rbim_is_named_so_that_pip_only_adds_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"rbim": "1.0"}[name])
    assert install_command("cli,server") == 'python -m pip install "rbim[cli,server]"'
    assert missing_extra("this command", "uvicorn", "server").endswith(install_command("server"))


def test_without_an_installation_the_command_is_for_a_clone(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    command, _, where = install_command("cli").partition(", ")
    assert shlex.split(command) == ["python", "-m", "pip", "install", ".[cli]"]
    assert where == "in a clone of the repository of rbim"
