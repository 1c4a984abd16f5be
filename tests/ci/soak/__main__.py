"""``python -m tests.ci.soak client --minutes 15``; the driver starts the subject by ``... subject NAME PLAN ...``."""

import argparse
import asyncio
import json
import sqlite3
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from tests.ci.helpers_ci.proof import about, write_document

from .driver import ROOT, Account
from .probe import PLANTS, Plan, Probe
from .verdict import BOUNDS, LEAST, judged

SAMPLES = 180  # of a run
SCENARIOS = ("client", "job", "receiver", "emulator")
POINTS = 60  # of a course in the record
DRAWN = ("memory", "descriptors", "connections", "threads", "tasks")
PACKAGES = ("aiohttp", "anyio", "httpx", "httpx2", "uvicorn")


def scenario(name):
    """Return the module of a scenario: ``subject`` runs in the process under observation, ``drive`` beside it."""
    return import_module(f"{__package__}.{name}")


def main(arguments=None):
    """Run what the command line says; return 1 if something grew or was lost."""
    told = _parser().parse_args(arguments)
    names = told.scenario or list(SCENARIOS)
    versions = {"SQLite": sqlite3.sqlite_version, **{name: version(name) for name in PACKAGES}}
    run_of = about(**versions) if told.record else {}
    results = [_run(names[0], told)] if len(names) == 1 else _side_by_side(names, told)
    for result in results:
        _say(json.dumps(result) if told.json else said(result))
    if told.record:
        write_document(told.record, {**run_of, "runs": [recorded(each) for each in results]})
    return 0 if all(passed(each) for each in results) else 1


def said(result):
    lines = [f"{result['scenario']}, {result['minutes']:g} minutes, {result['rate']:g} requests a second"]
    for each in result["verdicts"]:
        growth = f"{each['growth']:+10,.1f} of {each['allowed']:,.0f} {each['unit']}"
        lines.append(f"  {each['figure']:12} {growth}  {'flat' if each['flat'] else 'GROWS'}")
    counts = ", ".join(f"{name} {number:,}" for name, number in sorted(result["counts"].items()))
    return "\n".join([*lines, f"  counts: {counts}", *(f"  LOST: {each}" for each in result["losses"])])


def passed(result):
    return not result["losses"] and all(each["flat"] for each in result["verdicts"])


def recorded(result):
    """Return a run as the page on reliability and its chart need it: the courses that are drawn, with no peak lost."""
    samples = result["samples"]
    number = min(POINTS, len(samples))
    edges = [round(each * len(samples) / number) for each in range(number + 1)]
    files = [each["figure"] for each in result["verdicts"] if each["figure"] not in BOUNDS]
    return {
        **result,
        "samples": len(samples),
        "counts": dict(sorted(result["counts"].items(), key=lambda item: -item[1])),
        "courses": {
            name: [max(each[name] for each in samples[begin:end]) for begin, end in pairwise(edges)]
            for name in (*DRAWN, *files)
        },
    }


def _parser():
    parser = argparse.ArgumentParser(prog="python -m tests.ci.soak", description="Run parts of rbim for long, under faults.")
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(SCENARIOS)} (default: all at the same time)")
    parser.add_argument("--minutes", type=float, default=15.0, help="of each run (15)")
    parser.add_argument("--rate", type=float, default=50.0, help="requests in a second (50)")
    parser.add_argument("--life", type=float, default=15.0, help="seconds between two reloads (15)")
    parser.add_argument("--requests", type=int, help="end after so many requests of each part, if the minutes are not over")
    parser.add_argument("--plant", choices=PLANTS, help="plant a leak, to see it found")
    parser.add_argument("--json", action="store_true", help="print results as JSON lines")
    parser.add_argument("--record", metavar="FILE", type=Path, help="write the results to this file")
    return parser


def _say(text):
    print(text, flush=True)  # noqa: T201  # a command


def _run(name, told):
    seconds, account, module = told.minutes * 60, Account(), scenario(name)
    with TemporaryDirectory(prefix="rbim-soak-") as folder:
        plan = Plan(
            requests=told.requests,
            rate=told.rate,
            every=max(0.2, seconds / SAMPLES),
            life=told.life,
            folder=Path(folder),
            plant=told.plant,
        )
        subject = asyncio.run(module.drive(plan, seconds, account))
        if subject.process.returncode:
            account.losses.append(f"the {name} ended with code {subject.process.returncode}: {_last(plan.folder / 'log')}")
    verdicts = judged(subject.samples, {**BOUNDS, **module.BOUNDS}) if len(subject.samples) >= LEAST else []
    account.require(verdicts, f"{len(subject.samples)} samples of the {name} are too few")
    return {
        "scenario": name,
        "minutes": told.minutes,
        "rate": told.rate,
        "samples": subject.samples,
        "counts": {**(subject.end or {}), **account.counts},
        "verdicts": [{**attrs.asdict(each), "flat": each.flat} for each in verdicts],
        "losses": account.losses,
    }


def _last(log):
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _side_by_side(names, told):
    flags = ["--minutes", str(told.minutes), "--rate", str(told.rate), "--life", str(told.life), "--json"]
    flags += ["--requests", str(told.requests)] if told.requests else []
    flags += ["--plant", told.plant] if told.plant else []
    running = [
        subprocess.Popen([sys.executable, "-m", "tests.ci.soak", name, *flags], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    try:
        outputs = [each.communicate()[0] for each in running]
    finally:
        for each in running:
            each.kill()
    return [json.loads(output) for output in outputs]


if __name__ == "__main__":
    if sys.argv[1:2] == ["subject"]:
        asyncio.run(scenario(sys.argv[2]).subject(Probe(Plan(**json.loads(sys.argv[3]))), *sys.argv[4:]))
    else:
        sys.exit(main())
