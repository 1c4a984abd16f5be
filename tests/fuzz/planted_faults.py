"""Faults that are put into rbim, to show that the targets find them."""

from __future__ import annotations

__all__ = ["plant"]


def plant(name: str) -> None:
    """Put a fault into rbim."""
    raise LookupError(name)
