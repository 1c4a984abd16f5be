"""``rbim completion``: print or install a completion script for a shell."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import App, Parameter

from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit
from rbim.cli.global_flags import DIALECT_FLAGS, FLAGS, SWITCHES
from rbim.dialect_text import dialect_fields
from rbim.transports import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["completion"]

Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Shell | None = None, /, *, install: Annotated[bool, Parameter(negative=(), show_default=False)] = False
) -> int:
    """Print a script with which a shell completes commands and flags.

    Operations of the modules in RBIM_IMPORT are included.

    Parameters
    ----------
    shell
        The shell (default: the one that runs this command).
    install
        Write the script to the shell's directory for completions, and add a line to the shell's start-up file if it is
        needed. Print the name of the script's file.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from rbim.cli.app import build

    try:
        found = shell or detect_shell()
    except ShellDetectionError:
        print_error("cannot detect the shell: name it (bash, zsh or fish)", "See: rbim completion --help")
        return Exit.USAGE
    app = _with_dialect_flags(build())
    app.default(_parameters([*_global_flags(), *_dialect_flags(EVERY)]))
    if not install:
        sys.stdout.write(app.generate_completion(prog_name="rbim", shell=found))
        return Exit.DONE
    path = app.install_completion(shell=found)
    sys.stdout.write(f"{path}\n")
    return Exit.DONE


EVERY = ("", "emulator and receiver", "receiver", "emulator")
USED: Mapping[str, Collection[str]] = MappingProxyType(
    {
        **dict.fromkeys(("emulator", "demo", "config"), EVERY),
        "callback": ("emulator and receiver", "receiver"),
        **dict.fromkeys(("operations", "dialect", "completion"), ()),
    }
)
"""The only users of the fields whose flags are completed after a command; for all others, the fields of the client."""


def _with_dialect_flags(app: App, used: Collection[str] | None = None) -> App:
    """Return a copy whose commands have the flags of the dialect, too: only those that change something there.

    The application's own commands are those of this process, and stay as they are.
    """
    copy = App(name=app.name, help=app.help, help_format=app.help_format)
    if callable(app.default_command):
        copy.default(_parameters(_dialect_flags(used or ()), app.default_command))
    for name in (name for name in app if not name.startswith("-")):
        here = USED.get(name, ("",)) if used is None else used
        copy.command(_with_dialect_flags(app[name], here), name=name)
    return copy


def _parameters(flags: list[inspect.Parameter], command: Callable[..., object] | None = None) -> Callable[..., None]:
    """Return a function with the parameters of a command, and these that it does not have; it is never called."""

    def unused() -> None:
        raise AssertionError

    own = {} if command is None else dict(inspect.signature(command, eval_str=True).parameters)
    more = [flag for flag in flags if flag.name not in own]  # a field of an operation hides the flag
    unused.__doc__ = None if command is None else command.__doc__
    unused.__annotations__ = {}
    unused.__signature__ = inspect.Signature([*own.values(), *more])  # type: ignore[attr-defined]  # read by inspect
    return unused


def _global_flags() -> list[inspect.Parameter]:
    """Return the global flags, which the parser of commands never sees."""
    kinds: dict[str, Any] = dict.fromkeys(FLAGS, str | None) | dict.fromkeys(SWITCHES, bool)
    kinds |= {"config": Path | None, "transport": cast("Any", Literal)[TRANSPORTS] | None}
    helps = {name: text for name, (_, text) in FLAGS.items()} | SWITCHES
    return [_parameter(name, kind, helps[name]) for name, kind in kinds.items()]


def _dialect_flags(used: Collection[str]) -> list[inspect.Parameter]:
    """Return the flags of the dialect's fields with one of these only users."""
    fields = {name: dialect_fields()[field] for name, field in DIALECT_FLAGS.items()}
    return [
        _parameter(
            name, cast("Any", Literal)[choices] | None if (choices := field.form.choices) else str | None, field.gap.choice
        )
        for name, field in fields.items()
        if field.gap.only in used
    ]


def _parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    return inspect.Parameter(
        name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else None,
        annotation=Annotated[kind, Parameter(name=f"--{name}", negative=(), help=text)],
    )
