"""The chart on the page on transports, drawn from the JSON document of the benchmarks.

Run: python -m benchmarks.plot DOCUMENT FOLDER

Needs matplotlib: ``python -m pip install "rbim[plot]"``. The same document gives the same bytes. The charts have no
background, their colours are readable on a white and on a dark page, and their text stays text.
"""

from __future__ import annotations

import argparse
import json
import math
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

__all__ = ["BY_IN_FLIGHT", "costs", "draw"]

BY_IN_FLIGHT = "cost-by-calls-in-flight.svg"
TABLE, PREFERRED = "CPU ms per 1000 calls", "no latency"
OURS, FLOOR, H11 = "rbim over ", "floor", "h11"
INK = "#7d8590"
LIBRARIES = {
    "asyncio": "#3b82f6",
    "pyreqwest": "#2f9e5f",
    "aiohttp": "#b565d9",
    "httpx2": "#d9822b",
    "httpx": "#e5534b",
}
STYLE: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.figsize": (8.0, 4.8),
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],  # the first comes with matplotlib
    "font.size": 10,
    "grid.alpha": 0.35,
    "grid.color": INK,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "rbim",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def costs(document: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return the CPU ms of 1000 calls by client and by calls in flight.

    From the table without latency, or else from the first one.
    """
    tables = [
        table
        for result in document["results"]
        for table in result["tables"]
        if table["title"].startswith(TABLE) and all(column.isdigit() for column in table["columns"][1:])
    ]
    other = tables[0] if tables else None
    found = next((table for table in tables if PREFERRED in table["title"]), other)
    if found is None:
        return {}
    in_flight = [int(column) for column in found["columns"][1:]]
    by_client = {
        name: {number: cell for number, cell in zip(in_flight, cells, strict=True) if cell is not None}
        for name, *cells in found["rows"]
    }
    return {name: figures for name, figures in by_client.items() if figures}


def draw(document: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the chart of a document into a folder, and return its path in a list, which is empty without such figures.

    Raises ImportError without matplotlib.
    """
    found = costs(document)
    if not found:
        return []
    try:
        matplotlib, figures = import_module("matplotlib"), import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError('charts need matplotlib: python -m pip install "rbim[plot]"') from error
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(layout="constrained")
        lines(figure, found)
        figure.savefig(folder / BY_IN_FLIGHT, format="svg", metadata={"Date": None, "Creator": None})
    return [folder / BY_IN_FLIGHT]


def lines(figure: Any, found: dict[str, dict[int, float]]) -> None:
    """Draw the cost of each client over the calls in flight."""
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    for name, of in found.items():
        numbers = sorted(of)
        style = "-." if name.endswith(H11) else "-" if name.startswith(OURS) else ":" if FLOOR in name else "--"
        axes.plot(numbers, [of[each] for each in numbers], style, color=line_colour(name), marker="o", markersize=4)
    ends = {name: of[max(of)] for name, of in found.items()}
    most = max(max(of) for of in found.values())
    low, high = axes.get_ylim()
    for name, height in apart(ends, (high / low) ** 0.052).items():
        axes.annotate(
            name,
            (max(found[name]), ends[name]),
            xytext=(most * 1.35, height),
            color=line_colour(name),
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": line_colour(name), "alpha": 0.4, "linewidth": 0.7},
        )
    axes.grid(visible=True)
    axes.set_xticks(sorted({number for of in found.values() for number in of}))
    axes.minorticks_off()
    plain(axes, "x")
    plain(axes, "y")
    axes.set_xlabel("calls in flight (solid: rbim; broken: written by hand)")
    axes.set_ylabel("CPU ms per 1000 calls")


def apart(ends: dict[str, float], factor: float) -> dict[str, float]:
    """Return the heights of the names of lines: near their ends, each at least ``factor`` times above the next lower one."""
    gap = math.log(factor)

    def lowest(names: list[str]) -> float:
        return fmean(math.log(ends[name]) for name in names) - gap * (len(names) - 1) / 2

    groups: list[list[str]] = []
    for name in sorted(ends, key=lambda name: ends[name]):
        groups.append([name])
        while len(groups) > 1 and lowest(groups[-1]) < lowest(groups[-2]) + gap * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return {name: math.exp(lowest(names) + gap * number) for names in groups for number, name in enumerate(names)}


def line_colour(name: str) -> str:
    """Return the colour of a line, which is the colour of its library."""
    found = (colour for library, colour in LIBRARIES.items() if library in name.lower())
    return next(found, INK)


def plain(axes: Any, axis: str) -> None:
    """Write the numbers of a logarithmic axis without exponents."""
    ticker = import_module("matplotlib.ticker")
    of = axes.xaxis if axis == "x" else axes.yaxis
    of.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    of.set_minor_formatter(ticker.NullFormatter())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description="Draw the charts of a document.")
    parser.add_argument("document", type=Path, help="the file from python -m benchmarks --json")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    for path in draw(json.loads(options.document.read_text(encoding="utf-8")), options.folder):
        print(path)
