"""What the demonstration invites: the rows of a CSV file, by group."""

from __future__ import annotations

import csv
from collections import Counter
from itertools import count, islice
from typing import TYPE_CHECKING

from attrs import define, field

from rbim.errors import InvalidRequest
from rbim.operations.groups import CreateGroup, GroupType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["DemoGroup", "DemoRows", "example", "read_rows"]

EXAMPLE = {"产品公告": 1900, "客户交流": 1700, "内部测试": 1400}  # accounts of each group
NOT_LOGGED_IN = 125  # each account whose number this divides
LOGGED_IN = {"yes": True, "no": False, "": True}


@define(eq=False)
class DemoGroup:
    """The accounts meant for one group, and what became of them; the counters say why by how many."""

    name: str
    accounts: dict[str, None] = field(factory=dict[str, None])
    group_id: str = ""
    invited: int = 0
    refused: Counter[str] = field(factory=Counter[str])
    failed: Counter[str] = field(factory=Counter[str])
    unknown: Counter[str] = field(factory=Counter[str])
    holds: int | None = None

    @property
    def type(self) -> GroupType:
        """The smallest type that holds the accounts and the owner; the largest where none does."""
        return next((kind for kind in GroupType if kind.member_limit > len(self.accounts)), GroupType.VIP)

    @property
    def expected(self) -> int:
        """The members that the group must have: those invited, and the owner."""
        return self.invited + 1


@define(eq=False)
class DemoRows:
    """All rows of a file: how many there are, how many of them say again what another said, and the rest by group."""

    total: int = 0
    duplicates: int = 0
    parties: dict[str, DemoGroup] = field(factory=dict[str, DemoGroup])
    never_logged_in: set[str] = field(factory=set[str])


def example() -> Iterator[str]:
    """Yield the lines of the CSV file that the demonstration uses without one of the user's: 5,000 accounts."""
    yield "group,account,logged_in\n"
    numbers = count(1)
    for group, accounts in EXAMPLE.items():
        for number in islice(numbers, accounts):
            yield f"{group},user-{number:05},{'yes' if number % NOT_LOGGED_IN else 'no'}\n"


def read_rows(path: Path | None) -> DemoRows:
    """Read a file, or the example. Raises InvalidRequest that names file and line."""
    if path is None:
        return _read(example(), "the example")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return _read(lines, str(path))
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
    except UnicodeDecodeError:
        reason = f"{path}: not UTF-8; save it as CSV in UTF-8"
    raise InvalidRequest(reason, field="csv")


def _read(lines: Iterable[str], source: str) -> DemoRows:
    rows = DemoRows()
    reader = csv.reader(lines, strict=True)
    try:
        headings = _headings(next(reader, list[str]()))
        for cells in reader:
            if cells:
                _add(rows, headings, [cell.strip() for cell in cells])
    except (csv.Error, InvalidRequest) as error:
        what = error.message if isinstance(error, InvalidRequest) else str(error)
        raise InvalidRequest(f"{source}, line {max(reader.line_num, 1)}: {what}", field="csv") from None
    if not rows.total:
        raise InvalidRequest(f"{source}: no accounts in it", field="csv")
    return rows


def _headings(cells: list[str]) -> list[str]:
    headings = [cell.strip().lower() for cell in cells]
    if not {"group", "account"} <= set(headings):
        raise InvalidRequest("the first line must name the columns group and account")
    return headings


def _add(rows: DemoRows, headings: list[str], cells: list[str]) -> None:
    row = dict(zip(headings, cells, strict=False))
    group, account = row.get("group", ""), row.get("account", "")
    logged_in = LOGGED_IN.get(row.get("logged_in", "").lower())
    if len(cells) > len(headings):
        raise InvalidRequest("more cells than columns")
    if not group or not account:
        raise InvalidRequest(f"the {'account' if group else 'group'} is missing")
    if logged_in is None:
        raise InvalidRequest(f"logged_in: yes or no, not {row['logged_in']!r}")
    if group not in rows.parties:
        CreateGroup(name=group, type=GroupType.VIP)  # knows what a name may be
        rows.parties[group] = DemoGroup(group)
    accounts = rows.parties[group].accounts
    rows.total += 1
    rows.duplicates += account in accounts
    accounts[account] = None
    if not logged_in:
        rows.never_logged_in.add(account)
