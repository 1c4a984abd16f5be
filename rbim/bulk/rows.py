"""What a job reads: one account for one group a row, or a row that cannot be used and why."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BadRow", "Row"]


class Row(NamedTuple):
    """An account for a group. ``user_name`` is the account that acts, where this row names one of its own."""

    group: str
    account: str
    user_name: str | None = None


class BadRow(NamedTuple):
    """A row that cannot be used: its ``line`` in the input (from 1), why, and what it said (its beginning, if long)."""

    line: int
    reason: str
    raw: str
