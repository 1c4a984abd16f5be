"""The entry point of ``rbim``: global flags, modules named by ``RBIM_IMPORT``, and the exit code."""

from __future__ import annotations

import gc
import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from rbim import __version__
from rbim.cli.errors import discard_output, print_error, report_bug, report_os_error
from rbim.cli.exit_codes import Exit
from rbim.cli.extras import MissingExtra, require
from rbim.cli.global_flags import JSON, GlobalFlags, WrongFlag, current_flags, split_global_flags, using_flags
from rbim.cli.json_output import recording_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App

__all__ = ["Exit", "build_app", "main", "run"]


COLLECT_AFTER = 50_000
"""Objects after which the garbage collector runs, not 700: what a command imports stays, and there is a lot of it."""


def main(tokens: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (default: the arguments of this process) and exit with an :class:`Exit` code."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER)
    try:
        code = run(tokens)
    finally:
        gc.set_threshold(*before)
    sys.exit(code)


def run(tokens: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process has closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # to the end of the process
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # a character that it cannot encode must not end the command
            stream.reconfigure(errors="backslashreplace")
    with recording_json() as output:
        try:
            code, as_json = _execute(list(sys.argv[1:] if tokens is None else tokens))
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
        if as_json:
            output.finish(code)
    return code


def _execute(tokens: list[str]) -> tuple[int, bool]:
    """Run the command line. Return its exit code, and whether an error is to be a JSON document, too."""
    found = GlobalFlags(debug="--debug" in tokens, json=not {*JSON}.isdisjoint(tokens))
    with using_flags(found):  # before RBIM_IMPORT, it is not known whether an operation has its own --debug and --json
        if not _imported():
            return Exit.USAGE, found.json
    try:
        flags, rest = split_global_flags(tokens)
    except WrongFlag as wrong:
        print_error(str(wrong), "See: rbim --help")
        return Exit.USAGE, found.json
    return _run(flags, rest), flags.json


def _run(flags: GlobalFlags, rest: list[str]) -> int:
    with using_flags(flags):
        try:
            return _answer(rest)
        except BrokenPipeError:  # the reader of standard output has closed it
            return discard_output()
        except OSError as error:
            return report_os_error(error)
        except Exception as error:  # an error of an imported module, or a bug in rbim
            return report_bug(error)


def _imported() -> bool:
    """Import the modules in ``RBIM_IMPORT``; print the error of one that cannot be imported and return False."""
    for module in filter(None, os.environ.get("RBIM_IMPORT", "").split(",")):
        try:
            _import_from_here(module.strip())
        except (Exception, SystemExit) as error:  # a third-party module may raise anything
            reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
            print_error(f"cannot import {module.strip()}, which RBIM_IMPORT names: {reason}")
            return False
    return True


def _import_from_here(module: str) -> None:
    here = os.getcwd()  # noqa: PTH109  # pathlib would be imported for this alone
    sys.path.insert(0, here)  # as `python -m` does
    try:
        import_module(module)
    finally:
        sys.path.remove(here)


def _answer(tokens: list[str]) -> int:
    from rbim.cli.front_page import answer

    page = f"rbim {__version__}\n" if current_flags().version else answer(tokens)
    if page is not None:
        sys.stdout.write(page)
        sys.stdout.flush()
        return Exit.DONE
    try:
        require("cli", "cyclopts", "rich")
    except MissingExtra as missing:
        print_error(str(missing))
        return Exit.USAGE
    from rbim.cli.app import build, run_app

    return run_app(build(tokens), tokens)


def build_app() -> App:
    """Return the command line as a cyclopts application, with a command for every operation declared so far."""
    from rbim.cli.app import build

    return build()
