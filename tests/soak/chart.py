"""A run as plain text: one line for each figure, with its course."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["chart", "course", "thinned"]

BARS = "▁▂▃▄▅▆▇█"
WIDE = 60


def thinned(values: Sequence[float], most: int = WIDE) -> list[float]:
    """Return at most so many values: the highest of each stretch, so that no peak is lost."""
    number = min(most, len(values))
    edges = [round(each * len(values) / number) for each in range(number + 1)]
    return [max(values[begin:end]) for begin, end in pairwise(edges)]


def course(values: Sequence[float]) -> str:
    """Return the values as a line of bars, the lowest and the highest bar for the lowest and the highest value."""
    low, high = min(values), max(values)
    return "".join(BARS[int((each - low) / (high - low) * (len(BARS) - 1)) if high > low else 0] for each in thinned(values))


def chart(result: Mapping[str, Any]) -> str:
    """Return the chart of one run, with its verdicts and its counts."""
    lines = [f"{result['scenario']}, {result['minutes']:g} minutes, {result['rate']:g} requests a second"]
    for each in result["verdicts"]:
        values = [sample[each["figure"]] for sample in result["samples"]]
        lines.append(
            f"  {each['figure']:12} {course(values):{WIDE}} {min(values):>9,} to {max(values):>9,} {each['unit']:8}"
            f" {each['growth']:+10,.1f} of {each['allowed']:,.0f}  {'flat' if each['flat'] else 'GROWS'}"
        )
    counts = ", ".join(f"{name} {number:,}" for name, number in sorted(result["counts"].items(), key=lambda item: -item[1]))
    lines.append(f"  counts: {counts}")
    lines += [f"  LOST: {each}" for each in result["losses"]] or ["  nothing was lost"]
    return "\n".join(lines)
