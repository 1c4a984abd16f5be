"""The record of what the runs have done: ``fuzz.json``, from which the page on reliability has its table."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from . import corpora
from .runner import TARGETS, target

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "docs" / "internals" / "proof" / "fuzz.json"


def record(runner):
    """Write the progress of all targets."""
    targets = {}
    for name in TARGETS:
        progress, module = runner.progress(name), target(name)
        targets[name] = {
            "what": module.WHAT,
            "oracle": module.ORACLE,
            "seconds": progress.seconds,
            "executions": progress.executions,
            "edges": progress.edges,
            "inputs": progress.inputs,
            "kept": len(corpora.kept(name)),
            "cured": len(corpora.findings(name)),
            "open": sorted(progress.findings),
        }
    commit = ["git", "rev-parse", "--short", "HEAD"]
    document = {
        "commit": subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), "atheris": version("atheris")},
        "machine": f"{os.cpu_count()} cores of {platform.machine()}, shared with other work",
        "targets": targets,
    }
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
