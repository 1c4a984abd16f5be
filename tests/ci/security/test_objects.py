"""The tests of objects_alone.py, in a process of their own: they walk through every object of the process."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT

ALONE = Path(__file__).with_name("objects_alone.py")
PATIENCE = 300


def test_no_object_keeps_a_signature_longer_than_it_is_needed():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ALONE)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    ended = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    assert " 11 passed" in f" {ended.stdout.splitlines()[-1]}"
