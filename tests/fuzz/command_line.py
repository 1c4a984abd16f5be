"""The command line of the fuzz targets."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from . import corpora
from .runner import TARGETS, Runner, target

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return 1 after a finding."""
    told = _parser().parse_args(arguments)
    code: int = told.do(told)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what reads bytes from outside.")
    parser.add_argument("--folder", type=Path, default=_cache(), help="the folder of corpora and progress (%(default)s)")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run targets, one after the other; a later run continues")
    run.add_argument("target", nargs="*", choices=[*TARGETS, []])
    run.add_argument("--all", action="store_true", help="every target")
    run.add_argument("--seconds", type=int, default=600, help="for each target (%(default)s)")
    run.add_argument("--up-to", action="store_true", help="only as long as a target has run for less in all")
    run.set_defaults(do=_run)
    replay = commands.add_parser("replay", help="check inputs: files, or those that are kept; needs no engine")
    replay.add_argument("target", choices=TARGETS)
    replay.add_argument("file", nargs="*", type=Path)
    replay.set_defaults(do=_replay)
    keep = commands.add_parser("keep", help="replace the kept corpus by the fewest inputs that reach the same")
    keep.add_argument("target", nargs="*", choices=[*TARGETS, []])
    keep.add_argument("--most", type=int, default=30_000, help="bytes of the file (%(default)s)")
    keep.set_defaults(do=_keep)
    return parser


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rbim-fuzz"


def _say(text: str = "") -> None:
    print(text, flush=True)  # noqa: T201  # a command


def _run(told: argparse.Namespace) -> int:
    runner, found = Runner(told.folder), 0
    for name in TARGETS if told.all else told.target:
        seconds = told.seconds
        if told.up_to:
            seconds -= int(runner.progress(name).seconds)
        if seconds <= 0:
            continue
        progress = runner.run(name, seconds)
        found += len(progress.findings)
        _say(f"{name}: {progress.seconds:.0f} s, {progress.executions} executions, {progress.edges} edges, {progress.inputs} inputs")
        for kind, file in progress.findings.items():
            _say(f"  {kind}: {told.folder / name / 'findings' / file}")
    return 1 if found else 0


def _replay(told: argparse.Namespace) -> int:
    module = target(told.target)
    inputs = [path.read_bytes() for path in told.file]
    for data in inputs or [*module.seeds(), *corpora.kept(told.target), *corpora.findings(told.target)]:
        module.check(data)
    return 0


def _keep(told: argparse.Namespace) -> int:
    runner = Runner(told.folder)
    for name in told.target or TARGETS:
        size, chosen = 0, []
        for data in sorted(runner.minimised(name), key=lambda each: (len(each), each)):
            size += len(repr(data)) + 1
            if size > told.most:
                break
            chosen.append(data)
        _say(f"{name}: {len(chosen)} inputs, {corpora.write_kept(name, chosen)} bytes")
    return 0
