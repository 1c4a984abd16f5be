"""The command line put together, and what becomes of its errors. Each command is imported when it is called."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from rbim import __version__
from rbim.cli.errors import complain, fault, leave_quietly, unusable
from rbim.cli.exit_codes import Exit
from rbim.cli.extras import MissingExtra, needed
from rbim.cli.global_flags import EVERYWHERE
from rbim.cli.help.front_page import COMMANDS, SUMMARY
from rbim.cli.help.page import HelpPage
from rbim.cli.jobs.flags import EXITS
from rbim.cli.operations.commands import add_operations

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build", "demo", "run_app"]

EPILOGUES = dict.fromkeys(("invite", "remove"), EXITS)

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def build() -> App:
    """Return the application with all commands."""
    app = App(
        name="rbim",
        help=SUMMARY,
        help_format="markdown",
        help_epilogue=EVERYWHERE,
        help_formatter=HelpPage(),
        version=f"rbim {__version__}",
        suppress_keyboard_interrupt=False,  # it has an exit code of its own
    )
    for name, (where, _) in COMMANDS.items():
        app.command(where, name=name, **({"help_epilogue": EPILOGUES[name]} if name in EPILOGUES else {}))
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
    from rbim.cli.demo.demo import run_demo

    return run_demo(csv, plain=plain, as_json=json)


def run_app(app: App, tokens: Sequence[str]) -> int:
    """Carry out one command line; every error becomes a line or two on standard error and an exit code."""
    try:
        result = app(list(tokens), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        complain(_reason(error), f"See: {' '.join(['rbim', *(error.command_chain or ())])} --help")
        return Exit.USAGE
    except MissingExtra as missing:
        complain(str(missing))
        return Exit.USAGE
    except BrokenPipeError:  # whoever read standard output has left
        return leave_quietly()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich has met one
            return Exit.READER_LEFT
        raise
    except OSError as error:
        return unusable(error)
    except Exception as error:
        return fault(error)
    return result if isinstance(result, int) else Exit.DONE


def _reason(error: CycloptsError) -> str:
    """Return what cyclopts says of wrong input, and in fewer words what is missing."""
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return str(error)
    name, by_place = error.argument.name, error.argument.index is not None
    if name.startswith("-") and by_place:
        name = f"{name.lstrip('-').upper()} ({name})"
    return f"{name} {'is needed' if error.keyword is None else 'needs a value'}"
