"""The application: all commands, and the exit code of each error. A command is imported when it is called."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from rbim.cli.errors import discard_output, print_error, report_bug, report_os_error
from rbim.cli.exit_codes import JOB_EXITS, Exit
from rbim.cli.extras import MissingExtra, require
from rbim.cli.field import parse
from rbim.cli.global_flags import DIALECT_FLAGS, END, FLAGS, GLOBAL_FLAGS_HELP, JSON, SWITCHES, current_flags
from rbim.cli.help.front_page import COMMANDS, SUMMARY
from rbim.cli.help.page import HelpPage
from rbim.errors import InvalidRequest
from rbim.operations.catalogue import namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build", "demo", "run_app"]

EPILOGUES = dict.fromkeys(("invite", "remove"), f"{JOB_EXITS}\n\n{GLOBAL_FLAGS_HELP}")

NEAR = 0.75
"""How alike a flag must be to be proposed, from 0 to 1."""

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def build(words: Sequence[str] = ()) -> App:
    """Return the application: with all commands, or with those that ``words``, the beginning of a command line, can name."""
    app = App(
        name="rbim",
        help=SUMMARY,
        help_format="markdown",
        help_epilogue=GLOBAL_FLAGS_HELP,
        help_formatter=HelpPage(),
        version_flags=(),  # rbim.cli.global_flags knows --version
        suppress_keyboard_interrupt=False,  # run_app returns its exit code
    )
    for name, (where, _) in COMMANDS.items():
        app.command(where, name=name, **({"help_epilogue": EPILOGUES[name]} if name in EPILOGUES else {}))
    if not words or words[0] not in COMMANDS or namespace(words[0]) is not None:
        from rbim.cli.operations.commands import add_operations

        add_operations(app, words)
    return app


def demo(*, csv: Path | None = None, plain: Flag = False, json: Flag = False) -> int:
    """Invite 5,000 accounts into three groups of an emulated platform, over real HTTP on this machine.

    Starts the emulator on a free port, creates the groups, invites the accounts in requests of 50, and compares the
    members of each group with the responses. Exit code 0 if all figures agree, else 1.

    Parameters
    ----------
    csv
        Invite the accounts of this CSV file instead: UTF-8, with the columns group and account, and optionally logged_in
        (yes or no).
    plain
        Print lines instead of a progress bar.
    json
        Print the figures as one JSON object, as the last line of standard output.
    """
    require("cli,server", "uvicorn")
    from rbim.cli.demo import run_demo

    return run_demo(csv, plain=plain, as_json=json)


def run_app(app: App, tokens: Sequence[str]) -> int:
    """Run one command line. Print an error as one or two lines on standard error and return its exit code."""
    try:
        words = list(tokens) if current_flags().field is None else _with_json(app, tokens)
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        print_error(_reason(error), f"See: {' '.join(['rbim', *(error.command_chain or ())])} --help")
        return Exit.USAGE
    except MissingExtra as missing:
        print_error(str(missing))
        return Exit.USAGE
    except InvalidRequest as wrong:  # of --field
        print_error(wrong.message, "See: rbim --help")
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


def _with_json(app: App, tokens: Sequence[str]) -> list[str]:
    """Return the command line of a command with ``--json``, which ``--field`` needs.

    Raises InvalidRequest if the path is none, or if the command prints no JSON.
    """
    field = current_flags().field
    parse(field or "")
    chain, path, _ = app.parse_commands(list(tokens))
    command = path[-1]
    if command.default_command is None or {"--help", "-h"} & {*tokens}:
        return list(tokens)
    with app.app_stack(path):
        names = {name for argument in command.assemble_argument_collection() for name in argument.names}
    flag = next((flag for flag in reversed(JSON) if flag in names), None)
    if flag is None:
        raise InvalidRequest(f"--field: {' '.join(['rbim', *chain])} prints no JSON document", field="--field")
    end = tokens.index(END) if END in tokens else len(tokens)
    return [*tokens] if flag in tokens[:end] else [*tokens[:end], flag, *tokens[end:]]


def _reason(error: CycloptsError) -> str:
    """Return the message of cyclopts, or a shorter one with what was probably meant."""
    if isinstance(error, UnknownCommandError):
        return _unknown_command(error)
    if isinstance(error, UnknownOptionError) and "Did you mean" not in str(error):
        flags = [f"--{name}" for name in (*FLAGS, *DIALECT_FLAGS, *SWITCHES)]
        words = get_close_matches(error.token.keyword or "", flags, cutoff=NEAR)
        return f"{error} Did you mean {words[0]}?" if words else str(error)
    if isinstance(error, UnusedCliTokensError):
        near = _near_command(error)
        if near:
            return near
        return f"unexpected {' '.join(error.unused_tokens or ())}: values stand behind their flags"
    if not isinstance(error, MissingArgumentError) or error.argument is None:
        return str(error)
    name, positional = error.argument.name, error.argument.index is not None
    if name.startswith("-") and positional:
        name = f"{name.lstrip('-').upper()} ({name})"
    if error.keyword is not None:
        return f"{name} needs a value"
    unused = error.unused_tokens or []
    meant = get_close_matches(error.argument.name, [token for token in unused if token.startswith("--")], n=1)
    if meant:
        return f"{name} is required: did you mean it by {meant[0]}?"
    values = [] if positional else [token for token in unused if not token.startswith("-")]
    return f"{name} is required{': put it before ' if values else ''}{' '.join(values)}"


def _near_command(error: UnusedCliTokensError) -> str:
    """Return the message for a word that is like a command of a group that is a command by itself; else an empty text."""
    token, above = (error.unused_tokens or [""])[0], " ".join(("rbim", *(error.command_chain or ())))
    known = [name for name in error.app or () if not name.startswith("-")]
    near = get_close_matches(token, known, n=1)
    meant = _flag_for(error) or (f"{above} {near[0]}" if near else "")
    return f"unknown command {token!r}: did you mean {meant}?" if meant and known else ""


def _unknown_command(error: UnknownCommandError) -> str:
    """Return the message with commands that are like the word, here or, if there are none, in groups of commands."""
    (token, *_), app = error.unused_tokens or [""], error.app
    known = [name for name in app or () if not name.startswith("-")]
    near = get_close_matches(token, known, n=1)
    above = " ".join(("rbim", *(error.command_chain or ())))
    below = [f"{above} {name} {token}" for name in known if app is not None and token in app[name]]
    meant = _flag_for(error) or (f"{above} {near[0]}" if near else " or ".join(below))
    return f"unknown command {token!r}{f': did you mean {meant}?' if meant else ''}"


def _flag_for(error: UnknownCommandError | UnusedCliTokensError) -> str:
    """Return the line to type for ``help`` and ``version``, which are commands of other programs; else an empty text."""
    unknown, *words = error.unused_tokens or [""]
    if unknown == "version":
        return "rbim --version"
    if unknown != "help":
        return ""
    app, chain = error.app, ["rbim", *(error.command_chain or ())]
    for word in words:  # the command that help is wanted for
        if app is None or word.startswith("-") or word not in app:
            break
        app = app[word]
        chain.append(word)
    return f"{' '.join(chain)} --help"
