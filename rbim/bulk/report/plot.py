"""Plot of a job over time: requests per second, requests in flight, and throttled or failed requests."""

from __future__ import annotations

from itertools import groupby
from math import nan
from typing import TYPE_CHECKING, Any

from rbim._support.private_files import private_stream
from rbim._support.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rbim.bulk.report.model import Interval, Report

__all__ = ["ENDINGS", "plot_report"]

ENDINGS = (".png", ".svg")
"""Endings of a picture's name."""

WIDTH = 10.0  # inches
HEIGHTS = (2.6, 2.0, 1.3)  # inches of each panel
MARGIN = 1.3  # inches for the title and below
RESOLUTION = 130  # dots per inch
NAME = 60  # characters of the source's name
LABEL_SHARE = 0.2  # share of the time axis that a run needs for its label

# Okabe and Ito's colours: distinct for colour-blind readers too
BLUE, SKY, ORANGE, VERMILION, GREY = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#555555"

PLAIN = "DejaVu Sans"  # comes with matplotlib
CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans GB",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "SimHei",
    "Arial Unicode MS",
)
UNITS = ((3 * 3600.0, 3600.0, "h"), (300.0, 60.0, "min"), (0.0, 1.0, "s"))


def plot_report(report: Report, path: Path) -> None:
    """Draw a report over its running time into a file, by its ending PNG or SVG. Lines break between two runs."""
    from matplotlib.figure import Figure

    ending = path.suffix.lower()
    intervals = report.over_time
    panels: list[Callable[[Any, _Timeline], None]] = [_draw_requests, _draw_in_flight]
    if any(each.throttled or each.failed for each in intervals):
        panels.append(_draw_failures)
    heights = HEIGHTS[: len(panels)]
    figure: Any = Figure(figsize=(WIDTH, sum(heights) + MARGIN), dpi=RESOLUTION, layout="constrained")
    axes = figure.subplots(len(panels), sharex=True, height_ratios=heights)
    timeline = _Timeline(intervals)
    for draw, each in zip(panels, axes, strict=True):
        each.grid(visible=True, color="#dddddd", linewidth=0.7)
        each.set_axisbelow(True)
        each.margins(x=0.01)
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=9)
        draw(each, timeline)
        each.set_ylim(bottom=0)
        if intervals:
            each.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=3, frameon=False, fontsize=9)
    _draw_runs(axes, timeline)
    axes[-1].set_xlabel(f"running time ({timeline.unit})")
    title, font = _title(report)
    figure.suptitle(title, font=font, fontsize=13, parse_math=False)
    about = {"Title": title} | ({"Date": None} if ending == ".svg" else {})
    with private_stream(path) as stream:
        figure.savefig(stream, format=ending[1:], metadata=about)


class _Timeline:
    """The intervals by run, and the time axis."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        self.intervals = intervals
        self.length = intervals[-1].at + intervals[-1].seconds if intervals else 0.0
        self._second, self.unit = next((size, name) for least, size, name in UNITS if self.length >= least)
        self.runs = [list(group) for _, group in groupby(intervals, key=lambda each: each.run)]

    def time(self, seconds: float) -> float:
        """Return a time in the axis's unit."""
        return seconds / self._second

    def draw(self, axes: Any, values: Callable[[Interval], float | None], label: str, **style: Any) -> None:
        """Draw one value of the intervals as steps, with a break between two runs."""
        for number, run in enumerate(self.runs):
            edges = [self.time(each.at) for each in run] + [self.time(run[-1].at + run[-1].seconds)]
            heights = [nan if (value := values(each)) is None else value for each in run]
            axes.stairs(heights, edges, label=None if number else label, **style)


def _draw_requests(axes: Any, timeline: _Timeline) -> None:
    timeline.draw(axes, lambda each: each.requests, "requests ended", fill=True, color=SKY, alpha=0.35)
    timeline.draw(axes, lambda each: each.requests, "", baseline=None, color=BLUE, linewidth=1.4)
    if any(each.rate is not None for each in timeline.intervals):
        timeline.draw(
            axes, lambda each: each.rate, "allowed by the adaptive rate", baseline=None, color=VERMILION, linewidth=1.6
        )
    axes.set_ylabel("requests per second")
    if not timeline.intervals:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_xlim(0, 1)


def _draw_in_flight(axes: Any, timeline: _Timeline) -> None:
    timeline.draw(axes, lambda each: each.in_flight, "in flight (mean)", fill=True, color=SKY, alpha=0.35)
    timeline.draw(axes, lambda each: each.in_flight, "", baseline=None, color=BLUE, linewidth=1.4)
    timeline.draw(axes, lambda each: each.concurrency, "allowed at once", baseline=None, color=ORANGE, linewidth=1.6)
    axes.set_ylabel("requests at once")


def _draw_failures(axes: Any, timeline: _Timeline) -> None:
    from matplotlib.ticker import MaxNLocator

    middles = [timeline.time(each.at + each.seconds / 2) for each in timeline.intervals]
    widths = [timeline.time(each.seconds) * 0.8 for each in timeline.intervals]
    throttled = [each.throttled for each in timeline.intervals]
    failed = [each.failed for each in timeline.intervals]
    axes.bar(middles, throttled, widths, color=ORANGE, label="throttled")
    axes.bar(middles, failed, widths, bottom=throttled, color=VERMILION, hatch="////", edgecolor="white", label="failed")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    axes.set_ylabel("requests")


def _draw_runs(panels: Sequence[Any], timeline: _Timeline) -> None:
    for run in timeline.runs[1:]:
        for axes in panels:
            axes.axvline(timeline.time(run[0].at), color=GREY, linewidth=1.2, linestyle=(0, (2, 2)), zorder=6)
    if len(timeline.runs) < 2:  # noqa: PLR2004  # a single run needs no label
        return
    first = panels[0]
    first.set_ylim(top=first.get_ylim()[1] * 1.1)  # room for the labels
    for run in timeline.runs:
        if run[-1].at + run[-1].seconds - run[0].at >= timeline.length * LABEL_SHARE:
            when = f"  run {run[0].run}: {run[0].time:%Y-%m-%d %H:%M} UTC"
            place = (timeline.time(run[0].at), 1)
            first.annotate(when, place, xycoords=("data", "axes fraction"), va="top", fontsize=8, color=GREY)


def _title(report: Report) -> tuple[str, Any]:
    """Return the title, with ? for characters that no font can show, and its font."""
    from matplotlib import font_manager

    known: Any = font_manager  # it has no complete types
    source = f" of {one_line(report.source_name, NAME)}" if report.source_name else ""
    text = f"{report.operation}: {report.accounts.total:,} rows{source}"
    installed = {each.name for each in known.fontManager.ttflist}
    families = [PLAIN, *(name for name in CHINESE if name in installed)]
    fonts = [known.get_font(known.findfont(known.FontProperties(family=name))) for name in families]
    shown = "".join(each if any(font.get_char_index(ord(each)) for font in fonts) else "?" for each in text)
    return shown, known.FontProperties(family=families)
