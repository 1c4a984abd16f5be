"""The entry point of ``rbim``: global flags, modules named by ``RBIM_IMPORT``, the command, and the exit code.

cyclopts is imported when a command runs, and a command when it is called, so that the front page is fast.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from rbim import __version__
from rbim._support.text import missing_extra
from rbim.cli.errors import MissingExtra, discard_output, print_error, report_bug, report_error, report_os_error
from rbim.cli.exit_codes import JOB_EXITS, Exit
from rbim.cli.global_flags import GLOBAL_FLAGS_HELP, JSON, GlobalFlags, WrongFlag, split_global_flags, using_flags
from rbim.cli.json_output import recording_json
from rbim.errors import RbimError
from rbim.operations.catalogue import namespace

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
    words = list(sys.argv[1:] if tokens is None else tokens)
    flags = GlobalFlags(debug="--debug" in words, json=not {*JSON}.isdisjoint(words))
    code: int = Exit.USAGE
    with recording_json() if flags.json else nullcontext() as output:
        try:
            with using_flags(flags):  # an operation of a module may have its own --debug or --json
                imported = not os.environ.get("RBIM_IMPORT") or _import_modules()
            if imported:
                flags, words = split_global_flags(words)
                with using_flags(flags):
                    code = _run_command(words, version=flags.version)
        except WrongFlag as wrong:
            print_error(str(wrong), "See: rbim --help")
        except KeyboardInterrupt:
            code = Exit.INTERRUPTED
        if output is not None and flags.json:
            output.finish(code)
    return code


def _import_modules() -> bool:
    """Import the modules in ``RBIM_IMPORT``, as ``python -m`` would; print the error of one that fails and return False."""
    for module in filter(None, map(str.strip, os.environ["RBIM_IMPORT"].split(","))):
        here = os.getcwd()  # noqa: PTH109  # pathlib would be imported for this alone
        sys.path.insert(0, here)
        try:
            import_module(module)
        except (Exception, SystemExit) as error:  # a third-party module may raise anything
            reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
            print_error(f"cannot import {module}, which RBIM_IMPORT names: {reason}")
            return False
        finally:
            sys.path.remove(here)
    return True


def _run_command(words: list[str], *, version: bool) -> int:  # noqa: C901, PLR0912  # kinds of errors
    """Run a command without global flags. Print an error as one or two lines on standard error; return the exit code."""
    result: object = None
    try:
        if version:
            sys.stdout.write(f"rbim {__version__}\n")
        elif words in ([], ["help"], ["--help"], ["-h"]):
            from rbim.cli.front_page import front_page

            sys.stdout.write(front_page())
        else:
            try:
                import_module("rich")  # each command needs both
                from cyclopts import CycloptsError, UnusedCliTokensError
            except ModuleNotFoundError as missing:
                print_error(missing_extra("this command", missing.name, "cli"))
                return Exit.USAGE
            app = build_app(words)
            try:
                result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
            except CycloptsError as error:
                told = str(error)
                if isinstance(error, UnusedCliTokensError):
                    unused = " ".join(error.unused_tokens or ())
                    told = f"unexpected: {unused}; the command takes no more values without a flag"
                print_error(told, f"See: {' '.join(['rbim', *(error.command_chain or ())])} --help")
                return Exit.USAGE
            except RbimError as error:
                return report_error(error, " ".join(["rbim", *app.parse_commands(words)[0]]))
        sys.stdout.flush()
    except MissingExtra as missing:
        print_error(str(missing))
        return Exit.USAGE
    except BrokenPipeError:  # the reader of standard output has closed it
        return discard_output()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich turns it into SystemExit
            return Exit.READER_LEFT
        raise
    except OSError as error:
        return report_os_error(error)
    except Exception as error:  # an error of an imported module, or a bug in rbim
        return report_bug(error)
    return result if isinstance(result, int) else Exit.DONE


def build_app(words: Sequence[str] = ()) -> App:
    """Return the command line as a cyclopts application, with a command for every operation declared so far.

    With ``words``, the beginning of a command line, it has only the commands that they can name.
    """
    from cyclopts import App

    from rbim.cli.front_page import COMMANDS, SUMMARY

    app = App(
        name="rbim",
        help=SUMMARY,
        help_format="markdown",
        help_epilogue=GLOBAL_FLAGS_HELP,
        version_flags=(),  # a global flag
        suppress_keyboard_interrupt=False,  # run returns its exit code
    )
    named = words[0] if words else ""
    has_operations = namespace(named) is not None
    every = named == "completion" or not (named in COMMANDS or has_operations)
    for name, (where, summary) in COMMANDS.items():
        if not (every or name == named):
            continue
        if where is None:
            app.register_install_completion_command(name=name, help=summary)  # pyright: ignore[reportUnknownMemberType]
        elif name in {"invite", "remove"}:
            app.command(where, name=name, help_epilogue=f"{JOB_EXITS}\n\n{GLOBAL_FLAGS_HELP}")
        else:
            app.command(where, name=name)
    if every or has_operations:
        from rbim.cli.operations import add_operations

        add_operations(app, words)
    return app
