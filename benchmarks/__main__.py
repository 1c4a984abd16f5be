"""The command line ``python -m benchmarks [PART ...]``: measure, and print tables and goals."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from benchmarks.results import Options, Result, shown, versions

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PARTS", "main", "merged"]

PARTS = (
    "throughput",
    "core",
    "rates",
    "congestion",
    "bulk",
    "loading",
    "callbacks",
    "postgres",
    "import_time",
    "tenants",
    "instructions",
)
PACKAGES = (
    "rbim",
    "httpx",
    "httpx2",
    "aiohttp",
    "pyreqwest",
    "httptools",
    "h11",
    "orjson",
    "anyio",
    "attrs",
    "cattrs",
    "psycopg",
    "uvicorn",
    "fastapi",
)
# a library that is missing, a file that cannot be written, a child that failed
EXPECTED = (ImportError, OSError, RuntimeError, subprocess.SubprocessError)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and a message of one line."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts that the command line names.

    Return 1 after an error, or if ``--against`` finds too many instructions; otherwise 0, also if goals are missed.
    """
    options = _options(arguments)
    try:
        slower = _measure(options)
    except EXPECTED as error:
        print(f"python -m benchmarks: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if slower:
        print(
            f"python -m benchmarks: too many instructions: {', '.join(slower)}: make it faster, or say why in the message "
            "of a commit (Slower: NAME REASON)",
            file=sys.stderr,
        )
    return int(bool(slower))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m benchmarks", description="Measure the cost of rbim, beside other clients.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"parts to measure, of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=Options().rounds, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only check that everything runs: the figures mean little")
    parser.add_argument("--full", action="store_true", help="also what takes minutes: ten million rows (loading)")
    parser.add_argument("--json", metavar="FILE", help="write all results as JSON, after each part (-: to standard output)")
    parser.add_argument("--merge", action="store_true", help="keep the other parts that FILE has, for a run in several goes")
    parser.add_argument("--plot", metavar="DIR", type=Path, help="draw the charts into this folder")
    parser.add_argument("--against", metavar="REVISION", default="", help="compare the instructions with another revision")
    parser.add_argument(
        "--tolerance", type=float, default=Options().tolerance, help="accepted growth of instructions (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)} (choose from {', '.join(PARTS)})")
    if options.rounds < 1:
        parser.error("--rounds: at least 1 is needed")
    named = tuple(dict.fromkeys(options.parts))
    options.parts = named or _available()
    if options.json == "":
        parser.error("--json: name a file, or - for standard output")
    if options.merge and options.json in {None, "-"}:
        parser.error("--merge: name the file with --json")
    if options.plot is not None and "throughput" not in options.parts and not options.merge:
        parser.error("--plot: the charts show the part throughput: measure it, too")
    if options.against and "instructions" not in options.parts:
        parser.error("--against: it compares the part instructions: measure it, too")
    return options


def _available() -> tuple[str, ...]:
    """Return all parts; without instructions if valgrind is missing."""
    why = import_module("benchmarks.instructions").missing()
    if why:
        print(f"left out: {why}", file=sys.stderr)
    return tuple(part for part in PARTS if part != "instructions" or not why)


def _measure(options: argparse.Namespace) -> list[str]:
    """Measure each part and print its result at once: to standard error if JSON goes to standard output.

    Return the items with too many more instructions than at the revision of ``--against``.
    """
    path = None if options.json in {None, "-"} else Path(options.json)
    if path is not None:
        path.open("a", encoding="utf-8").close()  # fail before minutes of measuring
    draw = None
    if options.plot is not None:
        options.plot.mkdir(parents=True, exist_ok=True)
        import_module("matplotlib")
        draw = import_module("benchmarks.plot").draw
    tables = sys.stderr if options.json == "-" else sys.stdout
    document = _document()
    if options.merge and path is not None:
        document = merged(path.read_text(encoding="utf-8"), document)
    chosen = Options(
        rounds=options.rounds,
        quick=options.quick,
        full=options.full,
        against=options.against,
        tolerance=options.tolerance,
    )
    slower: list[str] = []
    for part in options.parts:
        print(f"measuring {part} ...", file=sys.stderr, flush=True)
        began = time.monotonic()
        result: Result = import_module(f"benchmarks.{part}").run(chosen)
        print(shown(result), end="\n\n", file=tables, flush=True)
        if options.against and part == "instructions":
            slower = import_module("benchmarks.instructions").refused(result)
        measured = {**result.document(), "rounds": options.rounds, "seconds": round(time.monotonic() - began, 1)}
        document["results"] = [each for each in document["results"] if each["part"] != result.part] + [measured]
        if path is not None:
            _save(path, document)
    if options.json == "-":
        print(json.dumps(document, indent=2, ensure_ascii=False))
    if draw is not None:
        for picture in draw(document, options.plot):
            print(picture, file=tables)
    return slower


def _document() -> dict[str, Any]:
    return {
        "versions": versions(*PACKAGES),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "results": [],
    }


def merged(kept: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the results of an earlier one.

    Raises RuntimeError if that was measured with other versions or on another machine.
    """
    if not kept:
        return document
    earlier = json.loads(kept)
    for name in ("versions", "machine"):
        if earlier[name] != document[name]:
            raise RuntimeError(f"--merge: the file has results of {earlier[name]}, these are of {document[name]}")
    return {**document, "results": earlier["results"]}


def _save(path: Path, document: dict[str, Any]) -> None:
    """Write a document so that an interruption leaves the one before, in the order of the parts."""
    order = {part: number for number, part in enumerate(PARTS)}
    ordered = sorted(document["results"], key=lambda result: order.get(result["part"], len(order)))
    new = path.with_name(f"{path.name}.new")
    text = json.dumps({**document, "results": ordered}, indent=1, ensure_ascii=False)
    new.write_text(f"{text}\n", encoding="utf-8")
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
