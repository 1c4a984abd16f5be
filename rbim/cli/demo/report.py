"""What the demonstration says at its end: a table for people, one JSON object for machines, and what does not agree."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attrs import define
from rich.text import Text

from rbim.cli.output import console, show_json, table
from rbim.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.cli.demo.rows import DemoGroup, DemoRows

__all__ = ["Figures", "tell", "tell_json"]

COLUMNS = ("accounts", "invited", "refused", "failed", "unknown")


@define(eq=False, kw_only=True)
class Figures:
    """What came of it all: ``calls`` invitations in ``requests`` attempts within ``seconds``."""

    rows: DemoRows
    address: str
    calls: int = 0
    requests: int = 0
    seconds: float = 0.0

    @property
    def parties(self) -> list[DemoGroup]:
        """The groups, in the order of the file."""
        return list(self.rows.parties.values())

    @property
    def accounts(self) -> dict[str, int]:
        """How many accounts there were and what became of them."""
        sums = Counter[str]()
        for party in self.parties:
            sums.update(_counts(party))
        counted = {name: sums[name] for name in COLUMNS[1:]}
        return {"total": self.rows.total, **counted, "duplicates": self.rows.duplicates}

    def per_second(self, count: int) -> float:
        """Return the rate of something that was counted."""
        return count / self.seconds if self.seconds else 0.0

    def complaints(self) -> Iterator[str]:
        """Yield what does not agree."""
        accounts = self.accounts
        counted = sum(accounts.values()) - accounts["total"]
        if counted != accounts["total"]:
            yield f"the file has {accounts['total']:,} rows, {counted:,} are accounted for"
        for party in self.parties:
            if party.holds != party.expected:
                holds = "an unknown number of" if party.holds is None else f"{party.holds:,}"
                yield f"{party.name} holds {holds} members, not {party.expected:,} (those invited and the owner)"


def _counts(party: DemoGroup) -> dict[str, int]:
    return {
        "accounts": len(party.accounts),
        "invited": party.invited,
        "refused": party.refused.total(),
        "failed": party.failed.total(),
        "unknown": party.unknown.total(),
    }


def _reasons(party: DemoGroup) -> dict[str, int]:
    return dict((party.refused + party.failed + party.unknown).most_common())


def tell_json(figures: Figures) -> None:
    """Write the figures as one JSON object in one line."""
    accounts = figures.accounts
    document: dict[str, Any] = {
        "accounts": accounts,
        "requests": {"invitations": figures.calls, "sent": figures.requests},
        "groups": [
            {
                "group_id": party.group_id,
                "name": party.name,
                "type": party.type.value,
                "member_limit": party.type.member_limit,
                **_counts(party),
                "reasons": _reasons(party),
                "holds": party.holds,
                "expected": party.expected,
            }
            for party in figures.parties
        ],
        "seconds": round(figures.seconds, 6),
        "accounts_per_second": round(figures.per_second(_sent(figures)), 1),
        "requests_per_second": round(figures.per_second(figures.requests), 1),
        "agrees": not list(figures.complaints()),
    }
    show_json(document)


def _sent(figures: Figures) -> int:
    return figures.rows.total - figures.rows.duplicates


def tell(figures: Figures) -> None:
    """Show the figures as tables and a few sentences."""
    out = console()
    made = table("group", "type", *COLUMNS, "holds", numbers=(*COLUMNS, "holds"), whole=("type",))
    for party in figures.parties:
        cells = [f"{count:,}" for count in _counts(party).values()]
        kind = f"{party.type.name.lower()} ({party.type.member_limit:,})"
        holds = "?" if party.holds is None else f"{party.holds:,}"
        right = party.holds == party.expected
        made.add_row(Text(printable(party.name)), Text(kind), *cells, Text(holds, style="green" if right else "bold red"))
    out.print(made)
    out.print()
    _tell_reasons(figures)
    for line in _sentences(figures):
        out.print(line)


def _tell_reasons(figures: Figures) -> None:
    out = console()
    made = table("group", "why not", "accounts", numbers=("accounts",))
    for party in figures.parties:
        for reason, count in _reasons(party).items():
            made.add_row(Text(printable(party.name)), Text(printable(reason)), f"{count:,}")
    if made.row_count:
        out.print(made)
        out.print()


def _sentences(figures: Figures) -> Iterator[str]:
    accounts = figures.accounts
    parts = ", ".join(f"{accounts[name]:,} {name}" for name in (*COLUMNS[1:], "duplicates"))
    yield f"{accounts['total']:,} rows: {parts}."
    if not list(figures.complaints()):
        yield "Each group holds those invited and its owner, as the platform's own count says."
    yield (
        f"{figures.requests:,} requests in {figures.seconds:.2f} s: {figures.per_second(_sent(figures)):,.0f} accounts/s, "
        f"{figures.per_second(figures.requests):,.0f} requests/s."
    )
    yield f"Client and emulator shared one event loop, over HTTP at {figures.address}."
