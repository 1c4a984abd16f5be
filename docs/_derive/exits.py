"""The derived part of the page on errors: the exit codes of the command line."""

from __future__ import annotations

from _derive.markdown import table
from rbim.cli import Exit

__all__ = ["exits"]


def exits() -> str:
    """Return the table of exit codes."""
    return "\n" + table(("exit code", "meaning"), ((str(int(code)), code.meaning) for code in Exit)) + "\n"
