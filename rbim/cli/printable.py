"""Text that is safe to show in a terminal."""

from __future__ import annotations

__all__ = ["printable", "visible"]


def printable(text: str) -> str:
    """Return the text as one line without control characters."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """Return the text with each unprintable character replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
