"""``python -m tests.ci.mutants signatures``: the command line of mutation testing."""

import argparse
import importlib
import sys
import time
from importlib.metadata import version
from pathlib import Path

from tests.ci.helpers_ci.proof import about, write_document

from . import record
from .areas import AREAS
from .mutation import ROOT, mutants_of, sampled
from .session import BUDGET, run_area

EXAMPLES = """
examples:
  python -m tests.ci.mutants                       what has no result yet, of all areas
  python -m tests.ci.mutants signatures --again    its survivors without a reason once more
  python -m tests.ci.mutants --list                what is known, and the survivors without a reason
  python -m tests.ci.mutants --record              write docs/internals/proof/mutants.json from the results
"""


def main(arguments=None):
    """Do what the command line says; return 1 if a mutant survives for which no reason is known."""
    told = _parser().parse_args(arguments)
    for name in ("anyio", "cattrs", "httpx", "hypothesis", "trio"):
        importlib.import_module(name)  # once, for all processes that are forked; rbim itself must not be loaded here
    ends = time.monotonic() + told.seconds
    areas, known = {}, record.reasons().keys()
    for name in told.area or list(AREAS):
        area = AREAS[name]
        every = [mutant for path in area.paths() for mutant in mutants_of(path)]
        sample = sampled(every, area.sample)
        results = record.Results(told.work, name)
        again = {mutant.key for mutant in sample if told.again and not results.noticed(mutant)} - known
        pending = [m for m in sample if told.only in m.key and (results.of(m) is None or m.key in again)]
        if pending and not told.list and not told.record:
            _say(f"{name}: {len(pending)} of {len(sample)} mutants")
            report = _reporter(results, pending)
            run_area(area, pending, cache=told.work / "tests", report=report, ends=ends, budget=told.budget)
        areas[name] = record.area_record(area.paths(), len(every), sample, results)
        _summary(name, areas[name], len(sample))
    if told.record:
        versions = {name: version(name) for name in ("rbim", "cosmic-ray", "pytest", "hypothesis")}
        write_document(record.RECORD, {**about(**versions), "areas": areas})
    return int(any(row["kind"] == record.NEW for area in areas.values() for row in area["survivors"]))


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tests.ci.mutants",
        description="Change rbim in one place at a time, and see whether a test fails. No file of rbim is written.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("area", nargs="*", choices=[*AREAS, []], metavar="AREA", help=f"{', '.join(AREAS)} (all)")
    parser.add_argument("--again", action="store_true", help="try survivors without a reason once more")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose names have this text")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no mutant after so many seconds; the same command goes on"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET,
        help="seconds of tests for a mutant, the fastest first (default: %(default)g)",
    )
    parser.add_argument("--list", action="store_true", help="try none, print what is known")
    parser.add_argument("--record", action="store_true", help="try none, write the results for the page on reliability")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutants", help="the folder of the results")
    return parser


def _reporter(results, mutants):
    by_key = {mutant.key: mutant for mutant in mutants}

    def report(result):
        results.add(result)
        mutant = by_key[result.key]
        what = f"{mutant.path}:{mutant.line}  {mutant.change()}"
        _say(f"  {result.verdict:9} {result.seconds:6.1f} s  {what}  {result.test}")

    return report


def _summary(name, area, sample):
    counts = f"{area['noticed']} noticed, {area['survived']} survived"
    _say(f"{name}: {area['mutants']} of {sample} mutants tried: {counts}")
    for row in area["survivors"]:
        if row["kind"] == record.NEW:
            _say(f"  new: {row['place']}  {row['change']}\n       {row['mutant']}")


def _say(text):
    print(text, flush=True)  # noqa: T201  # a command


if __name__ == "__main__":
    sys.exit(main())
