"""What the derived parts of the page on reliability share: a record, and the sentence about its run."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

__all__ = ["recorded", "run_of"]

PROOF = Path(__file__).resolve().parents[1] / "internals" / "proof"
WIDTH = 130


def recorded(name: str) -> dict[str, Any]:
    """Return a record of ``docs/internals/proof``."""
    document: dict[str, Any] = json.loads((PROOF / f"{name}.json").read_text(encoding="utf-8"))
    return document


def run_of(record: dict[str, Any], command: str) -> str:
    """Return the sentence about the run of a record, and the command that makes it."""
    versions = ", ".join(f"{program} {version}" for program, version in record["versions"].items())
    text = f"Recorded by `{command}` at commit {record['commit']} on {record['date']} ({record['machine']}): {versions}."
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
