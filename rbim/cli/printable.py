"""Text that is safe to show in a terminal."""

from __future__ import annotations

__all__ = ["printable", "visible"]


def printable(text: str) -> str:
    """Return the text as one line that does nothing to a terminal but show."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """Return the text with a replacement character for each one that does not print."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
