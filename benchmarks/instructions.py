"""The instructions of a call, counted by valgrind: unlike times, they do not depend on the machine's other work.

Run: python -m benchmarks instructions [--against REVISION] [--tolerance 0.05]

Each figure is the difference between two lengths of one run, divided by the calls in between, so that neither the start nor
the warm-up counts: thousands of instructions in user space, of one process, with a fixed hash seed. Ten calls are in flight
to a server in another process, whose answers have heads of their own. ``benchmarks/counted.py`` is the work.

``--against`` runs the same work with the package of another revision, in the same environment and at the same time, and
compares. A figure over the tolerance is refused, unless a commit since that revision says in its message that it is meant::

    Slower: asyncio connections are checked before each request

An item that does not exist in one of the two trees is left out.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks.counted import ITEMS
from benchmarks.httpload import ROOT, process
from benchmarks.results import Goal, Result, Table

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from benchmarks.results import Options

__all__ = ["Counts", "accepted", "comparison", "counts", "missing", "refused", "run", "table", "tree_of"]

VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
REFERENCES = re.compile(r"I\s+refs:\s+([\d,]+)")
SLOWER = re.compile(r"^Slower:[ \t]+(\S+)[ \t]+(\S.*)$", re.MULTILINE)


@frozen
class Counts:
    """Instructions per call by item, and why the other items have none."""

    figures: Mapping[str, float]
    left_out: Mapping[str, str]


def missing() -> str:
    """Return what is missing for this part, or an empty text."""
    return "" if shutil.which(VALGRIND[0]) else "instructions: valgrind is not installed: apt-get install valgrind"


def counts(tree: Path, *, quick: bool = False) -> Counts:
    """Count the instructions of all items with the package ``rbim`` and the benchmarks in this folder."""
    figures: dict[str, float] = {}
    left_out: dict[str, str] = {}
    with process("benchmarks.target") as served, tempfile.TemporaryDirectory() as folder:
        command = [*VALGRIND, f"--log-file={folder}/%p", sys.executable, "-m", "benchmarks.counted", str(served.port)]
        done = subprocess.run(
            [*command, *["--quick"] * quick],
            cwd=tree,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"instructions: the counted process failed: {(done.stderr.splitlines() or ['?'])[-1]}")
        for line in done.stdout.splitlines():
            found = json.loads(line)
            if "error" in found:
                left_out[found["item"]] = found["error"]
            else:
                before, after = (_references(Path(folder, str(number))) for number in found["processes"])
                figures[found["item"]] = (after - before) / found["calls"]
    for name in ITEMS:
        if name not in figures:
            left_out.setdefault(name, "its process ended early")
    return Counts(figures, left_out)


def _references(log: Path) -> int:
    found = REFERENCES.search(log.read_text(encoding="utf-8"))
    if found is None:
        raise RuntimeError("instructions: valgrind wrote no count")
    return int(found[1].replace(",", ""))


@contextmanager
def tree_of(revision: str) -> Generator[Path]:
    """Yield a folder with the package of a revision (empty: of the working tree) and these benchmarks, compiled."""
    with tempfile.TemporaryDirectory() as folder:
        if revision:
            with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", revision, "rbim"))) as archive:
                archive.extractall(folder, filter="data")
        for name in ("benchmarks",) if revision else ("rbim", "benchmarks"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        compile_dir(folder, quiet=2)
        yield Path(folder)


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        raise RuntimeError("instructions: git is not installed") from None
    if done.returncode:
        raise RuntimeError(f"instructions: git {arguments[0]}: {done.stderr.decode().strip().splitlines()[0]}")
    return done.stdout


def accepted(messages: str) -> dict[str, str]:
    """Return the slow-downs that messages of commits announce: item and reason."""
    return {name: reason.strip() for name, reason in SLOWER.findall(messages)}


def table(counted: Counts) -> Table:
    """Return the figures of one tree."""
    return Table(
        title="Thousand instructions of a call or of a part of it",
        columns=("", "thousand instructions"),
        rows=tuple((name, figure / 1000) for name, figure in counted.figures.items()),
    )


def comparison(revision: str, before: Counts, after: Counts, reasons: Mapping[str, str], tolerance: float) -> Result:
    """Return the figures of two trees side by side."""
    both = [name for name in after.figures if name in before.figures]
    change = {name: after.figures[name] / before.figures[name] for name in both}
    rows = tuple(
        (name, before.figures[name] / 1000, after.figures[name] / 1000, f"{change[name] - 1:+.1%}") for name in both
    )
    left_out = {**before.left_out, **after.left_out}
    goals = (
        Goal(
            name=f"instructions of {name} / at {revision}",
            value=change[name],
            at_most=None if name in reasons else 1 + tolerance,
        )
        for name in both
    )
    notes = [f"Left out: {name} ({why})." for name, why in left_out.items()]
    notes += [f"Accepted: {name} {change[name] - 1:+.1%}: {reason}." for name, reason in reasons.items() if name in change]
    return Result(
        part="instructions",
        tables=(
            Table(
                title="Thousand instructions of a call or of a part of it",
                columns=("", f"at {revision}", "now", "change"),
                rows=rows,
            ),
        ),
        goals=tuple(goals),
        notes=tuple(notes),
    )


def refused(result: Result) -> list[str]:
    """Return the names of the items of a comparison that are over the tolerance."""
    return [str(row[0]) for row, goal in zip(result.tables[0].rows, result.goals, strict=True) if goal.met is False]


def run(options: Options) -> Result:
    """Count the instructions of this tree; with ``against``, beside those of another revision.

    Raises RuntimeError without valgrind, or if the other revision cannot be had.
    """
    if why := missing():
        raise RuntimeError(why)
    if not options.against:
        with tree_of("") as tree:
            found = counts(tree, quick=options.quick)
        notes = tuple(f"Left out: {name} ({why})." for name, why in found.left_out.items())
        return Result(part="instructions", tables=(table(found),), notes=notes)
    reasons = accepted(_git("log", "--format=%B", f"{options.against}..HEAD").decode())
    with tree_of(options.against) as former, tree_of("") as present, ThreadPoolExecutor(2) as threads:
        trees = [threads.submit(counts, tree, quick=options.quick) for tree in (former, present)]
        before, after = (each.result() for each in trees)
    return comparison(options.against, before, after, reasons, options.tolerance)
