"""Shortens and cleans text for error messages and logs."""

from __future__ import annotations

from typing import Any

__all__ = ["empty", "excerpt", "missing_extra", "one_line"]


EXCERPT = 120
"""Characters of an unreadable answer that an error message shows."""


def empty() -> dict[str, Any]:
    """Return a dictionary with nothing in it: the default of fields, at a third of what ``dict[str, str]()`` costs."""
    return {}


def excerpt(body: bytes) -> str:
    """Return the beginning of an answer as one printable line."""
    shown = one_line(body[: EXCERPT * 4].decode("utf-8", "replace"), EXCERPT)
    cut = len(body) > EXCERPT * 4 and not shown.endswith("...")
    return f"'{shown}...'" if cut else f"'{shown}'"


def missing_extra(what: str, module: str | None, extra: str) -> str:
    """Return that ``what`` needs a module, and the command that installs the ``extra`` of rbim it comes with."""
    return f'{what} needs {module}, which comes with: python -m pip install "rbim[{extra}]"'


def one_line(text: str, at_most: int) -> str:
    """Return what somebody else wrote as one printable line, so that a log has no line of theirs."""
    line = " ".join(text[: at_most * 4].split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:at_most])
    return f"{shown}..." if len(line) > at_most or len(text) > at_most * 4 else shown
