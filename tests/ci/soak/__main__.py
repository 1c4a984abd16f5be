"""``python -m tests.ci.soak client --minutes 15``."""

import argparse
import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from tests.ci.helpers_ci.proof import ROOT, about, write_document

from .parts import PARTS
from .probe import PLANTS, Probe
from .verdict import BOUNDS, judged

SAMPLES = 180  # of a run
POINTS = 60  # of a course in the record
DRAWN = ("memory", "descriptors", "connections", "threads", "tasks")
PACKAGES = ("aiohttp", "anyio", "httpx", "httpx2", "uvicorn")


def main(arguments=None):
    """Run what the command line says; return 1 if something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.ci.soak", description="Run parts of rbim for long, under faults.")
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)} (default: all at the same time)")
    parser.add_argument("--minutes", type=float, default=15.0, help="of each run (15)")
    parser.add_argument("--rate", type=float, default=50.0, help="requests in a second (50)")
    parser.add_argument("--life", type=float, default=15.0, help="seconds between two reloads (15)")
    parser.add_argument("--requests", type=int, help="end after so many requests of each part, if the minutes are not over")
    parser.add_argument("--plant", choices=PLANTS, help="plant a leak, to see it found")
    parser.add_argument("--json", action="store_true", help="print results as JSON lines")
    parser.add_argument("--record", metavar="FILE", type=Path, help="write the results to this file")
    told = parser.parse_args(arguments)
    packages = {"SQLite": sqlite3.sqlite_version, **{name: version(name) for name in PACKAGES}}
    run_of = about(**packages) if told.record else {}
    results = [_run(told.part[0], told)] if len(told.part) == 1 else _side_by_side(told)
    for result in results:
        print(json.dumps(result) if told.json else _said(result), flush=True)  # noqa: T201  # a command
    if told.record:
        write_document(told.record, {**run_of, "runs": [_recorded(each) for each in results]})
    return int(not all(each["flat"] for result in results for each in result["verdicts"]))


def _run(name, told):
    """Run one part in this process, and return its result as a document."""
    part, seconds = PARTS[name], told.minutes * 60
    with TemporaryDirectory(prefix="rbim-soak-") as folder:
        probe = Probe(
            rate=told.rate,
            seconds=seconds,
            every=max(0.2, seconds / SAMPLES),
            life=told.life,
            folder=Path(folder),
            plant=told.plant,
            requests=told.requests,
        )
        asyncio.run(part.run(probe))
        samples = probe.samples()
    return {
        "scenario": name,
        "minutes": told.minutes,
        "rate": told.rate,
        "samples": samples,
        "counts": dict(probe.counts.most_common()),
        "verdicts": [{**attrs.asdict(each), "flat": each.flat} for each in judged(samples, {**BOUNDS, **part.bounds})],
    }


def _side_by_side(told):
    """Run several parts at the same time, each in a process of its own."""
    flags = ["--minutes", str(told.minutes), "--rate", str(told.rate), "--life", str(told.life), "--json"]
    flags += ["--requests", str(told.requests)] if told.requests else []
    flags += ["--plant", told.plant] if told.plant else []
    with ExitStack() as stack:
        running = []
        for name in told.part or PARTS:
            command = [sys.executable, "-m", "tests.ci.soak", name, *flags]
            log = stack.enter_context((Path(stack.enter_context(TemporaryDirectory())) / "log").open("w+"))
            started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
            stack.callback(started.kill)
            running.append((name, started, log))
        results = []
        for name, each, log in running:
            output = each.communicate()[0]
            if not output:
                log.seek(0)
                raise RuntimeError(f"the {name} ended with code {each.returncode}:\n{log.read()[-2000:]}")
            results.append(json.loads(output))
        return results


def _said(result):
    """Return a run as text: a line for each figure, and what was counted."""
    lines = [f"{result['scenario']}, {result['minutes']:g} minutes, {result['rate']:g} requests a second"]
    for each in result["verdicts"]:
        growth = f"{each['growth']:+10,.1f} of {each['allowed']:,.0f} {each['unit']}"
        lines.append(f"  {each['figure']:12} {growth}  {'flat' if each['flat'] else 'GROWS'}")
    return "\n".join([*lines, f"  counts: {', '.join(f'{name} {number:,}' for name, number in result['counts'].items())}"])


def _recorded(result):
    """Return a run as the page on reliability and its chart need it: the courses that are drawn, with no peak lost."""
    samples = result["samples"]
    number = min(POINTS, len(samples))
    edges = pairwise(round(each * len(samples) / number) for each in range(number + 1))
    parts = [samples[begin:end] for begin, end in edges]
    courses = {name: [max(each[name] for each in part) for part in parts] for name in DRAWN}
    return {**result, "samples": len(samples), "courses": courses}


if __name__ == "__main__":
    sys.exit(main())
