"""The tests of objects_alone.py, in a process of their own: they walk through every object of the process."""

import os
import sys
from pathlib import Path

from helpers.paths import ROOT
from helpers.processes import ran

ALONE = Path(__file__).with_name("objects_alone.py")


def test_no_object_keeps_a_signature_longer_than_it_is_needed():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ALONE]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    ended = ran(*command, cwd=ROOT, env=plain, timeout=300)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    assert " 11 passed" in f" {ended.stdout.splitlines()[-1]}"
