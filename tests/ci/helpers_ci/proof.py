"""Recorded results, ``docs/internals/proof/NAME.json``, and what each says of its run."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROOF = ROOT / "docs" / "internals" / "proof"


def about(**versions):
    """Return the commit, the date, the machine in general words, and the versions of Python and of other programs.

    Raises ValueError if the package differs from that of the commit: no one could repeat the run.
    """
    if changed := _git("status", "--porcelain", "--", "rbim"):
        raise ValueError(f"a record needs a package that is committed; changed:\n{changed}")
    return {
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": {"Python": platform.python_version(), **versions},
    }


def _git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def read_proof(name):
    return json.loads((PROOF / f"{name}.json").read_text(encoding="utf-8"))


def write_document(path, document):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_proof(name, about, key, rows):
    """Write a record: what is said about its run, and below ``key`` one line for each row."""
    lines = [f"  {json.dumps(row, ensure_ascii=False)}" for row in rows]
    head = json.dumps(about, ensure_ascii=False)[:-1]
    text = f"{head}, {json.dumps(key)}: [\n" + ",\n".join(lines) + "\n]}\n"
    (PROOF / f"{name}.json").write_text(text, encoding="utf-8")
