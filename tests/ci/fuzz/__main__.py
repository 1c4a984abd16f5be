"""The command line of the fuzz targets: ``python -m tests.ci.fuzz run http_responses --seconds 600``."""

import argparse
import os
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ci.helpers_ci.proof import PROOF, about, write_document

from . import corpora
from .runner import TARGETS, NoEngine, Runner, target


def main(arguments=None):
    """Do what the command line says; return 1 after a finding, 2 without the engine."""
    told = _parser().parse_args(arguments)
    try:
        return told.do(told)
    except NoEngine as error:
        _say(str(error))
        return 2


def _parser():
    parser = argparse.ArgumentParser(prog="python -m tests.ci.fuzz", description="Fuzz what reads bytes from outside.")
    parser.add_argument("--folder", type=Path, default=_cache(), help="the folder of corpora and progress (%(default)s)")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run targets, one after the other; a later run continues")
    run.add_argument("target", nargs="*", choices=[*TARGETS, []])
    run.add_argument("--all", action="store_true", help="every target")
    run.add_argument("--seconds", type=int, default=600, help="for each target (%(default)s)")
    run.add_argument("--record", action="store_true", help="write what was done so far into docs/internals/proof/fuzz.json")
    run.set_defaults(do=_run)
    replay = commands.add_parser("replay", help="check inputs: files, or those that are kept; needs no engine")
    replay.add_argument("target", choices=[*TARGETS, "all"])
    replay.add_argument("file", nargs="*", type=Path)
    replay.set_defaults(do=_replay)
    faults = commands.add_parser("faults", help="put a fault into rbim, and look whether its target finds it")
    faults.add_argument("target", nargs="*", choices=[*TARGETS, []])
    faults.add_argument("--seconds", type=int, default=60, help="for each target (%(default)s)")
    faults.set_defaults(do=_faults)
    keep = commands.add_parser("keep", help="replace the kept corpus by the fewest inputs that reach the same")
    keep.add_argument("target", nargs="*", choices=[*TARGETS, []])
    keep.add_argument("--most", type=int, default=30_000, help="bytes of the file (%(default)s)")
    keep.set_defaults(do=_keep)
    return parser


def _cache():
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rbim-fuzz"


def _say(text=""):
    print(text, flush=True)  # noqa: T201  # a command


def _run(told):
    runner, found = Runner(told.folder), 0
    for name in TARGETS if told.all else told.target:
        progress = runner.run(name, told.seconds)
        found += len(progress.findings)
        reached = f"{progress.edges} edges, {progress.inputs} inputs"
        _say(f"{name}: {progress.seconds:.0f} s, {progress.executions} executions, {reached}")
        for kind, file in progress.findings.items():
            _say(f"  {kind}: {told.folder / name / 'findings' / file}")
    if told.record:
        document = {**about(atheris=version("atheris")), "targets": {name: _progress(runner, name) for name in TARGETS}}
        write_document(PROOF / "fuzz.json", document)
    return 1 if found else 0


def _progress(runner, name):
    progress, module = runner.progress(name), target(name)
    return {
        "what": module.WHAT,
        "oracle": module.ORACLE,
        "seconds": progress.seconds,
        "executions": progress.executions,
        "edges": progress.edges,
        "inputs": progress.inputs,
        "kept": len(corpora.kept(name)),
        "cured": len(corpora.findings(name)),
        "open": sorted(progress.findings),
    }


def _replay(told):
    broken = 0
    for name in TARGETS if told.target == "all" else [told.target]:
        module = target(name)
        inputs = [path.read_bytes() for path in told.file]
        for data in inputs or [*module.seeds(), *corpora.kept(name), *corpora.findings(name)]:
            try:
                module.check(data)
            except Exception:
                broken += 1
                _say(f"{name}: {data!r}\n{traceback.format_exc()}")
    return 1 if broken else 0


def _faults(told):
    missed = 0
    for name in told.target or TARGETS:
        with TemporaryDirectory() as folder:
            progress = Runner(Path(folder)).run_once(name, told.seconds, fault=name, stop=True)
        missed += not progress.findings
        _say(f"{name}: {', '.join(progress.findings) or 'MISSED'} (after {progress.executions} inputs)")
    return 1 if missed else 0


def _keep(told):
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


if __name__ == "__main__":
    sys.exit(main())
