"""The input of the demo: the rows of a CSV file, by group."""

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
NOT_LOGGED_IN = 125  # every 125th account has never logged in
LOGGED_IN = {"yes": True, "no": False, "": True}


@define(eq=False)
class DemoGroup:
    """The accounts for one group, and their results; the counters have the number of each reason."""

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
        """The smallest type with room for the accounts and the owner, else the largest."""
        return next((kind for kind in GroupType if kind.member_limit > len(self.accounts)), GroupType.VIP)

    @property
    def expected(self) -> int:
        """The expected number of members: the invited accounts and the owner."""
        return self.invited + 1


@define(eq=False)
class DemoRows:
    """The rows of a file: their number, the number of duplicates, and the accounts by group."""

    total: int = 0
    duplicates: int = 0
    groups: dict[str, DemoGroup] = field(factory=dict[str, DemoGroup])
    never_logged_in: set[str] = field(factory=set[str])


def example() -> Iterator[str]:
    """Yield the lines of the default CSV file: 5,000 accounts."""
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
        reason = f"{path}: not UTF-8: save it as CSV in UTF-8"
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
        reason = error.message if isinstance(error, InvalidRequest) else str(error)
        raise InvalidRequest(f"{source}, line {max(reader.line_num, 1)}: {reason}", field="csv") from None
    if not rows.total:
        raise InvalidRequest(f"{source}: no accounts in the file", field="csv")
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
        raise InvalidRequest("more cells than columns in the first line")
    if not group or not account:
        raise InvalidRequest(f"the {'account' if group else 'group'} is missing")
    if logged_in is None:
        raise InvalidRequest(f"logged_in: invalid value {row['logged_in']!r}: use yes or no")
    if group not in rows.groups:
        CreateGroup(name=group, type=GroupType.VIP)  # checks the name
        rows.groups[group] = DemoGroup(group)
    accounts = rows.groups[group].accounts
    rows.total += 1
    rows.duplicates += account in accounts
    accounts[account] = None
    if not logged_in:
        rows.never_logged_in.add(account)
