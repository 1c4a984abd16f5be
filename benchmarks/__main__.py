"""The command line: ``python -m benchmarks [PART ...]`` measures, and prints tables and goals."""

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
        """Say in one line what is wrong."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line says; return 0 whether goals are reached or not, 1 where something went wrong."""
    told = _told(arguments)
    try:
        _measure(told)
    except EXPECTED as error:
        print(f"python -m benchmarks: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _told(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m benchmarks", description="Measure what rbim costs, beside its peers.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=Options().rounds, help="interleaved repeats (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="show that everything runs: the figures mean little")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; with -, to standard output")
    parser.add_argument("--plot", metavar="DIR", type=Path, help="draw the charts into this folder")
    told = parser.parse_args(arguments)
    unknown = [part for part in told.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)} (there are {', '.join(PARTS)})")
    if told.rounds < 1:
        parser.error("--rounds: at least 1")
    told.parts = tuple(dict.fromkeys(told.parts)) or PARTS
    if told.plot is not None and "throughput" not in told.parts:
        parser.error("--plot: the charts show the part throughput, which is not among those measured")
    if told.json == "":
        parser.error("--json: a file is needed")
    return told


def _measure(told: argparse.Namespace) -> None:
    """Measure part by part, and show each as soon as it is done: on standard error where JSON takes standard output."""
    if told.json not in {None, "-"}:
        Path(told.json).open("a", encoding="utf-8").close()  # what cannot be written shall show before minutes of measuring
    draw = None
    if told.plot is not None:
        told.plot.mkdir(parents=True, exist_ok=True)
        import_module("matplotlib")
        draw = import_module("benchmarks.plot").draw
    tables = sys.stderr if told.json == "-" else sys.stdout
    results: list[Result] = []
    for part in told.parts:
        print(f"measuring {part} ...", file=sys.stderr, flush=True)
        results.append(import_module(f"benchmarks.{part}").run(Options(rounds=told.rounds, quick=told.quick)))
        print(shown(results[-1]), end="\n\n", file=tables, flush=True)
    document = {
        "versions": versions(*PACKAGES),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "results": [result.document() for result in results],
    }
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if told.json == "-":
        print(text)
    elif told.json:
        Path(told.json).write_text(f"{text}\n", encoding="utf-8")
    if draw is not None:
        for path in draw(document, told.plot):
            print(path, file=tables)


if __name__ == "__main__":
    sys.exit(main())
