"""The application: all commands, and the exit code of each error. A command is imported when it is called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from rbim.cli.errors import discard_output, print_error, report_bug, report_os_error
from rbim.cli.exit_codes import JOB_EXITS, Exit
from rbim.cli.extras import MissingExtra, require
from rbim.cli.front_page import COMMANDS, SUMMARY
from rbim.cli.global_flags import GLOBAL_FLAGS_HELP
from rbim.operations.catalogue import namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build", "demo", "run_app"]

EPILOGUES = dict.fromkeys(("invite", "remove"), f"{JOB_EXITS}\n\n{GLOBAL_FLAGS_HELP}")

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def build(words: Sequence[str] = ()) -> App:
    """Return the application: with all commands, or with those that ``words``, the beginning of a command line, can name."""
    app = App(
        name="rbim",
        help=SUMMARY,
        help_format="markdown",
        help_epilogue=GLOBAL_FLAGS_HELP,
        version_flags=(),  # rbim.cli.global_flags knows --version
        suppress_keyboard_interrupt=False,  # run_app returns its exit code
    )
    for name, (where, summary) in COMMANDS.items():
        if where is None:
            app.register_install_completion_command(name=name, help=summary)  # pyright: ignore[reportUnknownMemberType]
        else:
            app.command(where, name=name, **({"help_epilogue": EPILOGUES[name]} if name in EPILOGUES else {}))
    own = COMMANDS.get(words[0]) if words else None
    if own is None or own[0] is None or namespace(words[0]) is not None:
        from rbim.cli.operations.commands import add_operations

        add_operations(app, words)
    return app


def demo(*, json: Flag = False) -> int:
    """Invite 5,000 accounts into three groups of an emulated platform, over real HTTP on this machine.

    Starts the emulator on a free port, creates the groups, invites the accounts in requests of 50, and compares the
    members of each group with the responses. Exit code 0 if all figures agree, else 1.

    Parameters
    ----------
    json
        Print the figures as one JSON object, as the last line of standard output.
    """
    require("cli,server", "uvicorn")
    from rbim.cli.demo import run_demo

    return run_demo(as_json=json)


def run_app(app: App, tokens: Sequence[str]) -> int:
    """Run one command line. Print an error as one or two lines on standard error and return its exit code."""
    try:
        result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        told = str(error)
        if isinstance(error, UnusedCliTokensError):
            told = f"unexpected: {' '.join(error.unused_tokens)}; the command takes no more values without a flag"
        print_error(told, f"See: {' '.join(['rbim', *(error.command_chain or ())])} --help")
        return Exit.USAGE
    except MissingExtra as missing:
        print_error(str(missing))
        return Exit.USAGE
    except BrokenPipeError:  # the reader of standard output has closed it
        return discard_output()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich turns it into SystemExit
            return Exit.READER_LEFT
        raise
    except OSError as error:
        return report_os_error(error)
    except Exception as error:
        return report_bug(error)
    return result if isinstance(result, int) else Exit.DONE
