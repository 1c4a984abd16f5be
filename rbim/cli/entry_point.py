"""The entry point of ``rbim``: global flags, modules named by ``RBIM_IMPORT``, and the exit code."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from rbim.cli.errors import complain, fault, leave_quietly, unusable
from rbim.cli.exit_codes import Exit
from rbim.cli.extras import MissingExtra, needed
from rbim.cli.global_flags import GlobalFlags, WrongFlag, split_global_flags, using_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App

__all__ = ["Exit", "build_app", "main", "run"]


def main(tokens: Sequence[str] | None = None) -> NoReturn:
    """Carry out the command line (that of this process unless ``tokens`` are given) and exit; see :class:`Exit`."""
    sys.exit(run(tokens))


def run(tokens: Sequence[str] | None = None) -> int:
    """Carry out the command line and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # to the end of the process
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # a character that a stream cannot carry must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        return _carry_out(list(sys.argv[1:] if tokens is None else tokens))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _carry_out(tokens: list[str]) -> int:
    with using_flags(GlobalFlags(debug="--debug" in tokens)):  # whose flag that is, the imported operations decide
        if not _imported():
            return Exit.USAGE
    try:
        flags, rest = split_global_flags(tokens)
    except WrongFlag as wrong:
        complain(str(wrong), "See: rbim --help")
        return Exit.USAGE
    with using_flags(flags):
        try:
            return _answer(rest)
        except BrokenPipeError:  # whoever read standard output has left
            return leave_quietly()
        except OSError as error:
            return unusable(error)
        except Exception as error:  # a module of somebody else's, or a fault of ours
            return fault(error)


def _imported() -> bool:
    """Import what ``RBIM_IMPORT`` names; say which module cannot be, and why."""
    for module in filter(None, os.environ.get("RBIM_IMPORT", "").split(",")):
        try:
            _import_from_here(module.strip())
        except (Exception, SystemExit) as error:  # somebody else's module: it may raise anything
            why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
            complain(f"RBIM_IMPORT names {module.strip()}, which cannot be imported: {why}")
            return False
    return True


def _import_from_here(module: str) -> None:
    here = os.getcwd()  # noqa: PTH109  # pathlib is not needed for anything else
    sys.path.insert(0, here)  # as `python -m` does
    try:
        import_module(module)
    finally:
        sys.path.remove(here)


def _answer(tokens: list[str]) -> int:
    from rbim.cli.help.front_page import answer

    page = answer(tokens)
    if page is not None:
        sys.stdout.write(page)
        sys.stdout.flush()
        return Exit.DONE
    try:
        needed("cli", "cyclopts", "rich")
    except MissingExtra as missing:
        complain(str(missing))
        return Exit.USAGE
    from rbim.cli.app import run_app

    return run_app(build_app(), tokens)


def build_app() -> App:
    """Return the command line as a cyclopts application, with a command for every operation that is declared by now."""
    from rbim.cli.app import build

    return build()
