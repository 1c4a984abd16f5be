"""The command line put together, and what becomes of its errors. Heavy imports wait for the command that needs them."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter

from rbim import __version__
from rbim.cli.bulk import invite, remove
from rbim.cli.bulk_flags import EXITS
from rbim.cli.callback import callback
from rbim.cli.emulator import emulator
from rbim.cli.exits import Exit, complain
from rbim.cli.extras import MissingExtra, needed
from rbim.cli.job import job
from rbim.cli.operations import add_operations, operations

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build", "demo", "run_app"]

HELP = """\
An asyncio SDK for a Chinese communications platform: its operations, jobs of any number of them, and a demonstration.

Operations are sent as the application that RBIM_BASE_URL, RBIM_APP_ID, RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE) and
RBIM_USER_NAME describe. Exit codes: 0 done, 1 refused by the platform, 2 wrong input or configuration, 3 not sent,
5 outcome unknown. Jobs (`invite`, `remove`, `job`) have more of them: see their help.
"""

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def build() -> App:
    """Return the application with all commands."""
    app = App(
        name="rbim",
        help=HELP,
        help_format="markdown",
        version=f"rbim {__version__}",
        suppress_keyboard_interrupt=False,  # it has an exit code of its own
    )
    app.command(invite, help_epilogue=EXITS)
    app.command(remove, help_epilogue=EXITS)
    app.command(job)
    app.command(demo)
    app.command(emulator)
    app.command(callback)
    app.command(operations)
    add_operations(app)
    return app


def demo(*, csv: Path | None = None, plain: Flag = False, json: Flag = False) -> int:
    """Invite 5,000 accounts into three groups of an emulated platform, over real HTTP on this machine.

    Starts the emulator on a free port, creates the groups, invites the accounts in requests of 50, and compares what each
    group holds with what was answered. Exit code 0 says that all figures agree.

    Parameters
    ----------
    csv
        Invite these accounts instead: a file in UTF-8 with the columns group and account, and logged_in (yes or no) if
        wanted.
    plain
        Print lines instead of a progress bar.
    json
        Print the figures as one JSON object, in the last line of standard output.
    """
    needed("cli,server", "uvicorn")
    from rbim.cli.demo import run_demo

    return run_demo(csv, plain=plain, as_json=json)


def run_app(app: App, tokens: Sequence[str]) -> int:
    """Carry out one command line; every error becomes a line or two on standard error and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that a stream cannot carry must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        result = app(list(tokens), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        complain(str(error), f"See: {' '.join(['rbim', *(error.command_chain or ())])} --help")
        return Exit.USAGE
    except MissingExtra as missing:
        complain(str(missing))
        return Exit.USAGE
    except BrokenPipeError:  # whoever read standard output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.REFUSED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return result if isinstance(result, int) else Exit.DONE
