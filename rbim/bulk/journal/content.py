"""The accounts of a chunk and the numbers of their rows, as a journal stores them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

__all__ = ["Content"]


class Content(NamedTuple):
    """Columns of the table ``content``: how many accounts, the numbers of their rows, and the accounts as JSON."""

    size: int
    first: int
    step: int
    rows: str | None
    accounts: str

    @classmethod
    def of(cls, accounts: Sequence[str], rows: Sequence[int]) -> Self:
        """Return the columns of some accounts, at least one, and the numbers of their rows in rising order."""
        size, first, last = len(rows), rows[0], rows[-1]
        step = 1 if size == 1 else rows[1] - first
        regular = last - first == step * (size - 1) and (step == 1 or list(rows) == list(range(first, last + 1, step)))
        return cls(size, first, step, None if regular else json.dumps(list(rows), separators=(",", ":")), _as_json(accounts))

    def names(self) -> list[str]:
        """Return the accounts."""
        names: list[str] = json.loads(self.accounts)
        return names

    def numbers(self) -> Sequence[int]:
        """Return the numbers of their rows."""
        if self.rows is None:
            return range(self.first, self.first + self.step * self.size, self.step)
        numbers: list[int] = json.loads(self.rows)
        return numbers


def _as_json(accounts: Sequence[str]) -> str:
    """Return the accounts as a JSON array; none of them has control characters."""
    joined = '","'.join(accounts)
    if "\\" in joined or joined.count('"') != 2 * (len(accounts) - 1):
        return json.dumps(list(accounts), ensure_ascii=False, separators=(",", ":"))
    return f'["{joined}"]'
