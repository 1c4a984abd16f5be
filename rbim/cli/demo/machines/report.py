"""The result of the demo on several machines: a table and a few sentences for people, one JSON object for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from rbim.cli.json_output import show_json
from rbim.cli.output import console, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.cli.demo.machines.figures import Figures

__all__ = ["print_figures", "print_json"]


def print_json(figures: Figures) -> None:
    """Write the figures as one JSON object in one line."""
    jobs, copies = figures.invitations, figures.callbacks
    document: dict[str, Any] = {
        "accounts": {**jobs.report, "lost": jobs.lost},
        "requests": {"seen": len(jobs.requests), "again": jobs.again},
        "callbacks": {
            "sent": len(copies.sent),
            "accepted": len(copies.accepted),
            "handled": len(copies.first_handled),
            "lost": copies.lost,
            "handled_twice": copies.twice,
            "resent": copies.resent,
            "out_of_order": copies.out_of_order,
            "dead": copies.counts.get("dead"),
            "quarantined": copies.counts.get("quarantined"),
        },
        "groups": [
            {
                "group_id": group.group_id,
                "name": group.name,
                "holds": len(jobs.members[group.group_id]),
                "expected": len(jobs.expected[group.group_id]),
            }
            for group in jobs.rows.groups.values()
        ],
        "deaths": [
            {
                "who": death.who,
                "at": round(death.at - figures.began, 3),
                "away": round(death.back - death.at, 3),
                "pause": round(figures.pause(death), 3),
                "effect": figures.effect(death),
            }
            for death in figures.deaths
        ],
        "seconds": round(figures.seconds, 3),
        "mismatches": figures.mismatches(),
        "agrees": not figures.mismatches(),
    }
    show_json(document)


def print_figures(figures: Figures) -> None:
    """Print the figures as a table and a few sentences."""
    out = console()
    numbers = ("killed at", "away", "pause")
    made = table("killed (kill -9)", *numbers, "what the others did", numbers=numbers, whole=("killed (kill -9)",))
    for death in figures.deaths:
        times = (death.at - figures.began, death.back - death.at, figures.pause(death))
        made.add_row(Text(death.who), *(f"{each:.1f} s" for each in times), Text(figures.effect(death)))
    out.print()
    out.print(made)
    out.print()
    for line in _sentences(figures):
        out.print(line, soft_wrap=False)


def _sentences(figures: Figures) -> Iterator[Text]:
    jobs, copies = figures.invitations, figures.callbacks
    report = jobs.report
    results = ", ".join(f"{report[name]:,} {name}" for name in ("invited", "refused", "failed", "unknown"))
    yield _line(f"{report['total']:,} accounts: {results}", jobs.lost)
    yield Text(f"  {len(jobs.requests):,} requests, {jobs.again:,} of them sent again")
    if report["unknown"]:
        yield Text(
            "  Unknown are accounts that were refused in a request that was sent again: the first answer is not known."
        )
    yield _line(f"{len(copies.sent):,} callbacks: {len(copies.first_handled):,} handled", copies.lost)
    yield Text(
        f"  {copies.resent:,} resent by the platform, {copies.twice:,} handled twice, {copies.out_of_order:,} out of order, "
        f"{copies.counts.get('dead', 0):,} dead letters"
    )
    yield Text()
    if not figures.mismatches():
        yield Text(
            f"All figures agree with the platform's state and its log of deliveries. It took {figures.seconds:.0f} s.",
            style="green",
        )
    yield Text(
        "Pause: how long an event waited for its handler (handler worker, server), no callback was accepted (receiver), or "
        "the platform saw no request (operation worker, coordinator).",
        style="dim",
    )


def _line(text: str, lost: int) -> Text:
    return Text(f"{text}, ").append(f"{lost:,} lost", style="bold red" if lost else "bold green")
