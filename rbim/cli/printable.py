"""Text that is safe to show in a terminal."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["counted", "escaped", "json_line", "printable", "visible"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def printable(text: str) -> str:
    """Return the text as one line without control characters."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """Return the text with each unprintable character replaced."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def json_line(document: Any, *, ascii_only: bool = False) -> str:  # JSON
    r"""Return a document as one line of JSON in which each unprintable character is escaped (``\u202e``).

    It is the same document: such characters can only stand inside its texts.
    """
    return escaped(json.dumps(document, ensure_ascii=ascii_only))


def escaped(text: str) -> str:
    r"""Return the text with each unprintable character escaped as in JSON (``\u202e``)."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
