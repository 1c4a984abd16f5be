"""The result of the demo: tables for people, one JSON object for programs, and mismatches."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import define
from rich.text import Text

from rbim.cli.json_output import show_json
from rbim.cli.output import console, table
from rbim.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.cli.demo.rows import DemoGroup, DemoRows

__all__ = ["Figures", "print_figures", "print_json"]

COLUMNS = ("accounts", "invited", "refused", "failed", "unknown")


@define(eq=False, kw_only=True)
class Figures:
    """The figures of a demo: ``calls`` invitations in ``requests`` attempts within ``seconds``."""

    rows: DemoRows
    address: str
    calls: int = 0
    requests: int = 0
    seconds: float = 0.0

    @property
    def groups(self) -> list[DemoGroup]:
        """The groups, in the order of the file."""
        return list(self.rows.groups.values())

    @property
    def accounts(self) -> dict[str, int]:
        """The number of accounts in total and by result."""
        sums = Counter[str]()
        for group in self.groups:
            sums.update(_counts(group))
        counted = {name: sums[name] for name in COLUMNS[1:]}
        return {"total": self.rows.total, **counted, "duplicates": self.rows.duplicates}

    def per_second(self, count: int) -> float:
        """Return a count per second."""
        return count / self.seconds if self.seconds else 0.0

    def mismatches(self) -> Iterator[str]:
        """Yield a line for each mismatch between file, responses and groups."""
        accounts = self.accounts
        counted = sum(accounts.values()) - accounts["total"]
        if counted != accounts["total"]:
            yield f"the file has {accounts['total']:,} rows, but the results add up to {counted:,}"
        for group in self.groups:
            if group.holds != group.expected:
                holds = "an unknown number of" if group.holds is None else f"{group.holds:,}"
                yield f"{group.name} has {holds} members, expected {group.expected:,} (the invited accounts and the owner)"


def _counts(group: DemoGroup) -> dict[str, int]:
    return {
        "accounts": len(group.accounts),
        "invited": group.invited,
        "refused": group.refused.total(),
        "failed": group.failed.total(),
        "unknown": group.unknown.total(),
    }


def _reasons(group: DemoGroup) -> dict[str, int]:
    return dict((group.refused + group.failed + group.unknown).most_common())


def print_json(figures: Figures) -> None:
    """Write the figures as one JSON object in one line."""
    accounts = figures.accounts
    document: dict[str, Any] = {
        "accounts": accounts,
        "requests": {"invitations": figures.calls, "sent": figures.requests},
        "groups": [
            {
                "group_id": group.group_id,
                "name": group.name,
                "type": group.type.value,
                "member_limit": group.type.member_limit,
                **_counts(group),
                "reasons": _reasons(group),
                "holds": group.holds,
                "expected": group.expected,
            }
            for group in figures.groups
        ],
        "seconds": round(figures.seconds, 6),
        "accounts_per_second": round(figures.per_second(_sent(figures)), 1),
        "requests_per_second": round(figures.per_second(figures.requests), 1),
        "agrees": not list(figures.mismatches()),
    }
    show_json(document)


def _sent(figures: Figures) -> int:
    return figures.rows.total - figures.rows.duplicates


def print_figures(figures: Figures) -> None:
    """Print the figures as tables and a few sentences."""
    out = console()
    made = table("group", "type", *COLUMNS, "members", numbers=(*COLUMNS, "members"), whole=("type",))
    for group in figures.groups:
        cells = [f"{count:,}" for count in _counts(group).values()]
        kind = f"{group.type.name.lower()} ({group.type.member_limit:,})"
        holds = "?" if group.holds is None else f"{group.holds:,}"
        right = group.holds == group.expected
        made.add_row(Text(printable(group.name)), Text(kind), *cells, Text(holds, style="green" if right else "bold red"))
    out.print(made)
    out.print()
    _print_reasons(figures)
    for line in _sentences(figures):
        out.print(line)


def _print_reasons(figures: Figures) -> None:
    out = console()
    made = table("group", "reason", "accounts", numbers=("accounts",))
    for group in figures.groups:
        for reason, count in _reasons(group).items():
            made.add_row(Text(printable(group.name)), Text(printable(reason)), f"{count:,}")
    if made.row_count:
        out.print(made)
        out.print()


def _sentences(figures: Figures) -> Iterator[str]:
    accounts = figures.accounts
    parts = ", ".join(f"{accounts[name]:,} {name}" for name in (*COLUMNS[1:], "duplicates"))
    yield f"{accounts['total']:,} rows: {parts}."
    if not list(figures.mismatches()):
        yield "By the platform's own count, each group has the invited accounts and its owner."
    yield (
        f"{figures.requests:,} requests in {figures.seconds:.2f} s: {figures.per_second(_sent(figures)):,.0f} accounts/s, "
        f"{figures.per_second(figures.requests):,.0f} requests/s."
    )
    yield f"Client and emulator ran in one event loop, over HTTP at {figures.address}."
