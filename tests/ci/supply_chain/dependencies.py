"""The tests with the lowest versions that pyproject.toml allows. With the newest, `.ci/run` runs them all."""

import json
import sys

from .environments import ROOT, Environment, Failed, direct, uv

TESTS = ("bulk/test_job.py", "callbacks/worker", "client", "config", "otel", "support", "transports/test_httpx.py")
"""Below tests/: what most depends on other packages. Only the tests of every day run."""

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


def lowest(folder):
    """Try the lowest version of each direct dependency of rbim[all], and the newest that suit them of all others.

    The tests need a newer anyio than rbim: its lowest version is tried without them.
    """
    pins = folder / "lowest.txt"
    words = ["--resolution", "lowest-direct", "--extra", "all", "--no-header", "--no-annotate", "--python", sys.executable]
    uv("pip", "compile", ROOT / "pyproject.toml", *words, "-o", pins)
    exact = [line for line in pins.read_text(encoding="utf-8").split() if line.split("==")[0] in direct()]
    tested = folder / "tested.txt"
    tested.write_text("".join(f"{line}\n" for line in exact if not line.startswith("anyio==")), encoding="utf-8")
    alone = Environment(folder / "alone")
    alone.install("-c", pins, f"{ROOT}[all]")
    found = _without_pytest(alone, folder)
    environment = Environment(folder / "environment")
    environment.install("-c", tested, "-e", f"{ROOT}[all,dev]")
    return {"versions": dict(line.split("==") for line in exact), **found, "passed": _pytest(environment)}


def _without_pytest(environment, folder):
    """Run the demo and the conformance suite for inboxes, which need none of the tools."""
    figures = json.loads(environment.run("rbim", "demo", "--json", cwd=folder))
    if figures["accounts"]["failed"] or figures["accounts"]["unknown"] or not figures["accounts"]["invited"]:
        raise Failed(f"the demo: {figures['accounts']}")
    program = folder / "inbox.py"
    program.write_text(INBOX, encoding="utf-8")
    cases = int(environment.run("python", program, ROOT / "tests", cwd=folder).split()[0])
    return {"without pytest": {"invited": figures["accounts"]["invited"], "cases of inboxes": cases}}


def _pytest(environment):
    words = ["-q", "-n", "2", "-p", "no:cacheprovider", *(f"tests/{name}" for name in TESTS)]
    return environment.run("python", "-m", "pytest", *words).splitlines()[-1].strip("= ")
