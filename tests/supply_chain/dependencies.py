"""The tests with the lowest versions that pyproject.toml allows, and with the newest; and with every warning an error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from .environments import ROOT, Environment, Failed, project, run, tools_of, uv

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["development_mode", "lowest", "newest"]

TESTS = (
    "tests/bulk/test_job.py",
    "tests/callbacks/inbox/test_archive.py",
    "tests/callbacks/worker/test_router.py",
    "tests/cli/test_cli.py",
    "tests/cli/test_demo.py",
    "tests/client/test_client.py",
    "tests/client/test_fan_out.py",
    "tests/config/test_config.py",
    "tests/emulator/server/test_server.py",
    "tests/jetstream/test_operations.py",
    "tests/otel/test_levels.py",
    "tests/otel/test_spans.py",
    "tests/storage/test_group_commit.py",
    "tests/support",
    "tests/testing",
    "tests/transports/test_asyncio.py",
    "tests/transports/test_auto.py",
    "tests/transports/test_conformance.py",
    "tests/transports/test_httpx.py",
    "tests/wire/test_quirks.py",
)
"""What most depends on other packages. Left out: what reads the repository, measures, simulates, or kills processes."""

WITHOUT = ("uvicorn-worker", "gunicorn")
"""Tools that need a newer uvicorn than rbim does; their tests are skipped or left out."""

MODULES = (
    "test_an_operation_imports_only_what_it_needs",
    "test_an_operation_that_cannot_connect_imports_no_more",
    "test_a_job_draws_nothing_without_a_terminal",
)
"""Tests of which modules a command imports. Older versions of cattrs import ``zoneinfo``, which rbim leaves out."""

NEEDED_BY_TESTS = ("anyio",)
"""Packages of which the extra ``dev`` needs a newer version than rbim: their lowest version is tried without pytest."""

INBOX = """
import sys
from functools import partial

import anyio

sys.path.insert(0, sys.argv[1])

from helpers import inbox_places
from helpers.inbox_conformance import CASES, failures

failing = anyio.run(partial(failures, inbox_places.file(), at_once=16))
print(len(CASES), *failing.values(), sep="\\n")
sys.exit(bool(failing))
"""


def lowest(folder: Path) -> dict[str, Any]:
    """Try the lowest version of each direct dependency of rbim[all], and the newest that suit them of all others."""
    pins = folder / "lowest.txt"
    words = ["--resolution", "lowest-direct", "--extra", "all", "--no-header", "--no-annotate", "--python", sys.executable]
    uv("pip", "compile", ROOT / "pyproject.toml", *words, "-o", pins)
    direct = {Requirement(text).name for text in _direct()}
    exact = [line for line in pins.read_text(encoding="utf-8").split() if line.split("==")[0] in direct]
    tested = folder / "tested.txt"
    tested.write_text("".join(f"{line}\n" for line in exact if line.split("==")[0] not in NEEDED_BY_TESTS), encoding="utf-8")
    alone = Environment(folder / "alone")
    alone.install("-c", pins, f"{ROOT}[all]")
    found = _without_pytest(alone, folder)
    environment = Environment(folder / "environment")
    environment.install("-c", tested, *tools_of(*WITHOUT, *NEEDED_BY_TESTS), "-e", f"{ROOT}[all,machines]", "anyio>=4.16")
    passed = _pytest(environment, *(word for name in MODULES for word in ("--deselect", f"tests/cli/test_cli.py::{name}")))
    return {"versions": dict(line.split("==") for line in exact), **found, "passed": passed}


def _without_pytest(environment: Environment, folder: Path) -> dict[str, Any]:
    """Run the demo and the conformance suite for inboxes, which need none of the tools."""
    figures = json.loads(environment.run("rbim", "demo", "--json", cwd=folder))
    if figures["accounts"]["failed"] or figures["accounts"]["unknown"] or not figures["accounts"]["invited"]:
        raise Failed(f"the demo: {figures['accounts']}")
    program = folder / "inbox.py"
    program.write_text(INBOX, encoding="utf-8")
    cases = int(environment.run("python", program, ROOT / "tests", cwd=folder).split()[0])
    return {"without pytest": {"invited": figures["accounts"]["invited"], "cases of inboxes": cases}}


def newest(folder: Path) -> dict[str, Any]:
    """Try the newest version of everything, also of the tools; releases that are not final count."""
    environment = Environment(folder / "environment")
    environment.install("--upgrade", "--prerelease", "if-necessary-or-explicit", "-e", f"{ROOT}[all,machines]", *tools_of())
    versions = environment.versions()
    direct = {Requirement(text).name for text in _direct()}
    return {"versions": {name: versions[name] for name in sorted(direct)}, "passed": _pytest(environment)}


def development_mode(_: Path) -> dict[str, Any]:
    """Run the tests in this environment with ``-X dev -W error``: a warning of any module is an error, at any time."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "pytest", *_words()]
    return {"passed": run(command).splitlines()[-1].strip("= ")}


def _pytest(environment: Environment, *options: str) -> str:
    out = environment.run("python", "-m", "pytest", *_words(), *options)
    return out.splitlines()[-1].strip("= ")


def _words() -> Sequence[str]:
    return ["-q", "-n", "2", "-p", "no:cacheprovider", *TESTS]


def _direct() -> list[str]:
    told = project()
    (whole,) = (Requirement(text) for text in told["optional-dependencies"]["all"])
    return told["dependencies"] + [text for extra in whole.extras for text in told["optional-dependencies"][extra]]
