"""Text that is safe to show in a terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """Return the text as one line that does nothing to a terminal but show."""
    return _shown(" ".join(text.split()))


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
