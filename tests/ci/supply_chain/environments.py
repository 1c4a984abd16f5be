"""Environments and copies of the sources, in a folder that goes at the end."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
TAIL = 3000  # characters of an output in an error
UV_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
"""uv does not read pip's configuration: the variables that say the same."""


class Failed(Exception):
    """The answer to a question is no; the text says why."""


def run(command, *, cwd=ROOT, environment=None):
    """Run a command; return what it wrote to standard output. Raises Failed with the end of what it wrote if it fails."""
    words = [str(word) for word in command]
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(words, cwd=cwd, env=kept | dict(environment or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(words)[:200]}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-TAIL:]}")
    return done.stdout


def direct(*, extras=True):
    """Return the names of the direct dependencies of rbim, and of rbim[all] with ``extras``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed, optional = project["dependencies"], project["optional-dependencies"]
    if extras:
        (whole,) = (Requirement(text) for text in optional["all"])
        listed = listed + [text for extra in whole.extras for text in optional[extra]]
    return {Requirement(text).name for text in listed}


def uv(*words):
    """Run uv, with the index and the certificates that pip is configured with."""
    environment = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # pip, too, takes the best version of all indexes
    for line in run([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in UV_OF_PIP:
            environment[UV_OF_PIP[key]] = " ".join(str(ast.literal_eval(value)).split())
    return run([sys.executable, "-m", "uv", *words, "--quiet"], environment=environment)


class Environment:
    """A virtual environment of the interpreter that runs this, without any package but those that are asked for."""

    def __init__(self, folder):
        uv("venv", "--python", sys.executable, folder)
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / "python"

    def install(self, *what):
        uv("pip", "install", "--python", self.python, *what)

    def run(self, *words, cwd=ROOT, environment=None):
        """Run a program of the environment, or its interpreter, with its programs first in the path."""
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}"
        return run([self.bin / str(words[0]), *words[1:]], cwd=cwd, environment={"PATH": path, **(environment or {})})


def tracked():
    """Return the files of the repository; outside of one, those of the source distribution."""
    if not (ROOT / ".git").exists():
        return [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file() and not _is_made(path)]
    return run(["git", "ls-files", "--cached", "--others", "--exclude-standard"]).splitlines()


def _is_made(path):
    return bool({"__pycache__", ".pytest_cache", ".hypothesis"} & set(path.parts)) or path.name == "PKG-INFO"


def sources(folder):
    for name in tracked():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder
