"""The command line ``python -m benchmarks [PART ...]``: measure, and print tables and goals."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from benchmarks.results import Options, Result, shown, versions

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PARTS", "main"]

PARTS = ("throughput", "core", "bulk", "callbacks", "import_time", "memory")
PACKAGES = (
    "rbim",
    "httpx",
    "httpx2",
    "aiohttp",
    "pyreqwest",
    "requests",
    "httptools",
    "orjson",
    "uvloop",
    "anyio",
    "attrs",
    "cattrs",
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
    """Measure the parts that the command line names; return 1 after an error, otherwise 0, also if goals are missed."""
    options = _options(arguments)
    try:
        _measure(options)
    except EXPECTED as error:
        print(f"python -m benchmarks: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m benchmarks", description="Measure the cost of rbim, beside other clients.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"parts to measure, of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=Options().rounds, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only check that everything runs: the figures mean little")
    parser.add_argument("--json", metavar="FILE", help="write all results as JSON (-: to standard output)")
    parser.add_argument("--plot", metavar="DIR", type=Path, help="draw the charts into this folder")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)} (choose from {', '.join(PARTS)})")
    if options.rounds < 1:
        parser.error("--rounds: at least 1 is needed")
    options.parts = tuple(dict.fromkeys(options.parts)) or PARTS
    if options.plot is not None and "throughput" not in options.parts:
        parser.error("--plot: the charts show the part throughput: measure it, too")
    if options.json == "":
        parser.error("--json: name a file, or - for standard output")
    return options


def _measure(options: argparse.Namespace) -> None:
    """Measure each part and print its result at once: to standard error if JSON goes to standard output."""
    if options.json not in {None, "-"}:
        Path(options.json).open("a", encoding="utf-8").close()  # fail before minutes of measuring
    draw = None
    if options.plot is not None:
        options.plot.mkdir(parents=True, exist_ok=True)
        import_module("matplotlib")
        draw = import_module("benchmarks.plot").draw
    tables = sys.stderr if options.json == "-" else sys.stdout
    results: list[Result] = []
    for part in options.parts:
        print(f"measuring {part} ...", file=sys.stderr, flush=True)
        results.append(import_module(f"benchmarks.{part}").run(Options(rounds=options.rounds, quick=options.quick)))
        print(shown(results[-1]), end="\n\n", file=tables, flush=True)
    document = {
        "versions": versions(*PACKAGES),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "results": [result.document() for result in results],
    }
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if options.json == "-":
        print(text)
    elif options.json:
        Path(options.json).write_text(f"{text}\n", encoding="utf-8")
    if draw is not None:
        for path in draw(document, options.plot):
            print(path, file=tables)


if __name__ == "__main__":
    sys.exit(main())
